"""What the ledger, and a head itself, say of its acceptance."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ledger.encoding.text_forms import ZERO_DIGEST, cid
from ledger.keys.envelope import Envelope
from ledger.tree.entry import Entry
from services.generation.requests.heads import HeadBoard, HeadState, ServedHead, reports_low_acceptance
from tests.unit.ledger.builders import TRUSTED, kscore, signed

HEAD = cid(b"head")


@pytest.mark.parametrize(("acceptance", "unfit"), [(0.625, set()), (0.25, {(HEAD, None)})])
def test_a_kscore_ends_what_a_head_says_of_itself(acceptance: float, unfit: set[tuple[str, str | None]]) -> None:
    envelope = Envelope.from_bytes(signed(kscore(HEAD, adapter_cid=None, mean_acceptance=acceptance)))

    async def read(position: int) -> list[Entry]:
        return [Entry(position, ZERO_DIGEST, envelope)]

    state = HeadState((ServedHead(HEAD, Path("head")),), weak=frozenset({HEAD}))
    board = HeadBoard(state, read, TRUSTED, every=1.0)
    assert board.state.all_below_threshold
    asyncio.run(board.refresh())
    assert not board.state.all_below_threshold
    assert board.state.unfit == unfit


@pytest.mark.parametrize(
    ("facts", "weak"),
    [
        ('{"held_out_acceptance": {"code": {"by_depth": [0.5, 0.3]}, "text": {"by_depth": [0.9, 0.2]}}}', True),
        ('{"held_out_acceptance": {"code": {"by_depth": [0.9, 0.7]}, "text": {"by_depth": [0.6, 0.2]}}}', False),
        ('{"held_out_acceptance": {}}', False),
        ('{"steps": 7}', False),
        ('{"held_out_acceptance": {"code": {"by_depth": [0.1, "all"]}}}', False),
        ('{"held_out_acceptance": {"code": [0.1]}}', False),
        ('{"held_out_acceptance": 3}', False),
        ("[]", False),
        ("{", False),
    ],
)
def test_a_head_is_judged_by_what_it_says_clearly(tmp_path: Path, facts: str, weak: bool) -> None:
    (tmp_path / "training.json").write_text(facts)
    assert reports_low_acceptance(tmp_path) is weak


def test_a_head_that_says_nothing_is_not_judged(tmp_path: Path) -> None:
    assert not reports_low_acceptance(tmp_path)


def test_the_bundled_head_says_that_it_is_weak() -> None:
    assert reports_low_acceptance(Path("demo/smollm2/head"))
