"""Growing trees: which nodes are expanded, kept and judged, on trees small enough to say so by hand."""

from __future__ import annotations

import numpy as np
import pytest

from services.generation.drafting.eagle3 import growing
from services.generation.drafting.eagle3.confidence import Confidence
from services.generation.drafting.eagle3.growth import Forest, Growth, Prices
from services.generation.drafting.eagle3.rounds import Places, advance
from services.generation.drafting.eagle3.shape import DraftShape

FREE = Prices(token=1.0, row=1e-6, step=1e-6, step_row=1e-6)


def growth(depth: int = 3, width: int = 2, most: int = 20, prices: Prices = FREE) -> Growth:
    return Growth.alone(DraftShape(depth, width, most), Confidence(), prices, 7)


def test_the_likeliest_nodes_of_a_depth_are_expanded() -> None:
    grown = growth()
    grown.take([[1, 2]], [[0.6, 0.3]])
    assert grown.frontier == [1, 2]
    grown.take([[3, 4], [5, 6]], [[0.1, 0.05], [0.9, 0.05]])
    assert [grown.arrays.nodes[node, growing.TOKEN] for node in grown.frontier] == [5, 3]
    assert grown.arrays.sources.tolist() == [1, 0]


def test_a_tree_ends_at_its_depth_and_where_the_head_says_nothing() -> None:
    grown = growth(depth=1)
    grown.take([[1, -1]], [[0.6, 0.0]])
    assert grown.frontier == []
    assert grown.tree().tokens == (7, 1)


@pytest.mark.parametrize(("most", "tokens"), [(1, (7, 1)), (2, (7, 1, 3)), (20, (7, 1, 3, 2))])
def test_the_best_nodes_are_kept_and_the_path_of_first_choices_leads(most: int, tokens: tuple[int, ...]) -> None:
    grown = growth(depth=2, width=2, most=most)
    grown.take([[1, 2]], [[0.7, 0.2]])
    grown.take([[3, -1], [-1, -1]], [[0.9, 0.0], [0.0, 0.0]])
    tree = grown.tree()
    assert tree.tokens == tokens
    assert tree.parents[:3] == (-1, 0, 1)[: len(tree)]


def test_nodes_that_do_not_pay_for_their_row_are_left_out_and_dear_steps_not_taken() -> None:
    grown = growth(prices=Prices(token=1.0, row=0.4, step=0.0, step_row=0.0))
    grown.take([[1, 2]], [[0.75, 0.2]])
    assert grown.tree().tokens == (7, 1)
    grown = growth(prices=Prices(token=1.0, row=0.0, step=5.0, step_row=0.0))
    grown.take([[1, 2]], [[0.75, 0.2]])
    assert grown.frontier == []


def test_candidates_are_judged_as_far_as_their_parents_held() -> None:
    confidence = Confidence()
    grown = Growth.alone(DraftShape(2, 2, 20), confidence, FREE, 7)
    grown.take([[1, 2]], [[0.75, 0.25]])
    grown.take([[3, 4], [5, 6]], [[0.75, 0.25]] * 2)
    grown.judge([2, 6])
    tried = confidence.counts[..., 1].sum(axis=(0, 1))
    assert tried[1] == pytest.approx(3.0, abs=0.01)  # two candidates, and the first choice once more
    assert tried[2] == pytest.approx(3.0, abs=0.01)  # those below token 2 only
    held = confidence.counts[..., 0].sum(axis=(0, 1))
    assert held[1:3].round(2).tolist() == [1.0, 1.0]
    assert confidence.first_choice(1) < Confidence().first_choice(1)


def test_rows_of_a_branch_see_the_run_and_the_slots_of_their_own_ancestors() -> None:
    forest = Forest(2, DraftShape(3, 2, 20), 0)
    for line in (0, 1):
        forest.plant(line, DraftShape(3, 2, 20), Confidence(), FREE, 7)
    trees = forest.trees(Confidence().counts[None], [0, 0])
    lengths, tables = np.array([10, 63]), np.array([[4, 0], [2, 5]], np.int32)
    places = Places(
        np.empty(4, np.int64), *np.empty((4, 4), np.int32), np.empty(5, np.int32), np.empty(12, np.int32),
        np.empty(4, np.int64),
    )  # fmt: skip
    shares = np.array([[0.7, 0.2]] * 4, np.float32)
    assert advance(trees, lengths, tables, np.array([[1, 2], [3, 4]]), shares[:2], places) == 4
    starts, branches = places.branch_starts, places.branches
    assert places.tokens.tolist() == [1, 2, 3, 4]
    assert places.positions.tolist() == [10, 10, 63, 63]
    assert places.slots.tolist() == [4 * 64 + 10, 4 * 64 + 11, 2 * 64 + 63, 5 * 64]
    assert places.lines.tolist() == [0, 0, 1, 1]
    assert places.contiguous.tolist() == [11, 10, 64, 63]
    assert places.sources.tolist() == [0, 0, 1, 1]
    assert branches[: starts[4]].tolist() == [4 * 64 + 11, 5 * 64]
    shares = np.array([[0.5, 0.1], [0.9, 0.1]] * 2, np.float32)
    assert advance(trees, lengths, tables, np.array([[5, 6]] * 4), shares, places) == 4
    assert places.sources.tolist() == [0, 1, 2, 3]
    assert places.contiguous.tolist() == [11, 10, 64, 63]  # each goes on elsewhere than behind its parent
    assert starts.tolist() == [0, 1, 3, 4, 6]
    assert branches[:3].tolist() == [4 * 64 + 12, 4 * 64 + 11, 4 * 64 + 13]
