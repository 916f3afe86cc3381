"""Drafting with a head that computes a token at a time: one head drafts for all sequences that ask, a level of all
their trees at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.draft_tree.candidates import DraftShape
from services.generation.drafting.draft_tree.draft_tree import expand
from services.generation.drafting.draft_tree.nodes import Nodes
from services.generation.drafting.head_drafter import SPARE_BLOCKS, HeadDraft, HeadDrafter
from services.generation.drafting.heads import DraftHead
from services.generation.drafting.stepping.entry_pass import MOST_ROWS, Entries
from services.generation.engine.numba_cache import relaxed
from services.generation.target.arrays import Int32, Int64
from services.generation.target.blocks import BLOCK
from services.generation.target.rows import Part, Rows, RowsBuilder
from services.generation.target.target import Target

_PARTS = Part.POSITIONS, Part.LENGTHS, Part.SLOTS, Part.SEQUENCES, Part.CONTIGUOUS, Part.BRANCH_STARTS, Part.BRANCHES
_POSITIONS, _LENGTHS, _SLOTS, _SEQUENCES, _RUNS, _BRANCH_STARTS, _BRANCHES = map(int, _PARTS)

_ENTRY = np.dtype([("slot", np.int32), ("run", np.int32), ("apart", np.int32), ("row", np.int32)])
"""A node's slot, how many first slots of the table it sees, how many slots of a branch behind those, itself last, and
its row in the pass that computed it.
"""


class StepDrafter(HeadDrafter):
    """A step of the head for each level of the trees."""

    def __init__(self, head: DraftHead, entries: Entries, target: Target, *, copies: bool = False) -> None:
        self._pass = entries
        super().__init__(head, entries, target, copies=copies)

    def entries(self, shape: DraftShape) -> int:
        return 1 + shape.depth * shape.width

    def _store(self, draft: HeadDraft, count: int) -> None:
        entries = RowsBuilder()
        entries.add_chunk(draft.table, draft.length, draft.tokens[:count], False)
        self._pass.read(entries.build(), draft.features()[:count])

    def expand(self, drafts: Sequence[HeadDraft]) -> None:
        """Compute the entries of committed tokens, then level by level those of all trees, until no tree grows."""
        if not all(draft.waiting for draft in drafts):
            raise ValueError("a draft has no feature to begin with")
        most = max(MOST_ROWS // max(draft.shape.width for draft in drafts), 1)  # whose levels fit into a pass
        for first in range(0, len(drafts), most):
            self._expand_some(drafts[first : first + most])

    def _expand_some(self, drafts: Sequence[HeadDraft]) -> None:
        rows = RowsBuilder()
        for draft in drafts:
            rows.add_chunk(draft.table, draft.length, draft.tokens, True)
        features = np.concatenate([draft.features() for draft in drafts])
        for draft in drafts:
            draft.caught_up()
        out = self._pass.read(rows.build(), features)
        growing = [Levels(draft, row) for row, draft in enumerate(drafts)]
        while True:
            expand([levels.draft.state for levels in growing], out.logits)
            growing = [levels for levels in growing if len(levels.tree.frontier)]
            if not growing:
                return
            level, sources = next_level(growing)
            out = self._pass.step(level, out.states[sources])


def cache_blocks(target: Target) -> int:
    """The size of a head's cache, in blocks: of the target's cache, and those of drafts."""
    return target.blocks.total + SPARE_BLOCKS


class Levels:
    """The levels of one tree as rows of the head, which computes them after all committed entries."""

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
