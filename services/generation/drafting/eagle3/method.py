"""EAGLE-3's line in the table of methods."""

from __future__ import annotations

from services.generation.drafting.eagle3.confirmation import confirm_layers
from services.generation.drafting.eagle3.drafter import Eagle3Drafter
from services.generation.drafting.method_spec import MethodSpec, Parameter, Parts

_PROBE = "The capital of France is Paris. Once upon a time, in a small town by the sea, there"
"""The prompt that the base continues to confirm a published head's layers."""


def _build(parts: Parts) -> dict[str, Eagle3Drafter]:
    """One for each head, its layers confirmed and its steps timed."""
    prompt = parts.tokenizer.encode(_PROBE) if parts.heads else []
    return {
        name: Eagle3Drafter(confirm_layers(head, parts.target, prompt), parts.target, parts.cost, copies=True)
        for name, head in parts.heads.items()
    }


METHOD = MethodSpec(
    name="eagle3",
    meaning="a head on the target's own hidden states drafts trees",
    build=_build,
    missing="no_head",
    flag="--head",
    workloads=("single_tenant", "structured"),
    depth=16,
    parameters=(
        Parameter("tree_width", 1, 16, "children looked at below a node, and nodes expanded at each depth"),
        Parameter("tree_tokens", 1, 64, "draft tokens verified in a pass"),
    ),
    has_heads=True,
)
