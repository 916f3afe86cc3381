"""MTP as a method: the block that comes inside the base's checkpoint drafts a token at a time.

After Gloeckle et al., "Better & Faster Large Language Models via Multi-token Prediction" (2024), in the form that
DeepSeek-V3 (2024) gave it and Qwen3-Next and Qwen3.5 publish; or, for Gemma 4, the assistant published beside it.
"""

from __future__ import annotations

from services.generation.drafting.draft_tree.candidates import HEAD_NOISE
from services.generation.drafting.head_drafter import ARITHMETIC
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
from services.generation.target.target import Target


class MtpDrafter(StepDrafter):
    """Drafts with an MTP block."""

    def __init__(self, block: MtpBlock, target: Target, *, noise: float = HEAD_NOISE, copies: bool = False) -> None:
        entries = MtpPass(block, target, cache_blocks(target), arithmetic=ARITHMETIC)
        super().__init__(block, entries, target, noise=noise, copies=copies)


def drafter_of(head: MtpBlock | Assistant, target: Target, *, copies: bool = False) -> StepDrafter:
    """A drafter with a head of this method."""
    if isinstance(head, Assistant):
        return AssistantDrafter(head, target, copies=copies)
    return MtpDrafter(head, target, copies=copies)


def _build(parts: DrafterInputs) -> dict[str, StepDrafter]:
    """One for each head, its steps timed."""
    own = {name: head for name, head in parts.heads.items() if isinstance(head, MtpBlock | Assistant)}
    return {name: drafter_of(head, parts.target, copies=True) for name, head in own.items()}


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
