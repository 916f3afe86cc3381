"""Real processes, really killed: nothing acknowledged is lost or moved, and every head signed before stays a prefix."""

import base64
import signal
import subprocess
import sys
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledger.checkpoint import open_checkpoint
from ledger.entry import Entry, entry_hash
from ledger.envelope import Envelope
from ledger.merkle import Frontier, leaf_hash
from ledger.sequencer import Sequencer
from ledger.sql.store import SqliteEntryStore
from ledger.store import entries_from
from ledger.verification import verify_log
from tests.integration.ledger_store.crashing_writer import MOST_APPENDS
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, content, signed_receipt
from tests.unit.ledger.faulty_store import FAULTS

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Acknowledged:
    """What a client was told before the crash, and will never forget."""

    number: int
    index: int
    entry_hash: str
    checkpoint: bytes


def start(database: Path, first: int, *step: str) -> subprocess.Popen[str]:
    module = "tests.integration.ledger_store.crashing_writer"
    command = [sys.executable, "-m", module, str(database), str(first), *step]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def parse(line: str) -> Acknowledged:
    number, index, hashed, checkpoint = line.split()
    return Acknowledged(int(number), int(index), hashed, base64.b64decode(checkpoint))


def check_nothing_was_lost(database: Path, acknowledged: list[Acknowledged]) -> None:
    """Reopen as any start does, resend everything, then verify the whole log and every promise against it."""
    with closing(SqliteEntryStore.open(database)) as store:
        with closing(Sequencer(store, KEYS["log"], TRUSTED, ORIGIN)) as sequencer:
            futures = [(done, sequencer.append(signed_receipt(done.number))) for done in acknowledged]
            for done, future in futures:
                assert (future.result().index, future.result().entry_hash) == (done.index, done.entry_hash)
        entries = list(entries_from(store))
        report = verify_log(entries, store.latest_checkpoint(), TRUSTED, ORIGIN)
        assert report.ok, report.problem
        assert [store.content(done.index) for done in acknowledged] == [content(done.number) for done in acknowledged]
    check_promises(entries, acknowledged)


def check_promises(entries: list[bytes], acknowledged: list[Acknowledged]) -> None:
    frontier, roots = Frontier(), {0: Frontier().root()}
    for data in entries:
        frontier = frontier.append(leaf_hash(data))
        roots[frontier.size] = frontier.root()
    for done in acknowledged:
        assert entry_hash(entries[done.index]) == done.entry_hash
        assert Entry.from_bytes(entries[done.index]).envelope == Envelope.from_bytes(signed_receipt(done.number))
        head = open_checkpoint(done.checkpoint, [KEYS["log"].public], ORIGIN)
        assert head.size > done.index
        assert roots[head.size] == head.root


@pytest.mark.parametrize("step", FAULTS)
def test_a_process_killed_at_any_step_of_a_write_loses_nothing(tmp_path: Path, step: str) -> None:
    with start(tmp_path / "ledger.db", 0, step) as writer:
        assert writer.stdout is not None
        acknowledged = [parse(line) for line in writer.stdout]
    assert writer.returncode == -signal.SIGKILL
    assert len(acknowledged) >= 3
    check_nothing_was_lost(tmp_path / "ledger.db", acknowledged)


def test_a_process_killed_again_and_again_loses_nothing(tmp_path: Path) -> None:
    database, acknowledged = tmp_path / "ledger.db", list[Acknowledged]()
    for life, lines in enumerate((5, 40, 90)):
        with start(database, life * MOST_APPENDS) as writer:
            assert writer.stdout is not None
            acknowledged += [parse(writer.stdout.readline()) for _ in range(lines)]
            writer.kill()
            # What was written to the pipe before the kill was acknowledged too; the last line may be cut short.
            acknowledged += [parse(line) for line in writer.stdout if line.endswith("\n")]
        assert writer.returncode == -signal.SIGKILL
        check_nothing_was_lost(database, acknowledged)
