"""Rows of a level: each sees the committed entries, its ancestors' entries, and itself."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from services.generation.drafting.acceptance import RequestAcceptance
from services.generation.drafting.draft_tree.candidates import DraftShape
from services.generation.drafting.draft_tree.draft_tree import DraftTree
from services.generation.drafting.stepping.step_drafter import Levels, next_level
from services.generation.engine.economics import Costs
from services.generation.target.blocks import BLOCK, slot_of
from services.generation.target.rows import Rows

WIDTH, DEPTH = 4, 5


def drafted(length: int, rng: np.random.Generator) -> Any:
    """A sequence with `length` entries in blocks all over the cache, a tree in flight, and nothing else."""
    tree = DraftTree(0, RequestAcceptance(), DraftShape(DEPTH, WIDTH, 60), Costs(np.ones(2)))
    return SimpleNamespace(tree=tree, length=length, table=rng.permutation(50)[: length // BLOCK + 2].tolist())


def grow(tree: DraftTree, rng: np.random.Generator) -> None:
    """Children of nodes that were computed last, some of which are the next frontier."""
    tree.steps += 1
    new = []
    for parent in rng.choice(tree.frontier, min(len(tree.frontier), 2), replace=False):
        for token in rng.choice(1000, 3, replace=False):
            node = tree._nodes[tree._count]
            node["token"], node["parent"], node["depth"] = token, parent, tree._nodes[parent]["depth"] + 1
            new.append(tree._count)
            tree._count += 1
    tree.frontier = rng.permutation(new)[: rng.integers(1, WIDTH + 1)]


def path(tree: DraftTree, node: int) -> list[int]:
    """A node and its ancestors but for the root, the first one first."""
    return [] if node == 0 else [*path(tree, int(tree.nodes["parent"][node])), node]


def seen(rows: Rows, row: int) -> list[int]:
    """The slots that a row sees."""
    first = [slot_of(rows.tables[rows.sequences[row]].tolist(), at) for at in range(rows.contiguous[row])]
    branch: list[int] = rows.branches[rows.branch_starts[row] : rows.branch_starts[row + 1]].tolist()
    return first + branch


@pytest.mark.parametrize("seed", range(20))
def test_a_row_sees_what_was_committed_and_its_own_path(seed: int) -> None:
    rng = np.random.default_rng(seed)
    drafts = [drafted(int(rng.integers(1, 2 * BLOCK)), rng) for _ in range(3)]
    growing = [Levels(draft, row) for row, draft in enumerate(drafts)]
    committed = [[slot_of(draft.table, at) for at in range(draft.length)] for draft in drafts]
    slots: list[dict[int, int]] = [{} for _ in drafts]  # of each tree's nodes
    before = {(number, 0): number for number in range(3)}  # the row that computed a node in the pass before
    for depth in range(1, DEPTH):
        for draft in drafts:
            grow(draft.tree, rng)
        rows, sources = next_level(growing)
        nodes = [(number, int(node)) for number, draft in enumerate(drafts) for node in draft.tree.frontier]
        assert len(rows) == len(nodes)
        for row, (number, node) in enumerate(nodes):
            tree, length = drafts[number].tree, drafts[number].length
            slots[number][node] = int(rows.slots[row])
            assert seen(rows, row) == committed[number] + [slots[number][each] for each in path(tree, node)]
            assert rows.lengths[row] == length + depth
            assert rows.positions[row] == length + depth - 1
            assert rows.tokens[row] == tree.nodes["token"][node]
            assert sources[row] == before[number, int(tree.nodes["parent"][node])]
        for number, placed in enumerate(slots):
            assert len({*committed[number], *placed.values()}) == len(committed[number]) + len(placed)
        assert rows.wanted.tolist() == list(range(len(rows)))
        before = {key: row for row, key in enumerate(nodes)}
