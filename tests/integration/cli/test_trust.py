"""Trust in keys, and the status of a stack\'s servers."""

from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from services.runtime.access import Access
from services.runtime.credentials import write_principals
from services.runtime.metrics import Metrics
from tests.cli import CLOSED
from tests.cli import kolm as kolm_command
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.serving import Served, serving
from tests.unit.ledger.builders import KEYS

RECEIPTS, AUDITOR = KEYS["receipts"], KEYS["auditor"]


class Kolm:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.trusted = data_dir / "trusted"

    def __call__(self, *words: object) -> tuple[int, Any]:
        done = kolm_command("trust", *words, "--data-dir", self.data_dir, "--json")
        return done.code, done.document if done.code == 0 else done.err


@pytest.fixture
def kolm(tmp_path: Path) -> Kolm:
    return Kolm(tmp_path / "data")


def test_what_services_have_published_is_trusted_once_a_person_adds_it(kolm: Kolm, tmp_path: Path) -> None:
    for key in (RECEIPTS, AUDITOR):
        key.publish(tmp_path / "public" / key.role)
    code, added = kolm("add", tmp_path / "public")
    assert (code, {(each["role"], each["new"]) for each in added}) == (0, {("receipts", True), ("auditor", True)})
    trusted = TrustedKeys.load(kolm.trusted)
    assert (trusted.keys("receipts"), trusted.keys("auditor")) == ((RECEIPTS.public,), (AUDITOR.public,))
    assert [each["new"] for each in kolm("add", tmp_path / "public")[1]] == [False, False]
    assert len(list(kolm.trusted.iterdir())) == 2


def test_a_key_file_of_any_name_takes_the_given_role(kolm: Kolm, tmp_path: Path) -> None:
    file = tmp_path / "from-a-mail.pem"
    file.write_bytes(AUDITOR.public.to_pem())
    code, err = kolm("add", file)
    assert (code, "--role" in err) == (2, True)
    assert kolm("add", file, "--role", "emperor")[0] == 2
    assert kolm("add", file, "--role", "auditor")[0] == 0
    assert [(each["role"], each["key_id"]) for each in kolm("list")[1]] == [("auditor", AUDITOR.key_id)]


def test_nothing_is_added_unless_all_of_it_can_be(kolm: Kolm, tmp_path: Path) -> None:
    good = RECEIPTS.publish(tmp_path)
    (tmp_path / "auditor-1.pub").write_text("no key")
    (tmp_path / "empty").mkdir()
    for bad, code in ((tmp_path / "auditor-1.pub", 2), (tmp_path / "nothing.pub", 4), (tmp_path / "empty", 4)):
        assert kolm("add", good, bad)[0] == code
        assert not kolm.trusted.exists()


def test_a_private_key_is_not_taken_for_a_public_one(kolm: Kolm, tmp_path: Path) -> None:
    SigningKey.load_or_create(tmp_path / "operator.pem", "operator")
    assert kolm("add", tmp_path / "operator.pem", "--role", "operator")[0] == 2


def test_a_key_is_removed_or_kept_for_what_it_has_signed(kolm: Kolm, tmp_path: Path) -> None:
    for key in (RECEIPTS, AUDITOR):
        key.publish(kolm.trusted)
    digits = RECEIPTS.key_id.removeprefix("ed25519:")[:12]
    assert kolm("remove", "zzzz")[0] == 4
    code, (retired,) = kolm("remove", digits, "--retire")
    assert (code, retired["key_id"]) == (0, RECEIPTS.key_id)
    assert TrustedKeys.load(kolm.trusted).keys("receipts") == (RECEIPTS.public,)
    assert TrustedKeys.load(kolm.trusted, retired=False).keys("receipts") == ()
    assert [each["retired"] for each in kolm("list")[1]] == [False, True]
    assert kolm("remove", AUDITOR.key_id)[0] == kolm("remove", digits)[0] == 0
    assert kolm("list") == (0, [])


@pytest.mark.parametrize("called", [RECEIPTS.key_id, f"receipts-{RECEIPTS.key_id.removeprefix('ed25519:')[:16]}.pub"])
def test_a_retired_key_that_is_trusted_again_is_retired_and_removed(kolm: Kolm, tmp_path: Path, called: str) -> None:
    file = RECEIPTS.publish(tmp_path)
    for scope in ((), ("--tenant", "acme")):
        assert kolm("add", file, *scope)[0] == kolm("remove", called, "--retire")[0] == 0
    assert [(each["retired"], each["scope"]) for each in kolm("list")[1]] == [(True, {"tenant": ["acme"]})]
    assert kolm("add", file)[0] == kolm("remove", called)[0] == 0
    assert kolm("list") == (0, [])


def test_a_key_is_trusted_for_some_tenants_and_keeps_that_until_a_person_changes_it(kolm: Kolm, tmp_path: Path) -> None:
    file = RECEIPTS.publish(tmp_path)
    assert kolm("add", file, "--tenant", "acme")[1][0]["scope"] == {"tenant": ["acme"]}
    assert [each["scope"] for each in kolm("list")[1]] == [{"tenant": ["acme"]}]
    (again,) = kolm("add", file)[1]
    assert (again["scope"], again["new"]) == ({"tenant": ["acme"]}, False)
    (wider,) = kolm("add", file, "--tenant", "acme", "--tenant", "globex")[1]
    assert (wider["scope"], wider["new"]) == ({"tenant": ["acme", "globex"]}, True)
    assert TrustedKeys.load(kolm.trusted).keys("receipts")[0].scope.tenant == ("acme", "globex")
    assert kolm("remove", RECEIPTS.key_id, "--retire")[0] == 0
    assert TrustedKeys.load(kolm.trusted).keys("receipts")[0].scope.tenant == ("acme", "globex")


def test_a_scope_is_for_keys_that_sign_receipts_and_is_not_empty(kolm: Kolm, tmp_path: Path) -> None:
    assert kolm("add", AUDITOR.publish(tmp_path), "--tenant", "acme")[0] == 2
    assert kolm("add", RECEIPTS.publish(tmp_path), "--tenant", "")[0] == 2
    assert not kolm.trusted.exists()


def flags(served: Served, *away: str) -> list[str]:
    names = ("generation", "ledger", "auditor", "registry")
    return [word for name in names for word in (f"--{name}", CLOSED if name in away else served.address)]


def export(registry: CollectorRegistry) -> None:
    """One server plays all of them."""
    metrics = Metrics(registry)
    metrics.process("ledger")
    metrics.read("kolm_ledger_entries", lambda: 1234)
    metrics.read("kolm_ledger_checkpoint_age_seconds", lambda: 75)
    metrics.read("kolm_auditor_obligations", lambda: {("owed",): 3, ("overdue",): 0})
    metrics.read("vllm:num_requests_running", lambda: {("tiny",): 2})


def test_one_screen_shows_the_whole_stack() -> None:
    with serving(mount(ScriptedGeneration())) as served:
        export(served.registry)
        shown = kolm_command("status", *flags(served), environment={"COLUMNS": "80"})
        document = kolm_command("status", "--json", *flags(served)).document
    assert shown.code == 0, shown.err
    assert all(figure in shown.out for figure in ("1,234", "1 min", "3 owed", "MiB"))
    assert max(map(len, shown.out.splitlines())) <= 80
    assert (document["serving"], document["broken"], document["entries"]) == (True, [], 1234)


@pytest.mark.parametrize(
    ("proven", "away", "code"),
    [(True, (), 0), (False, (), 3), (True, ("ledger",), 5), (True, ("generation",), 5), (True, ("registry",), 5)],
)
def test_a_check_judges_only_who_serves_and_the_profile(proven: bool, away: tuple[str, ...], code: int) -> None:
    scripted = ScriptedGeneration()
    scripted.proven = proven
    with serving(mount(scripted)) as served:
        unhalted = kolm_command("status", *flags(served, *away))
        Metrics(served.registry).read("kolm_ledger_open_halts", lambda: 1)
        checked = kolm_command("status", "--check", "--json", *flags(served, *away))
        judged = kolm_command("status", "--json", *flags(served, *away))
    assert unhalted.code == code
    assert (checked.code, checked.document["serving"]) == (code, not away)
    assert judged.code == (code or 3), "an open halt is none of a check's business"


def test_a_server_that_does_not_tell_is_no_server_without_halts(tmp_path: Path) -> None:
    write_principals(tmp_path / "principals.json", [])
    with serving(mount(ScriptedGeneration()), access=Access(tmp_path / "principals.json")) as served:
        shown = kolm_command("status", *flags(served))
        told = kolm_command("status", "--json", *flags(served)).document
    assert (shown.code, "KOLM_TOKEN" in shown.out, "halts" in shown.out) == (5, True, False), shown.out
    assert (told["halts_open"], told["entries"], told["verdicts"], told["running"]) == (None, None, None, None)


def test_a_token_that_cannot_be_read_is_the_problem_of_each_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KOLM_TOKEN")
    monkeypatch.setenv("KOLM_TOKEN_FILE", str(tmp_path / "none"))
    with serving(mount(ScriptedGeneration())) as served:
        told = kolm_command("status", "--json", *flags(served))
    assert (told.code, {str(tmp_path / "none") in each["problem"] for each in told.document["servers"]}) == (5, {True})


def test_a_server_that_does_not_serve_is_asked_why_and_a_fork_is_shown() -> None:
    with serving(mount(ScriptedGeneration())) as served:
        metrics = Metrics(served.registry)
        metrics.counter("kolm_auditor_verdicts").labels("INCONSISTENT").inc()
        metrics.read("kolm_ledger_takes_entries", lambda: 0)
        metrics.read("kolm_ledger_witness_silent", lambda: {("a",): 2, ("b",): 1})
        served.on_loop(lambda: served.server.set_serving("", False))
        told = kolm_command("status", "--json", *flags(served))
    assert (told.code, len(told.document["broken"])) == (5, 3), told.out
