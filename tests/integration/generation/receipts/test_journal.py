"""The journal's file: what a crash at any byte, a failing disk or damaged bytes leave."""

import asyncio
import os
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kolm.ledger.v1 import ledger_pb2
from ledger import durable_file
from services.generation.receipts import journal as module
from services.generation.receipts.journal import Journal, Kind, Record
from tests.integration.generation.deployment import until

PROMISED, WAITING = Kind.PROMISED, Kind.WAITING


def append(text: str) -> ledger_pb2.AppendEntryRequest:
    return ledger_pb2.AppendEntryRequest(envelope=text.encode())


def full(*_: object, **__: object) -> int:
    raise OSError(28, "No space left on device")


def left_in(folder: Path) -> list[tuple[str, bytes]]:
    """The records that the next start finds."""
    return [(receipt_id, request.envelope) for receipt_id, request in Journal(folder).recover().items()]


def opened(folder: Path) -> Journal:
    journal = Journal(folder)
    journal.recover()
    return journal


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


async def test_what_is_kept_is_found_again_in_order_and_what_is_settled_is_not(folder: Path) -> None:
    journal = opened(folder)
    for number in range(12):
        await journal.keep(WAITING, {f"r{number}": append(f"{number}")})
    journal.settle("r3")
    await journal.written()
    assert left_in(folder) == [(f"r{n}", b"%d" % n) for n in range(12) if n != 3]


async def test_a_receipt_takes_the_place_of_its_promise_and_other_promises_come_last(folder: Path) -> None:
    journal = opened(folder)
    await journal.keep(PROMISED, {"one": append("no output"), "two": append("no output")})
    await journal.keep(WAITING, {"three": append("whole")})
    await journal.keep(WAITING, {"one": append("whole")})
    assert left_in(folder) == [("three", b"whole"), ("one", b"whole"), ("two", b"no output")]


async def test_a_crash_at_any_byte_leaves_whole_records_alone(folder: Path, tmp_path: Path) -> None:
    journal = opened(folder)
    ends = [0]
    for number in range(4):
        await journal.keep(WAITING, {f"r{number}": append(f"receipt {number}")})
        ends.append((folder / "journal").stat().st_size)
    data = (folder / "journal").read_bytes()
    for cut in range(len(data) + 1):
        there = tmp_path / f"cut {cut}"
        there.mkdir()
        (there / "journal").write_bytes(data[:cut] + bytes(cut % 3))  # some file systems make room first
        whole = sum(end <= cut for end in ends) - 1
        assert left_in(there) == [(f"r{n}", f"receipt {n}".encode()) for n in range(whole)]
        assert [path.name for path in there.iterdir()] == ["journal"]
        assert len((there / "journal").read_bytes()) == ends[whole]  # a cut-off record may hold a prompt


async def test_a_damaged_record_is_kept_aside_and_does_not_hold_up_the_others(folder: Path, tmp_path: Path) -> None:
    journal = opened(folder)
    for number in range(3):
        await journal.keep(WAITING, {f"r{number}": append(f"receipt {number}")})
    data = (folder / "journal").read_bytes()
    size = len(data) // 3
    for at in range(size, 2 * size):  # its checksum, its lengths, its name, its payload
        there = tmp_path / f"damaged {at}"
        there.mkdir()
        damaged = data[:at] + bytes([data[at] ^ 0x41]) + data[at + 1 :]
        (there / "journal").write_bytes(damaged)
        assert left_in(there) == [("r0", b"receipt 0"), ("r2", b"receipt 2")]
        (aside,) = there.glob("*.damaged")
        assert aside.read_bytes() == damaged
        assert left_in(there) == [("r0", b"receipt 0"), ("r2", b"receipt 2")]


async def test_records_that_come_while_the_disk_is_busy_share_one_fsync(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(folder)
    synced: list[int] = []
    fsync = os.fsync
    monkeypatch.setattr(module.os, "fsync", lambda file: (synced.append(file), fsync(file)))
    await asyncio.gather(*(journal.keep(WAITING, {f"r{n}": append(f"{n}")}) for n in range(50)))
    assert len(synced) <= 2
    assert len(left_in(folder)) == 50


async def test_other_threads_of_the_event_loop_do_not_delay_a_promise(folder: Path) -> None:
    journal, door, loop = opened(folder), threading.Event(), asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    other = asyncio.create_task(asyncio.to_thread(door.wait))
    try:
        async with asyncio.timeout(10):
            await journal.keep(PROMISED, {"one": append("1")})
    finally:
        door.set()
    await other
    assert left_in(folder) == [("one", b"1")]


async def test_what_the_disk_does_not_take_is_not_kept_and_the_next_one_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(folder)
    await journal.keep(WAITING, {"one": append("1")})
    with monkeypatch.context() as failing:
        failing.setattr(module.os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            await journal.keep(PROMISED, {"two": append("2"), "six": append("6")})
    await journal.keep(WAITING, {"ten": append("X")})  # as long as the first of those
    assert left_in(folder) == [("one", b"1"), ("ten", b"X")]


async def test_what_is_settled_does_not_stay_for_long_beside_what_is_open(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_SETTLED", 10_000)
    journal = opened(folder)
    await journal.keep(WAITING, {"open": append("open")})
    for number in range(100):
        await journal.keep(WAITING, {f"r{number}": append("x" * 1000)})
        journal.settle(f"r{number}")
    await journal.written()
    assert (folder / "journal").stat().st_size < 15_000
    assert left_in(folder) == [("open", b"open")]
    await opened(folder).keep(WAITING, {"next": append("next")})
    assert left_in(folder) == [("open", b"open"), ("next", b"next")]


@pytest.mark.parametrize(("seconds", "closed"), [(0.0, False), (0.001, False), (60.0, True)])
async def test_settled_content_leaves_the_disk_soon_beside_open_receipts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, closed: bool
) -> None:
    monkeypatch.setattr(module, "_SETTLED_SECONDS", seconds)
    journal = opened(folder)
    await journal.keep(WAITING, {"refused": append("open"), "one": append("a prompt")})
    journal.settle("one")
    await (journal.close if closed else journal.written)()

    async def is_gone() -> bool:
        return b"a prompt" not in (folder / "journal").read_bytes()

    await until(is_gone)
    assert left_in(folder) == [("refused", b"open")]


async def test_only_the_owner_can_read_prompts_and_outputs(folder: Path) -> None:
    await opened(folder).keep(WAITING, {"one": append("secret")})
    assert [os.stat(path).st_mode & 0o077 for path in (folder, folder / "journal")] == [0, 0]


async def test_half_a_draft_of_a_crash_does_not_stay(folder: Path) -> None:
    journal = opened(folder)
    await journal.keep(WAITING, {"one": append("whole")})
    (folder / ".draft-abc").write_bytes(b"a prompt that another process erases")
    assert left_in(folder) == [("one", b"whole")]
    assert not (folder / ".draft-abc").exists()


async def test_a_journal_is_used_as_it_is_where_the_disk_has_no_room_for_another(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(folder)
    for name in ("one", "two"):
        await journal.keep(WAITING, {name: append(name)})
    whole = (folder / "journal").read_bytes()
    for left in (whole, whole + whole[:15], whole[:3] + b"?" + whole[4:] + whole[:15], whole[:-1]):
        (folder / "journal").write_bytes(left)
        with monkeypatch.context() as failing:
            failing.setattr(tempfile, "mkstemp", full)
            journal = Journal(folder)
            found = [*journal.recover()]
        records = {name: Record(WAITING, name, append(name).SerializeToString()) for name in ("one", "two")}
        assert found == [name for name, record in records.items() if record.to_bytes() in left]
        await journal.keep(WAITING, {"three": append("three")})
        assert [name for name, _ in left_in(folder)] == [*found, "three"]


async def test_a_journal_that_has_taken_its_name_is_used_though_the_folder_does_not_reach_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_SETTLED", 1000)
    journal = opened(folder)
    await journal.keep(WAITING, {"open": append("open")})

    def broken(path: Path) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as failing:
        failing.setattr(durable_file, "sync_path", broken)
        for number in range(4):
            await journal.keep(WAITING, {f"r{number}": append("x" * 1000)})
            journal.settle(f"r{number}")
        await journal.written()
    await journal.keep(WAITING, {"next": append("next")})
    assert left_in(folder) == [("open", b"open"), ("next", b"next")]


@pytest.mark.parametrize("fault", ["no descriptor", "replaced", "deleted"])
async def test_open_records_survive_the_loss_of_the_journal_s_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(module, "_MOST_SETTLED", 0)
    journal = opened(folder)
    await journal.keep(WAITING, {"one": append("x" * 1000)})
    await journal.keep(WAITING, {"two": append("2")})
    if fault == "deleted":
        (folder / "journal").unlink()
    elif fault == "replaced":
        (folder / "journal").unlink()
        (folder / "journal").write_bytes(b"another")
    with monkeypatch.context() as failing:
        if fault == "no descriptor":
            real = os.open
            failing.setattr(module.os, "open", lambda path, *how: (full if path == journal._path else real)(path, *how))
        journal.settle("one")
        await journal.written()
    other = os.open(os.devnull, os.O_RDONLY)  # which may get the number of a descriptor that was closed
    await journal.keep(WAITING, {"three": append("3")})
    assert os.path.samestat(os.fstat(other), os.stat(os.devnull))
    os.close(other)
    assert left_in(folder) == [("two", b"2"), ("three", b"3")]
    assert len([name for name in os.listdir(folder) if name.endswith(".damaged")]) == (fault == "replaced")


async def test_what_is_settled_makes_room_on_a_disk_that_does_not_take_that_it_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(folder)
    await journal.keep(WAITING, {"one": append("x" * 1000)})
    with monkeypatch.context() as failing:
        failing.setattr(module.os, "pwrite", full)
        journal.settle("one")
        await journal.written()
    assert (folder / "journal").read_bytes() == b""
    await journal.keep(WAITING, {"two": append("2")})
    assert left_in(folder) == [("two", b"2")]
