"""Drafting with Gemma 4's assistant: it begins with the last hidden state alone, and has no cache to fill."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.generation.drafting.draft_tree.candidates import HEAD_NOISE, DraftShape
from services.generation.drafting.draft_tree.draft_tree import DraftTree, expand
from services.generation.drafting.head_drafter import ARITHMETIC, HeadDraft
from services.generation.drafting.mtp.assistant import Assistant
from services.generation.drafting.mtp.assistant_pass import AssistantPass
from services.generation.drafting.stepping.step_drafter import StepDrafter
from services.generation.engine.drafter import DraftRequest
from services.generation.target.arrays import Float32, Int64
from services.generation.target.rows import Rows
from services.generation.target.target import Target


class AssistantDraft(HeadDraft):
    """A draft that keeps one feature, of the last committed token. `table`: the sequence's own in the target's cache;
    until a request's is known, the first block.
    """

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        end = start + len(features)
        self.length, self.tokens, self._waiting = end - 1, tokens[end : end + 1], [features[-1:].copy()]

    def settle(self) -> None:
        """Nothing waits that could be computed earlier."""

    def reserve(self, entries: int) -> None:
        self.table = self.table or [0]

    def release(self) -> None:
        self.table = []  # its blocks are the sequence's
        super().release()


class AssistantDrafter(StepDrafter):
    """Drafts with an assistant."""

    draft_type = AssistantDraft

    def __init__(self, head: Assistant, target: Target, *, noise: float = HEAD_NOISE, copies: bool = False) -> None:
        super().__init__(head, AssistantPass(head, target, arithmetic=ARITHMETIC), target, noise=noise, copies=copies)

    def entries(self, shape: DraftShape) -> int:
        return 0

    def _begun(self, ask: DraftRequest, together: int) -> DraftTree:
        assert isinstance(ask.draft, AssistantDraft)
        ask.draft.table = list(ask.table)
        return super()._begun(ask, together)

    def _expand_some(self, drafts: Sequence[HeadDraft]) -> None:
        features = np.concatenate([draft.features() for draft in drafts])
        for draft in drafts:
            draft.caught_up()
        growing = [_Levels(draft) for draft in drafts]
        rows, _ = _next_level(growing)
        out = self._pass.read(rows, features)
        while True:
            expand([levels.draft.state for levels in growing], out.logits)
            growing = [levels for levels in growing if len(levels.tree.frontier)]
            if not growing:
                return
            level, sources = _next_level(growing)
            out = self._pass.step(level, out.states[sources])


class _Levels:
    """The levels of one tree. `rows`: of each node, in the pass that computed it."""

    def __init__(self, draft: HeadDraft) -> None:
        assert draft.tree is not None
        self.draft, self.tree, self.rows = draft, draft.tree, np.zeros(draft.tree.room, np.int64)


def _next_level(growing: Sequence[_Levels]) -> tuple[Rows, Int64]:
    """The frontiers of trees as the rows of one pass, and the row of each one's parent in the pass before."""
    counts = [len(levels.tree.frontier) for levels in growing]
    rows = Rows.empty(sum(counts), [levels.draft.table for levels in growing], 0)
    known = np.repeat([levels.draft.length for levels in growing], counts)
    rows.positions[:], rows.lengths[:], rows.contiguous[:] = known, known, known
    rows.sequences[:] = np.repeat(np.arange(len(growing)), counts)
    sources, first = np.empty(len(rows), np.int64), 0
    for levels, count in zip(growing, counts, strict=True):
        frontier, nodes = levels.tree.frontier, levels.tree.nodes
        part = slice(first, first + count)
        rows.tokens[part] = nodes["token"][frontier]
        sources[part] = levels.rows[nodes["parent"][frontier]]
        levels.rows[frontier] = np.arange(first, first + count)
        first += count
    return rows, sources
