"""A k-score in the log stands above what a head says of itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kolm.ledger.v1 import documents_pb2
from ledger.encoding.cid import cid
from services.generation.heads.head_board import HeadBoard
from services.generation.heads.served_heads import HeadState, ServedHead
from tests.unit.ledger.builders import TRUSTED, kscore, signed

HEAD = cid(b"head")


@pytest.mark.parametrize(("acceptance", "unfit"), [(0.625, set()), (0.25, {(HEAD, None)})])
def test_a_kscore_ends_what_a_head_says_of_itself(acceptance: float, unfit: set[tuple[str, str | None]]) -> None:
    envelope = signed(kscore(HEAD, adapter_cid=None, mean_acceptance=acceptance))

    async def read(position: int) -> list[documents_pb2.Entry]:
        return [documents_pb2.Entry(index=position, envelope=envelope)]

    state = HeadState((ServedHead(HEAD, Path("head")),), weak=frozenset({HEAD}))
    board = HeadBoard(state, read, TRUSTED, every=1.0)
    assert board.state.all_weak
    asyncio.run(board.refresh())
    assert not board.state.all_weak
    assert board.state.unfit == unfit
