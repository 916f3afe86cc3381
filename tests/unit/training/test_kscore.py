"""The k-score counts what the engine really accepts, draft by draft, for the adapter that is asked about."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.generation.engine.drafter import Budget, Draft, Drafter
from services.generation.engine.request import EngineRequest, InvalidRequest
from services.generation.engine.tree import TokenTree
from services.generation.target.cpu import load_target
from services.training import kscore
from services.training.kscore import measure
from tests.fakes.heads import random_head
from tests.fakes.table_target import TableTarget
from tests.fakes.tiny_head import make_tiny_adapter

VOCABULARY = 11
ANY_HEAD: Any = SimpleNamespace(kind="eagle3")


class Counting(Drafter):
    """Drafts for a target that counts up. Two of four tokens are right if the prompt starts with 0, else one."""

    def __init__(self, *_: Any) -> None:
        pass

    def begin(self, request: EngineRequest) -> CountingDraft:
        assert (request.k, request.sampling.temperature) == (4, 0.0)
        assert request.parameters == {"tree_width": 1, "tree_tokens": 4}
        return CountingDraft(2 if request.prompt[0] == 0 else 1)


class CountingDraft(Draft):
    def __init__(self, right: int) -> None:
        self._right = right

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        steps = [step if step <= self._right else step + 3 for step in range(budget.depth + 1)]
        draft = tuple((tokens[-1] + step) % VOCABULARY for step in steps)
        return TokenTree(draft, tuple(range(-1, len(draft) - 1)))


@pytest.fixture
def counting_up() -> TableTarget:
    """Every token is followed by the next one."""
    return TableTarget(np.roll(np.eye(VOCABULARY, dtype=np.float32), 1, axis=1))


def test_acceptance_is_counted_per_prompt_and_per_depth(
    counting_up: TableTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kscore, "_drafter", Counting)
    found = measure(counting_up, ANY_HEAD, [(0,), (1,)], max_tokens=9)
    # Of nine tokens: passes of 3, 3 and 3, drafts of 4, 4 and 2; passes of 2, 2, 2, 2 and 1, drafts of 4, 4, 4 and 2.
    assert (found.prompts, found.tokens) == (2, 18)
    assert found.mean_acceptance == pytest.approx((6 / 10 + 4 / 14) / 2)
    assert found.mean_acceptance_length == 18 / 8
    assert found.acceptance_by_depth == (1.0, 3 / 7, 0.0, 0.0)


def test_every_pass_drafts(counting_up: TableTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kscore, "_drafter", Counting)
    assert measure(counting_up, ANY_HEAD, [(0,)] * 20, max_tokens=300).mean_acceptance_length == 3.0


def test_a_random_head_is_measured_for_each_adapter(model: Path, tmp_path: Path) -> None:
    target = load_target(model, cache_tokens=40 * 64, adapters={"mine": make_tiny_adapter(tmp_path / "mine", model)})
    head, done = random_head(target.config), []
    prompts = [tuple(range(start, start + 5)) for start in range(20)]
    bare = measure(target, head, prompts, max_tokens=20, progress=done.append)
    adapted = measure(target, head, prompts, target.adapters[0].cid, max_tokens=20)
    assert done == list(range(1, 21))
    assert bare == measure(target, head, prompts, max_tokens=20)
    assert bare != adapted
    assert len(bare.acceptance_by_depth) == 4
    assert bare.mean_acceptance < 0.5
    assert target.blocks.used == 0
    with pytest.raises(InvalidRequest):
        measure(target, head, prompts, "cidv1:sha256:" + "0" * 64)
