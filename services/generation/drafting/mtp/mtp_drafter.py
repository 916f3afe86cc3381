"""MTP as a method: the block that comes inside the base's checkpoint drafts a token at a time.

After Gloeckle et al., "Better & Faster Large Language Models via Multi-token Prediction" (2024), in the form that
DeepSeek-V3 (2024) gave it and Qwen3-Next and Qwen3.5 publish; or, for Gemma 4, the assistant published beside it.
"""

from __future__ import annotations

from services.generation.drafting.answered_tokens import AnsweredTokens
from services.generation.drafting.draft_tree.candidates import HEAD_NOISE
from services.generation.drafting.head_drafter import ARITHMETIC, HeadDraft
from services.generation.drafting.heads import HeadKind
from services.generation.drafting.method_spec import DrafterInputs, MethodSpec, Parameter
from services.generation.drafting.mtp.assistant import (
    KNOWN_BY,
    Assistant,
    check_assistant,
    is_assistant,
    load_assistant,
)
from services.generation.drafting.mtp.assistant_drafter import AssistantDrafter
from services.generation.drafting.mtp.block_weights import MtpBlock
from services.generation.drafting.mtp.mtp_pass import MtpPass
from services.generation.drafting.stepping.step_drafter import StepDrafter, cache_blocks
from services.generation.engine.request import EngineRequest
from services.generation.target.target import Target


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
        self, block: MtpBlock, target: Target, *, noise: float = HEAD_NOISE, copies: bool = False,
        answered: AnsweredTokens | None = None,
    ) -> None:  # fmt: skip
        """`answered` counts answers, for the choice of tokens at the next start."""
        entries = MtpPass(block, target, cache_blocks(target), arithmetic=ARITHMETIC)
        self._answered = answered
        super().__init__(block, entries, target, noise=noise, copies=copies)

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
    """One for each head, its steps timed."""
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
    heads=HeadKind(is_assistant, KNOWN_BY, load_assistant, check_assistant),
    own_head=True,
)
