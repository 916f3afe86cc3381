"""Copies of a sequence's own text beside what the head says: one tree, every candidate once, the better chance."""

from __future__ import annotations

import numpy as np
import pytest

from services.generation.drafting.eagle3 import growing
from services.generation.drafting.eagle3.confidence import Confidence, acceptance
from services.generation.drafting.eagle3.growth import Growth, Prices, worth_starting
from services.generation.drafting.eagle3.shape import DraftShape
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.engine.tree import TokenTree
from services.generation.target.cpu import CpuTarget
from tests.fakes.engine_runs import CHEAP_ROWS, run
from tests.fakes.heads import eagle3

SHAPE = DraftShape(depth=3, width=2, tree_tokens=20)
FREE = Prices(token=1.0, row=1e-6, step=1e-6, step_row=1e-6)
DEAR = Prices(token=1.0, row=0.3, step=1.0, step_row=0.0)


def growth() -> Growth:
    return Growth.alone(SHAPE, Confidence(), FREE, 7)


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    found = [(tree.tokens[0],)]
    for token, parent in zip(tree.tokens[1:], tree.parents[1:], strict=True):
        found.append((*found[parent], token))
    return set(found)


def test_the_heads_words_and_copies_make_one_tree() -> None:
    grown = growth()
    grown.graft(np.array((7, 1, 2, 3)), np.array((-1, 0, 1, 2)), np.array([1.0, 0.9, 0.8, 0.7]))
    grown.take([[1, 5]], [[0.5, 0.3]])
    assert paths(grown.tree()) == {(7,), (7, 1), (7, 1, 2), (7, 1, 2, 3), (7, 5)}
    assert len(grown.tree()) == 5
    assert grown.chances[1] > grown.chances[4]


def test_a_copy_that_the_head_finds_unlikely_is_given_up_with_all_below_it() -> None:
    grown = Growth.alone(SHAPE, Confidence(), DEAR, 7)
    grown.graft(np.array((7, 1, 2, 3, 4)), np.array((-1, 0, 1, 2, 0)), np.array([1.0, 0.9, 0.8, 0.7, 0.6]))
    asked = np.full((1, 4), -1, np.int64)
    growing.copies_below(grown.arrays, asked)
    assert asked.tolist() == [[1, 4, -1, -1]]
    grown.take([[5, 6, 1, 4, -1, -1]], [[0.9, 0.05, 0.0001, 0.01, -1.0, -1.0]])
    assert paths(grown.tree()) == {(7,), (7, 5)}


def test_a_copy_that_the_head_cannot_say_keeps_its_chance() -> None:
    grown = growth()
    grown.graft(np.array((7, 1, 2)), np.array((-1, 0, 1)), np.array([1.0, 0.9, 0.8]))
    grown.take([[5, 6, 1, -1, -1, -1]], [[0.9, 0.05, -1.0, -1.0, -1.0, -1.0]])
    assert grown.chances[1:3] == pytest.approx([0.9, 0.8])


def test_what_the_head_says_of_copies_is_counted_apart() -> None:
    confidence = Confidence()
    grown = Growth.alone(SHAPE, confidence, FREE, 7)
    grown.graft(np.array((7, 1)), np.array((-1, 0)), np.array([1.0, 0.9]))
    grown.take([[1, 5]], [[0.3, 0.25]])
    grown.judge([1])
    assert acceptance(confidence.counts, 1, 0.3, 1) > acceptance(Confidence().counts, 1, 0.3, 1)
    assert acceptance(confidence.counts, 0, 0.25, 1) < acceptance(Confidence().counts, 0, 0.25, 1)


def test_the_head_goes_on_below_a_copy_that_it_agrees_with() -> None:
    grown = growth()
    grown.graft(np.array((7, 1)), np.array((-1, 0)), np.array([1.0, 0.9]))
    grown.take([[1, 5]], [[0.5, 0.3]])
    assert 1 in grown.frontier
    grown.take([[8, 9]] * len(grown.frontier), [[0.6, 0.1]] * len(grown.frontier))
    assert (7, 1, 8) in paths(grown.tree())


def test_only_the_head_is_judged_by_what_the_head_said() -> None:
    confidence = Confidence()
    grown = Growth.alone(SHAPE, confidence, FREE, 7)
    grown.graft(np.array((7, 1)), np.array((-1, 0)), np.array([1.0, 0.9]))
    before = confidence.first_choice(1)
    grown.judge([1])
    assert confidence.first_choice(1) == before


def test_where_copies_promise_more_the_head_need_not_start() -> None:
    assert worth_starting(SHAPE, Confidence(), FREE)
    assert not worth_starting(SHAPE, Confidence(), FREE, beside=3.0)


def test_text_that_repeats_itself_is_copied_beside_any_head(target: CpuTarget) -> None:
    """A random head is right about nothing; what is accepted here was copied."""
    sampling = SamplingParams(max_tokens=80, ignore_eos=True, logit_bias=((9, 100.0),))
    request = EngineRequest("r", (9,) * 40, sampling, method="eagle3")
    off = EngineRequest("r", request.prompt, sampling)
    collected = run(target, [request], drafters={"eagle3": eagle3(target, CHEAP_ROWS, copies=True)})
    assert collected.outcomes[request.key].token_ids == run(target, [off]).outcomes[off.key].token_ids
    assert collected.outcomes[request.key].metrics.target_passes < 25
