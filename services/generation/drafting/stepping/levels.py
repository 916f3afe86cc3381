"""Levels of draft trees as rows of the head: the place of each node's entry, and which entries it sees."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.draft_tree.nodes import Nodes
from services.generation.drafting.head_drafter import HeadDraft
from services.generation.engine.numba_cache import relaxed
from services.generation.target.arrays import Int32, Int64
from services.generation.target.blocks import BLOCK
from services.generation.target.rows import Part, Rows

_PARTS = Part.POSITIONS, Part.LENGTHS, Part.SLOTS, Part.SEQUENCES, Part.CONTIGUOUS, Part.BRANCH_STARTS, Part.BRANCHES
_POSITIONS, _LENGTHS, _SLOTS, _SEQUENCES, _RUNS, _BRANCH_STARTS, _BRANCHES = map(int, _PARTS)

_ENTRY = np.dtype([("slot", np.int32), ("run", np.int32), ("apart", np.int32), ("row", np.int32)])
"""A node's slot, how many first slots of the table it sees, how many slots of a branch behind those, itself last, and
its row in the pass that computed it.
"""


class Levels:
    """The levels of one tree, as the head computes them behind all committed entries."""

    def __init__(self, draft: HeadDraft, row: int) -> None:
        """`row`: of the last committed entry, in the pass that computed it."""
        assert draft.tree is not None
        self.draft, self.tree, self.table = draft, draft.tree, np.array(draft.table, np.int32)
        self._entries, self._placed = np.empty(draft.tree.room, _ENTRY), 0
        self._entries[0] = (0, draft.length, 0, row)

    def place(self, rows: Rows, sources: Int64, line: int, first: int, branched: int) -> int:
        """Write the tree's frontier into rows from `first` on; of each, its parent's row goes to `sources`. Returns the
        slots of branches that are there, where `branched` were before.
        """
        tree, placed = self.tree, self._placed
        self._placed += len(tree.frontier)
        return _place(
            tree.nodes, tree.frontier, self._entries, self.table, self.draft.length, placed, rows.tokens, rows.numbers,
            rows.starts, sources, line, first, branched,
        )  # fmt: skip


def next_level(growing: Sequence[Levels]) -> tuple[Rows, Int64]:
    """The frontiers of trees as the rows of one pass, and the row of each one's parent in the pass before."""
    count, deepest = sum(len(levels.tree.frontier) for levels in growing), max(levels.tree.steps for levels in growing)
    rows = Rows.empty(count, [levels.table for levels in growing], count * deepest)
    sources, first, branched = np.empty(count, np.int64), 0, 0
    for line, levels in enumerate(growing):
        branched = levels.place(rows, sources, line, first, branched)
        first += len(levels.tree.frontier)
    return rows, sources


@relaxed
def _place(
    nodes: Nodes, frontier: Int64, entries: NDArray[Any], table: Int32, length: int, before: int, tokens: Int64,
    numbers: Int32, starts: tuple[int, ...], sources: Int64, line: int, first: int, branched: int,
) -> int:  # fmt: skip
    positions, lengths, slots = numbers[starts[_POSITIONS] :], numbers[starts[_LENGTHS] :], numbers[starts[_SLOTS] :]
    sequences, runs = numbers[starts[_SEQUENCES] :], numbers[starts[_RUNS] :]
    branch_starts, branches = numbers[starts[_BRANCH_STARTS] :], numbers[starts[_BRANCHES] :]
    for place in range(len(frontier)):
        node, row, entry = frontier[place], first + place, length + before + place
        parent = nodes[node].parent
        run, apart, sources[row] = entries[parent].run, entries[parent].apart, entries[parent].row
        if run == entry:
            run += 1
        else:
            apart += 1
        slot = table[entry // BLOCK] * BLOCK + entry % BLOCK
        entries[node].slot, entries[node].run, entries[node].apart, entries[node].row = slot, run, apart, row
        tokens[row], slots[row], sequences[row], runs[row] = nodes[node].token, slot, line, run
        positions[row] = length + nodes[node].depth - 1
        lengths[row] = length + nodes[node].depth
        branched += apart
        branch_starts[row + 1] = branched
        for back in range(1, apart + 1):
            branches[branched - back] = entries[node].slot
            node = nodes[node].parent
    return branched
