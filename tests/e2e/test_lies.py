"""Lies of an operator, each made once in the real processes, and the commands that detect it.

tests/attacks.md names a test for each lie of docs/guarantees.md.
"""

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from ledger.documents.audit import AuditPolicy
from ledger.documents.dates import MOST_SKEW_SECONDS
from ledger.documents.signed_document import sign_document
from ledger.encoding.text_forms import timestamp
from ledger.keys.ed25519 import SigningKey
from services.cli.up.local_services import OWNER, Addresses, LocalServices, make_local_principals, token_file
from services.client.errors import KolmError
from services.client.ledger.ledger import LedgerClient
from tests.e2e.command import PATIENCE, ForkingSupervisor, Kolm, say, until
from tests.fakes.tiny_model import make_tiny_model
from tests.keys import seeded_key
from tests.unit.ledger.builders import policy, receipt

NOWHERE = "127.0.0.1:1"
LONG_AFTER = "--as-of=2100-01-01"
INTRUDER = seeded_key(b"\x66" * 32, "auditor")
"""In the folder before the forked ledger starts: it believes the key."""


@dataclass(frozen=True)
class Told:
    """The traces of an operator after every lie: files, the commands' answers, and a forked ledger."""

    folder: Path
    kolm: Kolm
    forked: Kolm
    random: Any
    audited: Any
    unlogged: Any
    swapped: Any
    swapped_seen: Any
    owed: Any

    @property
    def stranger(self) -> Kolm:
        """A stranger with files and public keys, and no service."""
        return Kolm(Addresses(NOWHERE, NOWHERE, NOWHERE), self.folder / "data")

    def file(self, name: str) -> str:
        return str(self.folder / name)

    def verified(self, bundle: str, *flags: str, code: int) -> Any:
        """The verdict of `kolm verify` on a stranger's bundle."""
        return self.stranger.json("verify", self.file(bundle), *flags, code=code)

    def promised(self, bundle: str, promise: str) -> list[Any]:
        """The exit code, and the states of a promise by a bundle, whatever else is wrong with it."""
        done = self.stranger("verify", self.file(bundle), f"--promise={self.file(promise)}", "--json")
        return [done.returncode, *(each["state"] for each in json.loads(done.stdout)["promises"])]


@pytest.fixture(scope="module")
def staged(tmp_path_factory: pytest.TempPathFactory, model: Path) -> Iterator[Told]:
    folder = tmp_path_factory.mktemp("lies")
    data, lies = folder / "data", folder / "told"
    lies.mkdir()
    services = LocalServices(
        data,
        model,
        generation_port=0,
        ledger_port=0,
        generation_module="tests.e2e.lying",
        generation_settings={"promise_seconds": 0.001, "append_seconds": PATIENCE},
        environment={"OMP_NUM_THREADS": "1", "KOLM_TEST_LIES": str(lies)},
    )
    keys = {role: SigningKey.load_or_create(data / f"keys/{role}.pem", role) for role in ("log", "receipts", "auditor")}
    for key in keys.values():
        key.publish(data / "trusted")
    with ExitStack() as running:
        ledgers, generations = (ForkingSupervisor(say) for _ in range(2))
        running.callback(ledgers.stop, 10.0)
        running.callback(generations.stop, 10.0)
        make_local_principals(data)
        ledger = ledgers.start(services.ledger(), PATIENCE)
        append(ledger, policy(1.0, within_seconds=3600), keys["auditor"], data)
        generation = generations.start(services.generation(ledger), PATIENCE)
        kolm = Kolm(Addresses(generation, ledger, NOWHERE), data)

        def ask(lie: str, *flags: str) -> Any:
            """A request, answered while a lie is active."""
            (lies / lie).touch()
            return kolm("generate", "The ledger keeps", "--max-tokens=8", *flags)

        silent = ask("silent", f"--promise={folder / 'silent'}")
        (lies / "silent").unlink()
        late = ask("late", f"--promise={folder / 'late'}")
        kolm("ledger", "export", str(folder / "early.tar.gz"))
        promised = kolm.json("receipts", "promised", str(folder / "late"), code=3)
        unlogged = (promised["state"], looked(kolm, folder / "early.sqlite3", f"--promise={folder / 'late'}"))
        (lies / "late").unlink()
        until(lambda: len(kolm.json("receipts", "list")) == 1)
        random = ask("random")
        (lies / "random").unlink()
        honest = ask("honest", f"--promise={folder / 'honest'}", f"--save={folder / 'receipt.json'}", "--json")
        (lies / "honest").unlink()
        words = ask("words", f"--save={folder / 'words.json'}")
        assert [each.returncode for each in (silent, late, honest, words)] == [0, 0, 0, 0]
        kolm("receipts", "list", "--prove", f"--remember={folder / 'seen'}")
        kolm("ledger", "export", str(folder / "unaudited.tar.gz"))
        generations.stop(10.0)
        shutil.copytree(data, folder / "fork")
        audited = kolm("audit", "run", f"--model={model}", "--json")
        kolm("ledger", "export", str(folder / "log.tar.gz"))
        kolm("receipts", "list", "--prove", f"--remember={folder / 'seen'}")

        fork = LocalServices(folder / "fork", model, ledger_port=0)
        INTRUDER.publish(folder / "fork/trusted")
        forked = ledgers.start(fork.ledger(), PATIENCE)
        for number in range(4):
            append(forked, receipt(number, issued_at=timestamp(datetime.now(UTC))), keys["receipts"], data)
        another = Kolm(Addresses(NOWHERE, forked, NOWHERE), data)
        another("ledger", "export", str(folder / "fork.tar.gz"))
        swapped = another.json("audit", "run", f"--model={make_tiny_model(folder / 'other', seed=1)}", code=1)
        another("ledger", "export", str(folder / "swapped.tar.gz"))
        swapped_seen = looked(another, folder / "swapped.sqlite3")
        append(forked, policy(1.0, within_seconds=1, number=1), keys["auditor"], data)
        a_minute_ago = timestamp(datetime.now(UTC) - timedelta(minutes=1))
        append(forked, receipt(4, issued_at=a_minute_ago), keys["receipts"], data)
        due = ("--max-unreplayable=99", f"--state={folder / 'due.sqlite3'}")
        until(lambda: another("monitor", "--once", *due).returncode == 3)  # a second after the auditor's last word
        owed = looked(another, folder / "owed.sqlite3", "--max-unreplayable=99")
        ahead = timestamp(datetime.now(UTC) + timedelta(seconds=MOST_SKEW_SECONDS - 1))
        append(forked, AuditPolicy(1.0, 3600, ahead), keys["auditor"], data)
        another("ledger", "export", str(folder / "ahead.tar.gz"))
        append(forked, policy(0.5, within_seconds=3600), INTRUDER, data)
        another("ledger", "export", str(folder / "intruded.tar.gz"))
        yield Told(folder, kolm, another, random, audited, unlogged, swapped, swapped_seen, owed)


def looked(kolm: Kolm, state: Path, *flags: str) -> dict[str, int]:
    """The findings of a red monitor in one look, by kind."""
    return found(json.dumps(kolm.json("monitor", "--once", f"--state={state}", *flags, code=3)))


def append(address: str, document: Any, key: SigningKey, data: Path) -> None:
    """As the services' owner."""
    token = token_file(data, OWNER).read_text().strip()
    with LedgerClient.connect(address, wait=PATIENCE, token=token) as client:
        client.append(sign_document(document, key).to_bytes())


def test_an_operator_that_never_logs_breaks_the_promise_that_its_customer_holds(staged: Told) -> None:
    assert staged.kolm.json("receipts", "promised", staged.file("silent"), code=3)["state"] == "BROKEN"
    assert staged.promised("log.tar.gz", "silent") == [3, "OVERDUE"]  # its dates may be ahead of the ledger's clock
    assert staged.promised("ahead.tar.gz", "silent") == [3, "BROKEN"]
    unknown = staged.verified("log.tar.gz", "--max-unreplayable=9", code=0)  # no other party sees anything
    assert unknown["kinds"]["receipt"] == 4


def test_an_operator_that_logs_late_is_overdue_until_then_and_keeps_its_promise_after(staged: Told) -> None:
    assert staged.unlogged == ("BROKEN", {"PROMISE": 1})
    assert staged.promised("early.tar.gz", "late") == [3, "OVERDUE"]
    assert staged.kolm.json("receipts", "promised", staged.file("late"))["state"] == "KEPT"
    assert staged.promised("log.tar.gz", "late")[1:] == ["KEPT"]


def test_an_operator_that_commits_to_random_bytes_is_caught_by_its_customer_at_once(staged: Told) -> None:
    assert staged.random.returncode not in (0, 2)
    outcomes = [each["outcome"] for each in json.loads(staged.audited.stdout)["verdicts"]]
    assert sorted(outcomes) == ["EXACT", "EXACT", "EXACT", "UNREPLAYABLE"]
    report = staged.verified("log.tar.gz", code=3)
    assert [check["number"] for check in report["checks"] if check["passed"] is False] == [14]


def test_an_operator_that_gives_the_model_other_words_is_caught_by_a_customer_with_its_tokenizer(
    staged: Told, model: Path
) -> None:
    mine, with_model = staged.file("words.json"), f"--model={model}"
    assert staged.stranger.json("verify", mine)["texts"] is None  # both commitments hold
    assert staged.stranger("verify", mine, with_model).returncode == 3
    computed = staged.stranger.json("replay", mine, with_model, code=3)
    assert (computed["outcome"], computed["texts"]) == ("EXACT", False)
    honest = ("verify", staged.file("receipt.json"), with_model)
    assert staged.stranger.json(*honest)["texts"] is True


def test_an_operator_that_is_away_when_audited_is_audited_from_the_log_alone(staged: Told) -> None:
    exact = [each for each in json.loads(staged.audited.stdout)["verdicts"] if each["outcome"] == "EXACT"]
    assert [each["replayed_by"] for each in exact] == ["auditor"] * 3
    assert staged.verified("log.tar.gz", "--max-unreplayable=1", code=0)["independent"] == 3


def test_an_operator_that_stops_its_clock_is_measured_by_the_verifier_s(staged: Told) -> None:
    stopped = ("--max-unreplayable=9",)
    assert staged.verified("unaudited.tar.gz", *stopped, "--as-of=log", code=0)["ok"]
    late = staged.verified("unaudited.tar.gz", *stopped, LONG_AFTER, code=3)
    assert [check["number"] for check in late["checks"] if check["passed"] is False] == [10]
    assert not staged.verified("log.tar.gz", *stopped, "--max-age=1h", code=3)["ok"]
    assert staged.owed == {"OVERDUE": 1}


def test_an_operator_that_swaps_the_model_after_receipting_gets_no_pass(staged: Told) -> None:
    """A receipt of a base that the auditor does not have is owed until its time is up; then nothing makes it a pass."""
    assert {each["outcome"] for each in staged.swapped["verdicts"]} == {"UNREPLAYABLE"}
    assert sum(each["reason"].startswith("base_cid: ") for each in staged.swapped["left"]) >= 2
    report = staged.verified("swapped.tar.gz", code=3)
    assert [check["number"] for check in report["checks"] if check["passed"] is False] == [14]
    late = staged.verified("swapped.tar.gz", "--max-unreplayable=9", LONG_AFTER, code=3)
    assert [check["number"] for check in late["checks"] if check["passed"] is False] == [10]
    assert staged.swapped_seen == {"UNREPLAYABLE": 1}


def test_an_operator_that_shows_two_histories_contradicts_any_checkpoint_that_was_kept(staged: Told) -> None:
    seen = f"--remember={staged.file('seen')}"
    assert staged.kolm("receipts", "list", "--prove", seen).returncode == 0
    refused = staged.forked("receipts", "list", "--prove", seen)
    assert refused.returncode == 3, refused.stdout
    assert staged.verified("fork.tar.gz", code=0)["ok"]  # it agrees with itself, and with a reader who kept nothing
    assert not staged.verified("fork.tar.gz", f"--checkpoint={staged.file('seen')}", code=3)["ok"]


def test_a_key_that_is_dropped_into_a_folder_is_refused_by_who_runs_and_is_no_reader_s_own(staged: Told) -> None:
    late = seeded_key(b"\x67" * 32, "auditor")
    late.publish(staged.folder / "fork/trusted")
    with pytest.raises(KolmError, match="trusted"):
        append(staged.forked.addresses.ledger, policy(0.25), late, staged.folder / "data")
    refused = next(check for check in staged.verified("intruded.tar.gz", code=3)["checks"] if check["passed"] is False)
    assert (refused["number"], INTRUDER.key_id in refused["detail"]) == (7, True)
    assert looked(staged.forked, staged.folder / "intruded.sqlite3")["INVALID"] == 1


def test_a_monitor_sees_what_was_promised_and_left_out_what_stands_still_and_what_is_forked(staged: Told) -> None:
    state = f"--state={staged.file('monitor.sqlite3')}"
    silent, late = (f"--promise={staged.file(name)}" for name in ("silent", "late"))
    seen = staged.kolm("monitor", "--once", state, silent, late, "--json")
    assert (seen.returncode, found(seen.stdout)) == (3, {"PROMISE": 1, "UNREPLAYABLE": 1}), seen.stderr
    still = staged.kolm("monitor", "--once", state, "--max-unreplayable=1", "--max-age=1s", "--json")
    assert (still.returncode, found(still.stdout)) == (3, {"STALE": 1})
    forked = staged.forked("monitor", "--once", state, "--max-unreplayable=1", "--json")
    assert (forked.returncode, found(forked.stdout)) == (3, {"FORK": 1}), forked.stderr


def found(output: str) -> dict[str, int]:
    """How many findings a monitor had, by their kind."""
    return dict(Counter(each["kind"] for each in json.loads(output)["findings"]))


def test_an_honest_answer_is_proven_by_two_files_of_its_customer(staged: Told) -> None:
    mine = ("verify", staged.file("receipt.json"), f"--promise={staged.file('honest')}")
    assert staged.stranger.json(*mine)["promises"][0]["request_id"]
    wrong = staged.stranger("verify", staged.file("receipt.json"), f"--promise={staged.file('silent')}")
    assert wrong.returncode == 3, wrong.stderr
