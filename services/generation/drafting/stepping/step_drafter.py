"""Drafting with a head that computes a token at a time: one head drafts for all sequences that ask, a level of all
their trees at a time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.generation.drafting.draft_tree.candidates import HEAD_NOISE, DraftShape
from services.generation.drafting.draft_tree.draft_tree import expand
from services.generation.drafting.head_drafter import SPARE_BLOCKS, HeadDraft, HeadDrafter
from services.generation.drafting.heads import DraftHead
from services.generation.drafting.stepping.entry_pass import MOST_ROWS, Entries
from services.generation.drafting.stepping.levels import Levels, next_level
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target


class StepDrafter(HeadDrafter):
    """A step of the head for each level of the trees."""

    def __init__(
        self, head: DraftHead, entries: Entries, target: Target, *, noise: float = HEAD_NOISE,
        copies: bool = False,
    ) -> None:  # fmt: skip
        self._pass = entries
        super().__init__(head, entries, target, noise=noise, copies=copies)

    def entries(self, shape: DraftShape) -> int:
        return 1 + shape.depth * shape.width

    def _store(self, draft: HeadDraft, count: int) -> None:
        self._pass.blocks.extend(draft.table, draft.length + count)
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
