"""MTP as a method: the block that comes inside the base's checkpoint drafts a token at a time.

After Gloeckle et al., "Better & Faster Large Language Models via Multi-token Prediction" (2024), in the form that
DeepSeek-V3 (2024) gave it and Qwen3-Next and Qwen3.5 publish; or, for Gemma 4, the assistant published beside it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.generation.drafting.answered_tokens import AnsweredTokens
from services.generation.drafting.draft_tree.candidates import DraftShape
from services.generation.drafting.draft_tree.draft_tree import DraftTree, expand
from services.generation.drafting.head_drafter import ARITHMETIC, HeadDraft
from services.generation.drafting.heads import HeadKind
from services.generation.drafting.method_spec import DrafterInputs, MethodSpec, Parameter
from services.generation.drafting.mtp.assistant import (
    KNOWN_BY,
    Assistant,
    is_assistant,
    load_assistant,
)
from services.generation.drafting.mtp.assistant_pass import AssistantPass
from services.generation.drafting.mtp.block_weights import MtpBlock
from services.generation.drafting.mtp.mtp_pass import MtpPass
from services.generation.drafting.stepping.step_drafter import StepDrafter, cache_blocks
from services.generation.engine.drafter import DraftRequest
from services.generation.engine.request import EngineRequest
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
    """Drafts with Gemma 4's assistant: it begins with the last hidden state alone, and has no cache to fill."""

    draft_type = AssistantDraft

    def __init__(self, head: Assistant, target: Target, *, copies: bool = False) -> None:
        super().__init__(head, AssistantPass(head, target, arithmetic=ARITHMETIC), target, copies=copies)

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


class MtpDraft(HeadDraft):
    """A draft that counts the answer's tokens in `answered`."""

    answered: AnsweredTokens | None = None

    def finish(self, tokens: list[int]) -> None:
        if self.answered is not None:
            self.answered.add(tokens[len(self.state.request.prompt) :])


class MtpDrafter(StepDrafter):
    """Drafts with an MTP block."""

    draft_type = MtpDraft

    def __init__(
        self, block: MtpBlock, target: Target, *, copies: bool = False, answered: AnsweredTokens | None = None
    ) -> None:
        """`answered` counts answers, for the choice of tokens at the next start."""
        entries = MtpPass(block, target, cache_blocks(target), arithmetic=ARITHMETIC)
        self._answered = answered
        super().__init__(block, entries, target, copies=copies)

    def begin(self, request: EngineRequest) -> HeadDraft:
        draft = super().begin(request)
        assert isinstance(draft, MtpDraft)
        draft.answered = self._answered
        return draft


def drafter_of(
    head: MtpBlock | Assistant, target: Target, *, copies: bool = False, answered: AnsweredTokens | None = None
) -> StepDrafter:
    """A drafter with a head of this method."""
    if isinstance(head, Assistant):
        return AssistantDrafter(head, target, copies=copies)
    return MtpDrafter(head, target, copies=copies, answered=answered)


def _build(parts: DrafterInputs) -> dict[str, StepDrafter]:
    """A drafter for each head of this method."""
    own = {name: head for name, head in parts.heads.items() if isinstance(head, MtpBlock | Assistant)}
    return {name: drafter_of(head, parts.target, copies=True, answered=parts.answered) for name, head in own.items()}


METHOD = MethodSpec(
    name="mtp",
    meaning="the block inside the model's own checkpoint that predicts further tokens drafts trees",
    build=_build,
    missing="no_head",
    flag="a model whose files hold an MTP block, and without --no-own-head, or --head",
    depth=16,
    parameters=(
        Parameter("tree_width", 1, 16, "children looked at below a node, and nodes expanded at each depth"),
        Parameter("tree_tokens", 1, 64, "draft tokens verified in a pass"),
    ),
    heads=HeadKind(is_assistant, KNOWN_BY, load_assistant),
    own_head=True,
)
