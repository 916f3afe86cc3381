"""Real processes, really killed: nothing acknowledged is lost or moved, and every head signed before stays a prefix."""

import base64
import signal
import threading
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from ledger.audit.log_verification import verify_log
from ledger.errors import StoreLocked
from ledger.keys.envelope import Envelope
from ledger.log.sequencer import Sequencer
from ledger.log.store import entries_from
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from ledger.tree.checkpoint import open_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import Frontier, leaf_hash
from tests.forked import Forked
from tests.integration.ledger_store.crashing_writer import MOST_APPENDS, TILED_FAULTS, open_store
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, content, signed_receipt
from tests.unit.ledger.log.faulty_store import FAULTS


@dataclass(frozen=True)
class Acknowledged:
    """The answers that a client got before the crash; they have to hold after it."""

    number: int
    index: int
    checkpoint: bytes


STORES = {
    "sqlite": "{folder}/ledger.db",
    "postgres": "{postgres}",
    "folder": "{folder}/index.db + file://{folder}/log",
    "bucket": "{folder}/index.db + {s3}",
    "folder and postgres": "{postgres} + file://{folder}/log",
    "bucket and postgres": "{postgres} + {s3}",
}
"""What `crashing_writer.open_store` opens."""


def named(store: str, request: pytest.FixtureRequest, folder: Path) -> str:
    places = {"postgres": "postgres_url", "s3": "s3_url"}
    needed = {name: request.getfixturevalue(fixture) for name, fixture in places.items() if name in STORES[store]}
    return STORES[store].format(folder=folder, **needed)


@pytest.fixture(params=["sqlite", "postgres", "folder", "bucket and postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return named(request.param, request, tmp_path)


@pytest.fixture(params=["folder", "bucket", "folder and postgres"])
def tiled(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return named(request.param, request, tmp_path)


@pytest.fixture
def guard(tmp_path: Path) -> Path:
    return tmp_path / "guard.db"


def start(database: str, guard: Path, first: int, *step: str) -> Forked:
    return Forked("tests.integration.ledger_store.crashing_writer", database, str(guard), str(first), *step)


def parse(line: str) -> Acknowledged:
    number, index, checkpoint = line.split()
    return Acknowledged(int(number), int(index), base64.b64decode(checkpoint))


def check_nothing_was_lost(database: str, guard: Path, acknowledged: list[Acknowledged]) -> None:
    """Reopen as any start does, resend everything, then verify the whole log and every promise against it."""
    with closing(opened(database, guard.with_name("keys.db"))) as store, closing(SqlGuard.open(guard)) as watch:
        with closing(Sequencer(store, KEYS["log"], TRUSTED, ORIGIN, guard=watch)) as sequencer:
            futures = [(done, sequencer.append(signed_receipt(done.number))) for done in acknowledged]
            for done, future in futures:
                assert future.result().index == done.index
        entries = list(entries_from(store))
        report = verify_log(entries, store.latest_checkpoint(), TRUSTED, ORIGIN)
        assert report.ok, report.problem
        assert watch.read(ORIGIN) == sequencer.board.latest().checkpoint
        assert [store.content(done.index) for done in acknowledged] == [content(done.number) for done in acknowledged]
    check_promises(entries, acknowledged)


def opened(database: str, keys: Path) -> SqlEntryStore:
    """PostgreSQL notices a killed client when it next talks to it, which takes a moment."""
    for _ in range(200):
        with suppress(StoreLocked):
            return open_store(database, keys)
        threading.Event().wait(0.05)
    return open_store(database, keys)


def check_promises(entries: list[bytes], acknowledged: list[Acknowledged]) -> None:
    frontier, roots = Frontier(), {0: Frontier().root()}
    for data in entries:
        frontier = frontier.append(leaf_hash(data))
        roots[frontier.size] = frontier.root()
    for done in acknowledged:
        assert Entry.from_bytes(entries[done.index]).envelope == Envelope.from_bytes(signed_receipt(done.number))
        head = open_checkpoint(done.checkpoint, [KEYS["log"].public], ORIGIN)
        assert head.size > done.index
        assert roots[head.size] == head.root


@pytest.mark.parametrize("step", FAULTS)
def test_a_process_killed_at_any_step_of_a_write_loses_nothing(database: str, guard: Path, step: str) -> None:
    with start(database, guard, 0, step) as writer:
        acknowledged = [parse(line) for line in writer.stdout]
        writer.wait()
    assert writer.returncode == -signal.SIGKILL
    assert len(acknowledged) >= 3
    check_nothing_was_lost(database, guard, acknowledged)


@pytest.mark.parametrize("step", TILED_FAULTS)
def test_a_process_killed_while_it_writes_files_loses_nothing(tiled: str, guard: Path, step: str) -> None:
    test_a_process_killed_at_any_step_of_a_write_loses_nothing(tiled, guard, step)


def live(database: str, guard: Path, life: int, lines: int) -> list[Acknowledged]:
    """What a process acknowledges until it is killed after so many lines, while four callers append."""
    with start(database, guard, life * MOST_APPENDS) as writer:
        acknowledged = [parse(writer.stdout.readline()) for _ in range(lines)]
        writer.kill()
        # Lines written to the pipe before the kill were acknowledged too; the last one may be cut short.
        acknowledged += [parse(line) for line in writer.stdout if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    return acknowledged


def test_a_process_killed_again_and_again_loses_nothing(database: str, guard: Path) -> None:
    acknowledged = list[Acknowledged]()
    for life, lines in enumerate((5, 40, 90)):
        acknowledged += live(database, guard, life, lines)
        check_nothing_was_lost(database, guard, acknowledged)


@pytest.mark.long
def test_forty_kills_lose_nothing_and_double_nothing(database: str, guard: Path) -> None:
    acknowledged = list[Acknowledged]()
    for life in range(40):
        acknowledged += live(database, guard, life, 5 + 7 * life % 60)
    check_nothing_was_lost(database, guard, acknowledged)
