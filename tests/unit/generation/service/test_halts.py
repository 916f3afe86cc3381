"""What is known of halts, folded from the ledger's answers and from what was found here."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kolm.ledger.v1 import documents_pb2, ledger_pb2
from ledger.halt import Scope
from services.generation.halts import HaltBoard, HaltKnowledge

BASE = "cidv1:sha256:" + "a" * 64
LOOKAHEAD, EAGLE = Scope(BASE, "lookahead"), Scope(BASE, "eagle3", "cidv1:sha256:" + "b" * 64)


def answer(epoch: int, *scopes: Scope) -> ledger_pb2.GetHaltStateResponse:
    halts = [
        documents_pb2.Halt(scope=documents_pb2.Scope(base_cid=s.base_cid, method=s.method, head_cid=s.head_cid))
        for s in scopes
    ]
    return ledger_pb2.GetHaltStateResponse(epoch=epoch, halts=halts)


def test_the_ledger_s_word_replaces_the_one_before() -> None:
    known = HaltKnowledge().after(answer(2, LOOKAHEAD, EAGLE))
    assert (known.epoch, known.scopes) == (2, (LOOKAHEAD, EAGLE))
    assert known.after(answer(2, EAGLE)).scopes == (EAGLE,)


def test_a_deviation_found_here_stays_halted_while_the_ledger_knows_nothing_of_it() -> None:
    known = HaltKnowledge().with_local(LOOKAHEAD).with_local(LOOKAHEAD)
    assert known.scopes == (LOOKAHEAD,)
    assert known.after(answer(0)).scopes == (LOOKAHEAD,)
    assert known.after(answer(1, EAGLE)).scopes == (EAGLE, LOOKAHEAD)


def test_once_the_ledger_has_halted_it_a_resume_in_the_ledger_ends_it() -> None:
    taken_over = HaltKnowledge().with_local(LOOKAHEAD).after(answer(1, LOOKAHEAD))
    assert taken_over.local == ()
    assert taken_over.scopes == (LOOKAHEAD,)
    assert taken_over.after(answer(1)).scopes == ()


def test_a_halt_of_every_head_takes_over_one_found_for_a_single_head() -> None:
    assert HaltKnowledge().with_local(EAGLE).after(answer(1, Scope(BASE, "eagle3"))).local == ()


async def test_a_deviation_found_while_the_ledger_is_being_asked_is_not_forgotten(tmp_path: Path) -> None:
    asked, answered = asyncio.Event(), asyncio.Event()

    async def read() -> ledger_pb2.GetHaltStateResponse:
        asked.set()
        await answered.wait()
        return answer(0)

    board = HaltBoard(tmp_path / "halts.json", read, every=1.0)
    refresh = asyncio.ensure_future(board.refresh())
    await asked.wait()
    await board.deviated(LOOKAHEAD)
    answered.set()
    await refresh
    assert board.known
    assert [scope.method for scope in board.scopes if scope.base_cid == BASE] == ["lookahead"]
    assert HaltBoard(tmp_path / "halts.json", read, every=1.0).scopes == (LOOKAHEAD,)


async def test_a_kept_file_that_cannot_be_read_is_no_reason_not_to_start(tmp_path: Path) -> None:
    (tmp_path / "halts.json").write_text('{"epoch": 3')
    board = HaltBoard(tmp_path / "halts.json", asyncio.Event().wait, every=1.0)  # type: ignore[arg-type]
    assert (board.epoch, board.scopes, board.known) == (0, (), False)
