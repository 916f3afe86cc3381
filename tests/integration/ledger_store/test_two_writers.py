"""A writer killed at any step, and two concurrent writers: one log, and no acknowledged entry is lost."""

import base64
import signal
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.exc import OperationalError

from ledger.audit.log_verification import verify_log
from ledger.errors import LedgerError, Stopped, StoreLocked
from ledger.keys.envelope import Envelope
from ledger.log.sequencer import Sequencer
from ledger.log.store import entries_from
from ledger.sql.guard import SqlGuard
from ledger.sql.postgres import PostgresDatabase
from ledger.sql.store import SqlEntryStore
from ledger.tree.checkpoint import open_checkpoint
from ledger.tree.entry import Entry
from ledger.tree.merkle import Frontier, leaf_hash
from tests.forked import Forked
from tests.integration.ledger_store.crashing_writer import MOST_APPENDS, open_store
from tests.integration.ledger_store.writing import database, lose_the_lock, writing
from tests.unit.ledger.builders import KEYS, ORIGIN, TRUSTED, content, signed_receipt
from tests.unit.ledger.log.faulty_store import FAULTS
from tests.unit.ledger.log.memory_store import MemoryGuard


@pytest.fixture(params=["sqlite", "postgres"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Path | str:
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return tmp_path / "ledger.db"


def sequencer(store: SqlEntryStore, guard: SqlGuard | None = None) -> Sequencer:
    return Sequencer(store, KEYS["log"], TRUSTED, ORIGIN, guard=guard or MemoryGuard())


def test_a_second_writer_is_refused_and_told_who_writes(target: Path | str) -> None:
    with closing(SqlEntryStore.open(target)):
        with pytest.raises(StoreLocked):
            SqlEntryStore.open(target)
        with closing(SqlEntryStore.open_for_reading(target)) as reader:
            assert reader.size() == 0
    SqlEntryStore.open(target).close()


def test_two_links_to_one_database_have_one_writer(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link.db").symlink_to(tmp_path / "elsewhere/ledger.db")
    with closing(SqlEntryStore.open(tmp_path / "link.db")), pytest.raises(StoreLocked):
        SqlEntryStore.open(tmp_path / "elsewhere/ledger.db")
    with closing(SqlEntryStore.open(tmp_path / "elsewhere/ledger.db")), pytest.raises(StoreLocked):
        SqlEntryStore.open(tmp_path / "link.db")


def test_a_probe_of_a_writer_that_was_taken_over_says_so(target: Path | str) -> None:
    with closing(SqlEntryStore.open(target)) as first:
        first.probe()
        lose_the_lock(target)
        with closing(SqlEntryStore.open(target)) as second:
            with pytest.raises(StoreLocked):
                first.probe()
            second.probe()


def test_a_writer_gives_its_lock_up_as_it_closes(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SqlEntryStore.open(postgres_url)
    database = store._database
    assert isinstance(database, PostgresDatabase)
    writer = database._writer
    assert writer is not None
    with monkeypatch.context() as patched:
        patched.setattr(writer, "dispose", lambda: None)  # as if the server took its time to end the session
        store.close()
    SqlEntryStore.open(postgres_url).close()
    writer.dispose()


def test_of_a_writer_that_was_killed_the_lock_is_waited_for(postgres_url: str) -> None:
    """The server holds it until it has noticed: here, once a session waits."""
    engine = create_engine(postgres_url, isolation_level="AUTOCOMMIT")

    def notice() -> None:
        with engine.connect() as server:
            while not server.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar():
                pass
            server.execute(text("SELECT pg_terminate_backend(:killed)"), {"killed": killed})

    with suppress(OperationalError), engine.connect() as dying:  # its connection is gone when it closes
        dying.execute(text("SELECT pg_advisory_lock(hashtext('kolm'), hashtext('ledger'))"))
        killed = dying.execute(text("SELECT pg_backend_pid()")).scalar()
        noticing = threading.Thread(target=notice)
        noticing.start()
        SqlEntryStore.open(postgres_url).close()
        noticing.join()
    engine.dispose()


def test_a_writer_whose_lock_was_lost_can_never_write_again(target: Path | str) -> None:
    with ExitStack() as stack:
        old = stack.enter_context(closing(SqlEntryStore.open(target)))
        old_sequencer = stack.enter_context(closing(sequencer(old)))
        acknowledged = [old_sequencer.append(signed_receipt(number)).result() for number in range(3)]
        lose_the_lock(target)
        new = stack.enter_context(closing(SqlEntryStore.open(target)))
        new_sequencer = stack.enter_context(closing(sequencer(new)))
        with pytest.raises((StoreLocked, Stopped)):  # it may have noticed before
            old_sequencer.append(signed_receipt(10)).result()
        with pytest.raises(Stopped):
            old_sequencer.append(signed_receipt(11))
        assert isinstance(old_sequencer.failure, StoreLocked)
        with pytest.raises(StoreLocked):
            old.record_checkpoint(99, b"late")
        assert [new_sequencer.append(signed_receipt(number)).result().index for number in range(5)] == [0, 1, 2, 3, 4]
        entries = list(entries_from(new))
        report = verify_log(entries, new.latest_checkpoint(), TRUSTED, ORIGIN)
        assert (report.ok, report.size) == (True, 5)
        assert entries[:3] == [answer.entry for answer in acknowledged]


def test_two_sequencers_on_copies_of_one_database_make_no_fork_of_signed_heads(
    target: Path | str, tmp_path: Path
) -> None:
    """Not even the fence helps here: the two write to different databases. They share the guard."""
    guard_file = tmp_path / "guard.db"
    with ExitStack() as stack:
        first, second = (
            stack.enter_context(closing(SqlEntryStore.open(place))) for place in (target, tmp_path / "copy.db")
        )
        guard = stack.enter_context(closing(SqlGuard.open(guard_file)))
        lose_the_lock(guard_file)
        other_guard = stack.enter_context(closing(SqlGuard.open(guard_file)))
        one = stack.enter_context(closing(sequencer(first, guard)))
        two = stack.enter_context(closing(sequencer(second, other_guard)))
        one.append(signed_receipt(1)).result()
        with pytest.raises(LedgerError, match="guard"):
            two.append(signed_receipt(2)).result()
        assert two.board.latest().size == 0
        assert guard.read(ORIGIN) == one.board.latest().checkpoint


def test_a_database_that_drops_its_connections_fails_one_batch_at_most(postgres_url: str) -> None:
    with writing(postgres_url) as (_, running), database(postgres_url, isolation_level="AUTOCOMMIT") as engine:
        running.append(signed_receipt(0)).result()
        with engine.connect() as connection:
            others = "pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            assert connection.execute(text(f"SELECT count(pg_terminate_backend(pid, 5000)) FROM {others}")).scalar()
        assert [running.append(signed_receipt(number)).result().index for number in range(3)] == [0, 1, 2]


def test_commits_wait_for_the_disk_whatever_the_server_does_by_default(postgres_url: str) -> None:
    for default, expected in (("off", "on"), ("remote_apply", "remote_apply")):
        with database(postgres_url, isolation_level="AUTOCOMMIT") as engine, engine.connect() as connection:
            name = connection.execute(text("SELECT current_database()")).scalar()
            connection.execute(text(f"ALTER DATABASE {name} SET synchronous_commit = {default}"))
        with closing(SqlEntryStore.open(postgres_url)) as store:
            settings = []
            for durable in (True, False, True):
                with store._database.writing(durable=durable) as connection:
                    settings.append(connection.execute(text("SHOW synchronous_commit")).scalar())
            assert settings == [expected, "off", expected]


@dataclass(frozen=True)
class Acknowledged:
    """The answers that a client got before the crash; they have to hold after it."""

    number: int
    index: int
    checkpoint: bytes


@pytest.fixture
def guard(tmp_path: Path) -> Path:
    return tmp_path / "guard.db"


def start(target: Path | str, guard: Path, first: int, *step: str) -> Forked:
    return Forked("tests.integration.ledger_store.crashing_writer", str(target), str(guard), str(first), *step)


def parse(line: str) -> Acknowledged:
    number, index, checkpoint = line.split()
    return Acknowledged(int(number), int(index), base64.b64decode(checkpoint))


def check_nothing_was_lost(target: Path | str, guard: Path, acknowledged: list[Acknowledged]) -> None:
    """Reopen as any start does, resend everything, then verify the whole log and every promise against it."""
    with closing(opened(target, guard.with_name("keys.db"))) as store, closing(SqlGuard.open(guard)) as watch:
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


def opened(target: Path | str, keys: Path) -> SqlEntryStore:
    """PostgreSQL notices a killed client when it next talks to it, which takes a moment."""
    for _ in range(200):
        with suppress(StoreLocked):
            return open_store(str(target), keys)
        threading.Event().wait(0.05)
    return open_store(str(target), keys)


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
def test_a_process_killed_at_any_step_of_a_write_loses_nothing(target: Path | str, guard: Path, step: str) -> None:
    with start(target, guard, 0, step) as writer:
        acknowledged = [parse(line) for line in writer.stdout]
        writer.wait()
    assert writer.returncode == -signal.SIGKILL
    assert len(acknowledged) >= 3
    check_nothing_was_lost(target, guard, acknowledged)


def live(target: Path | str, guard: Path, life: int, lines: int) -> list[Acknowledged]:
    """The answers of a process until it is killed after so many lines, while four callers append."""
    with start(target, guard, life * MOST_APPENDS) as writer:
        acknowledged = [parse(writer.stdout.readline()) for _ in range(lines)]
        writer.kill()
        # Lines written to the pipe before the kill were acknowledged too; the last one may be cut short.
        acknowledged += [parse(line) for line in writer.stdout if line.endswith("\n")]
    assert writer.returncode == -signal.SIGKILL
    return acknowledged


@pytest.mark.parametrize("lives", [
    (5, 40, 90), pytest.param([5 + 7 * life % 60 for life in range(40)], marks=pytest.mark.long),
])  # fmt: skip
def test_a_process_killed_again_and_again_loses_nothing(target: Path | str, guard: Path, lives: Sequence[int]) -> None:
    acknowledged = list[Acknowledged]()
    for life, lines in enumerate(lives):
        acknowledged += live(target, guard, life, lines)
        check_nothing_was_lost(target, guard, acknowledged)
