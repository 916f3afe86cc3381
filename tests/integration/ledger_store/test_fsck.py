"""fsck finds every change and names its row, and finds nothing in a sound database."""

import hashlib
import pickle
import random
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import pytest

from ledger.documents.content import Content
from ledger.documents.erasure import Expiry
from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import sign_document, sign_rotation
from ledger.errors import FormatError, NotFound, StoreDamaged
from ledger.fsck import MOST_FINDINGS, Depth, FsckReport, Inspection, fsck
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.admission import Admitted
from ledger.log.content_seal import ContentKey, unseal
from ledger.log.recovery import recover
from ledger.log.store import Row
from ledger.sql.contents import SqlContentKeys
from ledger.sql.guard import SqlGuard
from ledger.sql.inspection import SqlInspection
from ledger.sql.store import SqlEntryStore
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.merkle import EMPTY_ROOT
from tests.examples import examples
from tests.integration.ledger_store.writing import execute, writing
from tests.keys import seeded_key
from tests.unit.ledger.builders import (
    KEYS,
    ORIGIN,
    STRANGER,
    TRUSTED,
    at,
    content,
    erasure,
    expiry,
    halt,
    key_entry,
    receipt,
    retention,
    signed,
    signed_receipt,
    verdict,
)
from tests.unit.ledger.log.memory_store import MemoryGuard

TABLES = ("leaves", "receipts", "verdicts", "contents", "erasures", "tiles", "checkpoints")


def fill(target: Path | str, guard: Path) -> None:
    """Receipts 0 to 299 with content, then a verdict, a halt and a key: two tiles of leaves, and one above."""
    documents = [verdict(7, 7, "DEVIATION"), halt(300), key_entry("log")]
    with writing(target, guard.with_name("keys.db"), guard) as (_, sequencer):
        futures = [sequencer.append(signed_receipt(number), content(number)) for number in range(300)]
        for future in futures:
            future.result()
        for document in documents:
            sequencer.append(signed(document)).result()


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ledger")
    fill(folder / "ledger.db", folder / "guard.db")
    return folder


@pytest.fixture
def path(filled: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    for name in ("ledger.db", "keys.db"):
        with closing(sqlite3.connect(filled / name)) as source, closing(sqlite3.connect(tmp_path / name)) as copy:
            source.backup(copy)
    return tmp_path / "ledger.db"


def guarded(folder: Path) -> Sequence[Checkpoint]:
    with closing(SqlGuard.open_for_reading(folder / "guard.db")) as guard:
        return guard.heads()


def ahead(work: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
    """As several processes do it: all jobs are taken before a result is asked for, and travel."""
    travelling = [pickle.dumps(job) for job in jobs]
    return (pickle.loads(pickle.dumps(work(pickle.loads(job)))) for job in travelling)


def check(
    target: Path | str, depth: Depth, heads: Sequence[Checkpoint] = (), keys: Path | None = None, spread: Any = map
) -> FsckReport:
    if isinstance(target, Path) and keys is None:
        keys = target.with_name("keys.db")
    with closing(SqlInspection.open(target, keys if keys and keys.is_file() else None)) as inspection:
        return fsck(inspection, TRUSTED, depth, guarded=heads, origin=ORIGIN, spread=spread)


def places(report: FsckReport) -> list[tuple[str, object]]:
    return [(finding.table, finding.row) for finding in report.findings]


def tamper(path: Path, statement: str) -> None:
    """As an attacker with the file would: triggers gone first, and back again at the end."""
    with closing(sqlite3.connect(path)) as connection, connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
        connection.executescript(statement)
        for _, made_by in triggers:
            connection.execute(made_by)


@pytest.mark.parametrize("depth", list(Depth))
def test_a_good_ledger_passes(filled: Path, path: Path, depth: Depth) -> None:
    report = check(path, depth, guarded(filled))
    assert (report.findings, report.size, report.unsigned) == ((), 303, 0)


def test_a_good_ledger_passes_on_postgresql_and_a_bad_one_does_not(postgres_url: str, tmp_path: Path) -> None:
    fill(postgres_url, tmp_path / "guard.db")
    assert check(postgres_url, Depth.DEEP, guarded(tmp_path), tmp_path / "keys.db").findings == ()
    execute(postgres_url, "UPDATE receipts SET method = 'rest' WHERE index = 5", "DELETE FROM tiles WHERE level = 1")
    assert {("receipts", 5), ("tiles", "1/0")} <= set(places(check(postgres_url, Depth.STRUCTURE)))


def test_an_empty_ledger_passes(tmp_path: Path) -> None:
    SqlEntryStore.open(tmp_path / "ledger.db").close()
    assert check(tmp_path / "ledger.db", Depth.DEEP).ok


def test_what_is_no_ledger_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        SqlInspection.open(tmp_path / "ledger.db")
    (tmp_path / "text").write_bytes(b"certainly not a database" * 100)
    with pytest.raises(StoreDamaged):
        SqlInspection.open(tmp_path / "text")


def test_a_running_ledger_can_be_checked(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with writing(path, guard=tmp_path / "guard.db") as (_, sequencer):
        for size in range(1, 12):
            futures = [sequencer.append(signed_receipt(number)) for number in range(size * 5)]
            heads = guarded(tmp_path)
            assert check(path, Depth.STRUCTURE, heads).ok
            for future in futures:
                future.result()


def test_an_erasure_during_a_check_is_no_finding(path: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.db"
    with writing(path, keys) as (_, sequencer), closing(SqlInspection.open(path, keys)) as inspection:
        sequencer.append(signed(erasure(7, 7))).result()
        assert fsck(inspection, TRUSTED, Depth.DEEP, origin=ORIGIN).findings == ()


def test_entries_of_a_crash_are_no_fault_and_are_counted(path: Path) -> None:
    tamper(path, "DELETE FROM checkpoints WHERE size = 303")
    report = check(path, Depth.DEEP)
    assert (report.ok, report.unsigned) == (True, 1)


QUICK, STRUCTURE, DEEP = Depth.QUICK, Depth.STRUCTURE, Depth.DEEP


CHANGES = [
    ('DELETE FROM leaves WHERE "index" = 302', QUICK, ("checkpoints", 303)),
    ('DELETE FROM leaves WHERE "index" = 9', QUICK, ("leaves", None)),
    ('DELETE FROM leaves WHERE "index" = 9', STRUCTURE, ("leaves", 10)),
    ("UPDATE checkpoints SET note = x'00' WHERE size = 303", QUICK, ("checkpoints", 303)),
    ("UPDATE tiles SET hashes = zeroblob(32) WHERE level = 1", QUICK, ("checkpoints", 303)),
    ("DELETE FROM tiles WHERE level = 0 AND number = 1", QUICK, ("guard", None)),
    ("DELETE FROM tiles WHERE level = 0 AND number = 0", STRUCTURE, ("tiles", "0/0")),
    ("UPDATE tiles SET hashes = zeroblob(8192) WHERE number = 0 AND level = 0", STRUCTURE, ("tiles", "0/0")),
    ("INSERT INTO tiles VALUES (0, 2, x'00')", STRUCTURE, ("tiles", "0/2")),
    ("UPDATE leaves SET kind = 'halt' WHERE \"index\" = 3", STRUCTURE, ("leaves", 3)),
    ("UPDATE leaves SET envelope_digest = x'00' WHERE \"index\" = 3", STRUCTURE, ("leaves", 3)),
    ("UPDATE leaves SET entry = x'00' WHERE \"index\" = 3", STRUCTURE, ("leaves", 3)),
    ("UPDATE leaves SET entry = 'text' WHERE \"index\" = 3", STRUCTURE, ("leaves", 3)),
    ("UPDATE receipts SET tenant = 'you' WHERE \"index\" = 3", STRUCTURE, ("receipts", 3)),
    ('DELETE FROM receipts WHERE "index" = 3', STRUCTURE, ("receipts", 3)),
    ('UPDATE receipts SET "index" = 301 WHERE "index" = 3', STRUCTURE, ("receipts", 301)),
    ('UPDATE receipts SET "index" = 999 WHERE "index" = 3', STRUCTURE, ("receipts", 999)),
    ('UPDATE receipts SET "index" = -1 WHERE "index" = 3', STRUCTURE, ("receipts", -1)),
    ("UPDATE verdicts SET outcome = 'EXACT'", STRUCTURE, ("verdicts", 300)),
    ("INSERT INTO verdicts VALUES (5, 'a', 3, 'EXACT')", STRUCTURE, ("verdicts", 5)),
    ("UPDATE contents SET sealed = zeroblob(99) WHERE receipt_index = 7", DEEP, ("contents", 7)),
    ("UPDATE contents SET sealed = x'00' WHERE receipt_index = 7", DEEP, ("contents", 7)),
    ("UPDATE contents SET sealed = 'text' WHERE receipt_index = 7", DEEP, ("contents", 7)),
    ("UPDATE contents SET key_id = x'0102' WHERE receipt_index = 7", DEEP, ("contents", 7)),
    (  # sealed for another receipt, with a key that is there
        "UPDATE contents SET (key_id, sealed) = (SELECT key_id, sealed FROM contents WHERE receipt_index = 8) "
        "WHERE receipt_index = 7",
        DEEP,
        ("contents", 7),
    ),
    ("UPDATE contents SET receipt_index = 301 WHERE receipt_index = 7", DEEP, ("contents", 301)),
    ("INSERT INTO erasures VALUES (7, 301)", STRUCTURE, ("erasures", 7)),
    ("INSERT INTO erasures VALUES (7, 303)", STRUCTURE, ("erasures", 7)),
    ("INSERT INTO erasures VALUES (300, 301)", STRUCTURE, ("erasures", 300)),
    ("INSERT INTO erasures VALUES (999, 301)", STRUCTURE, ("erasures", 999)),
    ("UPDATE checkpoints SET size = 302 + 5 WHERE size = 301", STRUCTURE, ("checkpoints", 307)),
    (
        "UPDATE checkpoints SET note = (SELECT note FROM checkpoints WHERE size = 302) WHERE size = 301",
        STRUCTURE,
        ("checkpoints", 301),
    ),
]


@pytest.mark.parametrize(("statement", "depth", "place"), CHANGES)
def test_what_was_changed_is_found_and_the_row_named(
    path: Path, statement: str, depth: Depth, place: tuple[str, object]
) -> None:
    tamper(path, statement)
    report = check(path, depth)
    assert place in places(report)
    assert check(path, depth, spread=ahead) == report
    if depth == DEEP:
        assert check(path, STRUCTURE).ok
    else:
        assert not check(path, DEEP).ok


def test_a_document_signed_by_a_stranger_is_found_by_the_deep_check_alone(tmp_path: Path) -> None:
    """Chain, tiles, rows and checkpoint were made by an attacker with the log's key alone."""
    path, document = tmp_path / "ledger.db", receipt(1)
    data = sign_document(document, STRANGER).to_bytes()
    with closing(SqlEntryStore.open(path)) as store:
        writer = recover(store, KEYS["log"], TRUSTED, ORIGIN, MemoryGuard())
        writer.write([Admitted(data, hashlib.sha256(data).digest(), document, None)])
    assert check(path, Depth.STRUCTURE).ok
    assert places(check(path, Depth.DEEP)) == [("leaves", 0)]


def test_a_reader_who_trusts_the_log_s_replaced_key_trusts_its_successor(tmp_path: Path) -> None:
    path, old, new = tmp_path / "ledger.db", KEYS["log"], seeded_key(b"\x55" * 32, "log")
    rotation = sign_rotation(KeyEntry("log", new.public, at(1), replaces=old.key_id), new, old).to_bytes()
    both, watch = TrustedKeys.of(*KEYS.values(), new), tmp_path / "guard.db"
    for key, envelopes in ((old, (signed_receipt(0),)), (new, (rotation, signed_receipt(1)))):
        with writing(path, guard=watch, key=key, trusted=both) as (_, sequencer):
            for envelope in envelopes:
                sequencer.append(envelope).result()
    assert [check(path, depth, guarded(tmp_path)).findings for depth in Depth] == [(), (), ()]
    (head,) = guarded(tmp_path)
    tamper(path, f"UPDATE checkpoints SET note = x'{sign_checkpoint(head, old).hex()}' WHERE size = 3")
    assert [set(places(check(path, depth))) for depth in Depth] == 3 * [{("checkpoints", 3)}]


def test_content_of_an_erased_receipt_is_a_finding(path: Path, tmp_path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        kept = connection.execute("SELECT * FROM contents WHERE receipt_index = 7").fetchone()
    with writing(path, tmp_path / "keys.db") as (_, running):
        running.append(signed(erasure(7, 7))).result()
    assert check(path, Depth.DEEP).ok
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("INSERT INTO contents VALUES (?, ?, ?)", kept)
    gone, there = check(path, Depth.DEEP).findings
    assert gone.problem.startswith("key_id: ")
    assert (there.table, there.row, "entry 303" in there.problem) == ("contents", 7, True)


def test_a_lost_or_changed_row_of_an_erasure_is_found(path: Path, tmp_path: Path) -> None:
    with writing(path, tmp_path / "keys.db") as (store, running):
        running.append(signed(erasure(7, 7))).result()
        running.append(signed(retention(30))).result()
        running.append(signed(expiry(304, 9, issued_before=at(100), issued_at=at(86_400 * 31)))).result()
        assert [store.erased_by(index) for index in range(6, 10)] == [305, 303, 305, None]
    assert check(path, STRUCTURE).ok
    for statement in (
        "DELETE FROM erasures WHERE receipt_index = 7",
        "UPDATE erasures SET erasure_index = 305 WHERE receipt_index = 7",
        "UPDATE erasures SET erasure_index = 302 WHERE receipt_index = 7",
        "UPDATE erasures SET receipt_index = 9 WHERE receipt_index = 8",
    ):
        copy = tmp_path / "changed.db"
        copy.unlink(missing_ok=True)
        with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(copy)) as target:
            source.backup(target)
        tamper(copy, statement)
        assert {finding.table for finding in check(copy, STRUCTURE).findings} == {"erasures"}, statement


def test_a_guard_ahead_or_of_a_fork_is_a_finding(filled: Path) -> None:
    (head,) = guarded(filled)
    for changed in (Checkpoint(ORIGIN, 304, head.root), Checkpoint(ORIGIN, 303, bytes(32))):
        report = check(filled / "ledger.db", Depth.QUICK, [Checkpoint("other.example/log", 9, bytes(32)), changed])
        assert places(report) == [("guard", None)]
    for harmless in (Checkpoint("other.example/log", 999, bytes(32)), Checkpoint(ORIGIN, 0, EMPTY_ROOT)):
        assert check(filled / "ledger.db", Depth.QUICK, [harmless]).ok


def test_no_more_findings_than_the_limit_are_listed(filled: Path) -> None:
    (head,) = guarded(filled)
    others = [Checkpoint(ORIGIN, size, bytes(32)) for size in range(1, MOST_FINDINGS + 9)]
    with closing(SqlInspection.open(filled / "ledger.db", filled / "keys.db")) as inspection:
        report = fsck(inspection, TRUSTED, Depth.QUICK, guarded=[head], witnessed=others, origin=ORIGIN)
    assert places(report) == [("witnessed", size) for size in range(1, MOST_FINDINGS + 1)]


def test_a_page_that_was_overwritten_is_found(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    data = bytearray(path.read_bytes())
    for page in range(20, len(data) // 16384, 9):
        broken = data[: page * 16384] + b"\xa5" * 64 + data[page * 16384 + 64 :]
        path.write_bytes(broken)
        assert not check(path, Depth.DEEP).ok


def test_a_schema_that_is_no_text_any_more_is_the_store_s_error(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.execute("PRAGMA journal_mode=DELETE")
    data = path.read_bytes()
    assert b"INDEX receipts_by_method " in data
    path.write_bytes(data.replace(b"INDEX receipts_by_method ", b"INDEX receipts_\xe9y_method "))
    for opening in (SqlInspection.open, SqlEntryStore.open):
        with pytest.raises(StoreDamaged):
            opening(path)


class Recorded:
    """An Inspection of rows in memory, of which one may be changed."""

    def __init__(self, rows: dict[str, list[dict[str, Any]]], key: ContentKey) -> None:
        self.tables = rows
        self.key = key

    def schema(self) -> Sequence[str]:
        return ()

    def extent(self) -> tuple[int, int]:
        return len(self.tables["leaves"]), self.tables["leaves"][-1]["index"] + 1

    def key_entries(self) -> Iterator[tuple[int, object]]:
        return ((row["index"], row["entry"]) for row in self.rows("leaves") if row["kind"] == "key")

    def newest_checkpoint(self) -> Row | None:
        return max(self.tables["checkpoints"], key=lambda row: row["size"])

    def rows(self, table: str, first: int | None = None, last: int | None = None) -> Iterator[Row]:
        for row in sorted(self.tables[table], key=lambda row: next(iter(row.values()))):
            key = next(iter(row.values()))
            if (first is None or first <= key) and (last is None or key <= last):
                yield row

    def tile(self, level: int, number: int) -> bytes:
        tiles = {(row["level"], row["number"]): row["hashes"] for row in self.tables["tiles"]}
        if (level, number) not in tiles:
            raise NotFound(f"no tile {level}/{number}")
        return bytes(tiles[level, number])

    def content(self, row: Row, receipt_id: str) -> Content | None:
        if row["key_id"] != self.key.key_id:
            raise FormatError("key_id", "its key is gone")
        return unseal(row["sealed"], receipt_id, self.key)

    def expired(self, expiry: Expiry) -> Sequence[int]:
        return ()

    def damage(self) -> Sequence[str]:
        return ()


def flips(value: Any) -> Iterator[Any]:
    """The value with each of its bytes changed in turn; a number with each of its lowest bits."""
    if isinstance(value, int):
        yield from (value ^ 1 << bit for bit in range(3))
    if isinstance(value, bytes):
        yield from (value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :] for at in range(len(value)))
    if isinstance(value, str):
        yield from (value[:at] + chr(ord(value[at]) ^ 1) + value[at + 1 :] for at in range(len(value)))
    if value is None:
        yield "something"


@pytest.mark.slow
def test_every_byte_that_is_changed_anywhere_is_found(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with writing(path, tmp_path / "keys.db") as (_, sequencer):
        sequencer.append(signed_receipt(0), content(0)).result()
        sequencer.append(signed(verdict(0, 0))).result()
        sequencer.append(signed_receipt(1), content(1)).result()
        sequencer.append(signed(erasure(2, 1))).result()
    with closing(SqlInspection.open(path)) as inspection:
        tables = {table: [dict(row) for row in inspection.rows(table)] for table in TABLES}
    with closing(SqlContentKeys.open_for_reading(tmp_path / "keys.db")) as keys:
        key = keys.find(tables["contents"][0]["key_id"])
    assert key is not None
    recorded, tried = Recorded(tables, key), 0
    assert fsck(cast(Inspection, recorded), TRUSTED, Depth.DEEP).ok
    for table in TABLES:
        for row in tables[table]:
            for column, value in list(row.items()):
                every = list(flips(value))
                for changed in random.sample(every, min(len(every), examples(len(every)))):
                    row[column], tried = changed, tried + 1
                    report = fsck(cast(Inspection, recorded), TRUSTED, Depth.DEEP)
                    assert not report.ok, (table, column, changed)
                row[column] = value
    assert tried > examples(4_000)
