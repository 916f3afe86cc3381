"""Trust in keys, and what the servers of a stack say of themselves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from typer.testing import CliRunner

from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from services.cli.main import app
from services.runtime.access import Access
from services.runtime.credentials import write_principals
from services.runtime.metrics import Metrics
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.serving import Served, serving
from tests.unit.ledger.builders import KEYS

RECEIPTS, AUDITOR = KEYS["receipts"], KEYS["auditor"]


class Kolm:
    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.trusted = data_dir / "trusted"

    def __call__(self, *words: object) -> tuple[int, Any]:
        result = self._run(*words, "--json")
        return result.exit_code, json.loads(result.stdout) if result.exit_code == 0 else result.stderr

    def text(self, *words: object) -> str:
        return str(self._run(*words).output)

    def _run(self, *words: object) -> Any:
        arguments = ["trust", *map(str, words), "--data-dir", str(self.data_dir)]
        return CliRunner(env={"COLUMNS": "300", "TERM": "dumb"}).invoke(app, arguments)


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
    assert f"{RECEIPTS.key_id} could sign before for receipts" in kolm.text("add", tmp_path / "public")
    assert len(list(kolm.trusted.iterdir())) == 2


def test_a_key_file_of_any_name_takes_the_role_that_is_said(kolm: Kolm, tmp_path: Path) -> None:
    file = tmp_path / "from-a-mail.pem"
    file.write_bytes(AUDITOR.public.to_pem())
    code, err = kolm("add", file)
    assert (code, "does not say a role" in err, "--role" in err) == (2, True, True)
    assert kolm("add", file, "--role", "emperor")[0] == 2
    assert kolm("add", file, "--role", "auditor")[0] == 0
    assert [(each["role"], each["key_id"]) for each in kolm("list")[1]] == [("auditor", AUDITOR.key_id)]
    assert AUDITOR.key_id[:20] in kolm.text("list")


def test_nothing_is_added_unless_all_of_it_can_be(kolm: Kolm, tmp_path: Path) -> None:
    good = RECEIPTS.publish(tmp_path)
    (tmp_path / "auditor-1.pub").write_text("no key")
    (tmp_path / "empty").mkdir()
    for bad, code in ((tmp_path / "auditor-1.pub", 2), (tmp_path / "nothing.pub", 4), (tmp_path / "empty", 4)):
        assert kolm("add", good, bad)[0] == code
        assert not kolm.trusted.exists()


def test_a_private_key_is_not_taken_for_a_public_one(kolm: Kolm, tmp_path: Path) -> None:
    SigningKey.load_or_create(tmp_path / "operator.pem", "operator")
    code, err = kolm("add", tmp_path / "operator.pem", "--role", "operator")
    assert (code, "is not a PEM public key" in err) == (2, True)


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


def test_a_key_is_trusted_for_some_tenants_and_keeps_that_until_a_person_says_otherwise(
    kolm: Kolm, tmp_path: Path
) -> None:
    file = RECEIPTS.publish(tmp_path)
    assert kolm("add", file, "--tenant", "acme")[1][0]["scope"] == {"tenant": ["acme"]}
    assert [each["scope"] for each in kolm("list")[1]] == [{"tenant": ["acme"]}]
    (again,) = kolm("add", file)[1]
    assert (again["scope"], again["new"]) == ({"tenant": ["acme"]}, False)
    (wider,) = kolm("add", file, "--tenant", "acme", "--tenant", "globex")[1]
    assert (wider["scope"], wider["new"]) == ({"tenant": ["acme", "globex"]}, True)
    assert TrustedKeys.load(kolm.trusted).keys("receipts")[0].scope.tenant == ("acme", "globex")
    assert "globex" in kolm.text("list")
    assert kolm("remove", RECEIPTS.key_id, "--retire")[0] == 0
    assert TrustedKeys.load(kolm.trusted).keys("receipts")[0].scope.tenant == ("acme", "globex")


def test_a_scope_is_for_keys_that_sign_receipts_and_says_something(kolm: Kolm, tmp_path: Path) -> None:
    assert kolm("add", AUDITOR.publish(tmp_path), "--tenant", "acme")[0] == 2
    assert kolm("add", RECEIPTS.publish(tmp_path), "--tenant", "")[0] == 2
    assert not kolm.trusted.exists()


NOWHERE = "127.0.0.1:1"
RUNNER = CliRunner()


def flags(served: Served, *away: str) -> list[str]:
    names = ("generation", "ledger", "auditor", "registry")
    return [word for name in names for word in (f"--{name}", NOWHERE if name in away else served.address)]


def export(registry: CollectorRegistry) -> None:
    """One server plays all of them."""
    metrics = Metrics(registry)
    metrics.process("ledger")
    metrics.read("kolm_ledger_entries", lambda: 1234)
    metrics.read("kolm_ledger_checkpoint_age_seconds", lambda: 75)
    metrics.read("kolm_auditor_obligations", lambda: {("owed",): 3, ("overdue",): 0})
    metrics.read("vllm:num_requests_running", lambda: {("tiny",): 2})


def test_one_screen_shows_the_whole_stack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with serving(mount(ScriptedGeneration())) as served:
        export(served.registry)
        shown = RUNNER.invoke(app, ["status", *flags(served)])
        told = RUNNER.invoke(app, ["status", "--json", *flags(served)])
    assert (shown.exit_code, told.exit_code) == (0, 0), shown.output
    for words in ("profile proven", "2 running", "1,234 entries, checkpoint of 1 min ago", "3 owed, 0 overdue", "MiB"):
        assert words in shown.stdout, shown.stdout
    assert max(map(len, shown.stdout.splitlines())) <= 80
    document = json.loads(told.stdout)
    assert (document["serving"], document["broken"], document["entries"]) == (True, [], 1234)


def test_the_exit_code_says_what_is_wrong() -> None:
    scripted = ScriptedGeneration()
    scripted.proven = False
    with serving(mount(scripted)) as served:
        unproven = RUNNER.invoke(app, ["status", *flags(served)])
        away = RUNNER.invoke(app, ["status", *flags(served, "registry")])
    assert (unproven.exit_code, "✗ numerics profile unproven" in unproven.stdout) == (3, True)
    assert (away.exit_code, "does not answer, or is stopping" in away.stdout) == (5, True)


@pytest.mark.parametrize(
    ("proven", "away", "code"), [(True, (), 0), (False, (), 3), (True, ("ledger",), 5), (True, ("generation",), 5)]
)
def test_a_check_judges_only_who_serves_and_the_profile(proven: bool, away: tuple[str, ...], code: int) -> None:
    scripted = ScriptedGeneration()
    scripted.proven = proven
    with serving(mount(scripted)) as served:
        Metrics(served.registry).read("kolm_ledger_open_halts", lambda: 1)
        checked = RUNNER.invoke(app, ["status", "--check", "--json", *flags(served, *away)])
        judged = RUNNER.invoke(app, ["status", "--json", *flags(served, *away)])
    assert (checked.exit_code, json.loads(checked.stdout)["serving"]) == (code, not away)
    assert judged.exit_code == (code or 3), "an open halt is none of a check's business"


def test_a_server_that_does_not_tell_is_no_server_without_halts(tmp_path: Path) -> None:
    write_principals(tmp_path / "principals.json", [])
    with serving(mount(ScriptedGeneration()), access=Access(tmp_path / "principals.json")) as served:
        shown = RUNNER.invoke(app, ["status", *flags(served)])
        told = json.loads(RUNNER.invoke(app, ["status", "--json", *flags(served)]).stdout)
    assert (shown.exit_code, "(KOLM_TOKEN," in " ".join(shown.stdout.split())) == (5, True), shown.stdout
    assert "halts" not in shown.stdout
    assert "0 open" not in shown.stdout
    assert (told["halts_open"], told["entries"], told["verdicts"], told["running"]) == (None, None, None, None)


def test_a_server_that_says_not_serving_is_asked_why_and_a_fork_is_said() -> None:
    with serving(mount(ScriptedGeneration())) as served:
        metrics = Metrics(served.registry)
        metrics.read("kolm_ledger_takes_entries", lambda: 0)
        metrics.read("kolm_ledger_witness_silent", lambda: {("a",): 2, ("b",): 1})
        served.on_loop(lambda: served.server.set_serving("", False))
        shown = RUNNER.invoke(app, ["status", *flags(served)])
    problem = "✗ the ledger cannot write, 1 witnesses saw another history of the log"
    assert (shown.exit_code, problem in shown.stdout) == (5, True), shown.stdout


def test_watching_writes_a_short_line_for_each_look_into_a_pipe_and_objects_for_programs() -> None:
    with serving(mount(ScriptedGeneration())) as served:
        export(served.registry)
        shown = RUNNER.invoke(app, ["status", "--watch", "--every", "0.1", "--count", "2", *flags(served)])
        told = RUNNER.invoke(app, ["status", "--watch", "--json", "--every", "0.1", "--count", "1", *flags(served)])
    lines = shown.stdout.splitlines()
    assert (shown.exit_code, len(lines)) == (0, 2), shown.output
    assert all(" ok " in line and "2 run" in line and len(line) <= 80 for line in lines), lines
    assert json.loads(told.stdout)["rates"]["tokens"] == 0.0
