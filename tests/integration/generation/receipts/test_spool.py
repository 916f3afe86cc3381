"""The spool's files: what a crash, a full disk or a damaged file leaves."""

from __future__ import annotations

from pathlib import Path

import pytest

from kolm.ledger.v1 import ledger_pb2
from services.generation.receipts.spool import Spool


def append(name: str) -> ledger_pb2.AppendEntryRequest:
    return ledger_pb2.AppendEntryRequest(envelope=name.encode())


def left_in(folder: Path) -> list[bytes]:
    return [spooled.request.envelope for spooled in Spool(folder).recover()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "outbox"


def test_what_was_put_is_found_again_in_order_and_what_was_removed_is_not(folder: Path) -> None:
    spool = Spool(folder)
    spool.recover()
    kept = [spool.put(append(f"{number}")) for number in range(12)]
    spool.remove(kept[3].path)
    assert left_in(folder) == [b"%d" % number for number in range(12) if number != 3]


def test_numbers_go_on_after_a_restart(folder: Path) -> None:
    first = Spool(folder)
    first.recover()
    first.put(append("old"))
    second = Spool(folder)
    second.recover()
    second.put(append("new"))
    assert left_in(folder) == [b"old", b"new"]


def test_what_was_refused_is_tried_again_at_the_next_start(folder: Path) -> None:
    spool = Spool(folder)
    spool.recover()
    bad = spool.put(append("bad"))
    spool.put(append("good"))
    spool.refuse(bad.path)
    assert [each.request.envelope for each in spool.restore()] == [b"bad"]
    spool.refuse(bad.path)
    assert left_in(folder) == [b"bad", b"good"]


def test_half_a_draft_of_a_crash_is_no_append_and_does_not_stay(folder: Path) -> None:
    spool = Spool(folder)
    spool.put(append("whole"))
    (folder / ".draft-abc").write_bytes(b"\x0a\xff")
    assert left_in(folder) == [b"whole"]
    assert not (folder / ".draft-abc").exists()  # it may hold a prompt that somebody erases elsewhere


def test_a_damaged_file_is_kept_aside_and_does_not_hold_up_the_others(folder: Path) -> None:
    spool = Spool(folder)
    spool.put(append("whole")).path.write_bytes(b"\x0a\xff\xff")
    spool.put(append("next"))
    assert left_in(folder) == [b"next"]
    assert [path.name for path in folder.glob("*.damaged")] == ["0" * 20 + ".damaged"]


def test_prompts_and_outputs_are_nobody_else_s_to_read(folder: Path) -> None:
    spooled = Spool(folder).put(append("secret"))
    assert spooled.path.stat().st_mode & 0o077 == 0
    assert folder.stat().st_mode & 0o077 == 0


def test_a_file_of_another_name_is_left_where_it_is(folder: Path) -> None:
    spool = Spool(folder)
    spool.put(append("whole"))
    (folder / "copy.append").write_bytes(append("copy").SerializeToString())
    assert left_in(folder) == [b"whole"]
    assert (folder / "copy.append").exists()
