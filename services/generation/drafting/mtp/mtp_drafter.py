"""MTP as a method: the block that comes inside the base's checkpoint drafts a token at a time.

After Gloeckle et al., "Better & Faster Large Language Models via Multi-token Prediction" (2024), in the form that
DeepSeek-V3 (2024) gave it and Qwen3-Next and Qwen3.5 publish.
"""

from __future__ import annotations

from services.generation.drafting.draft_tree.candidates import HEAD_NOISE
from services.generation.drafting.head_drafter import ARITHMETIC
from services.generation.drafting.method_spec import DrafterInputs, MethodSpec, Parameter
from services.generation.drafting.mtp.block_weights import MtpBlock
from services.generation.drafting.mtp.mtp_pass import MtpPass
from services.generation.drafting.stepping.step_drafter import StepDrafter, cache_blocks
from services.generation.target.target import Target


class MtpDrafter(StepDrafter):
    """Drafts with an MTP block."""

    def __init__(self, block: MtpBlock, target: Target, *, noise: float = HEAD_NOISE, copies: bool = False) -> None:
        entries = MtpPass(block, target, cache_blocks(target), arithmetic=ARITHMETIC)
        super().__init__(block, entries, target, noise=noise, copies=copies)


def _build(parts: DrafterInputs) -> dict[str, MtpDrafter]:
    """One for the base's block, its steps timed."""
    own = {name: head for name, head in parts.heads.items() if isinstance(head, MtpBlock)}
    return {name: MtpDrafter(block, parts.target, copies=True) for name, block in own.items()}


METHOD = MethodSpec(
    name="mtp",
    meaning="the block inside the model's own checkpoint that predicts further tokens drafts trees",
    build=_build,
    missing="no_head",
    flag="a model whose files hold an MTP block, and without --no-own-head",
    depth=16,
    parameters=(
        Parameter("tree_width", 1, 16, "children looked at below a node, and nodes expanded at each depth"),
        Parameter("tree_tokens", 1, 64, "draft tokens verified in a pass"),
    ),
    own_head=True,
)
