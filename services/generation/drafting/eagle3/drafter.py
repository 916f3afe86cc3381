"""EAGLE-3 as a method: one head drafts for all asking sequences, a level of all their trees at a time.

After Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025).
"""

from __future__ import annotations

from services.generation.drafting.eagle3.checkpoint import LAYOUT, Head
from services.generation.drafting.eagle3.head_pass import HeadPass
from services.generation.drafting.eagle3.loading import confirm_layers, is_eagle3, load_head
from services.generation.drafting.head_drafter import ARITHMETIC
from services.generation.drafting.heads import HeadKind
from services.generation.drafting.method_spec import DrafterInputs, MethodSpec, Parameter
from services.generation.drafting.stepping.entry_pass import Entries
from services.generation.drafting.stepping.step_drafter import StepDrafter, cache_blocks
from services.generation.target.target import Target

_PROBE = "The capital of France is Paris. Once upon a time, in a small town by the sea, there"
"""The prompt of the probe that confirms a published head's layers."""


class Eagle3Drafter(StepDrafter):
    """Drafts with an EAGLE-3 head."""

    def __init__(self, head: Head, target: Target, *, copies: bool = False) -> None:
        self.head = head
        super().__init__(head, _entries(head, target), target, copies=copies)


def _entries(head: Head, target: Target) -> Entries:
    """The head's passes, where those of the target are computed."""
    blocks, length = cache_blocks(target), target.config.context_length
    if target.device == "cpu":
        return HeadPass(head, target.embed, blocks, length, threads=target.threads, arithmetic=ARITHMETIC)
    from services.generation.drafting.eagle3.device_pass import DeviceHeadPass
    from services.generation.target.gpu.gpu_target import GpuTarget

    assert isinstance(target, GpuTarget)
    return DeviceHeadPass(head, target, blocks)


def _build(parts: DrafterInputs) -> dict[str, Eagle3Drafter]:
    """A drafter for each head, with its layers confirmed and its steps timed."""
    own = {name: head for name, head in parts.heads.items() if isinstance(head, Head)}
    prompt = parts.tokenizer.encode(_PROBE) if own else []
    return {
        name: Eagle3Drafter(confirm_layers(head, parts.target, prompt), parts.target, copies=True)
        for name, head in own.items()
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
        Parameter("tree_width", 1, 16, "children considered below a node, and nodes expanded at each depth"),
        Parameter("tree_tokens", 1, 64, "draft tokens verified in a pass"),
    ),
    heads=HeadKind(
        is_eagle3,
        f"layout {LAYOUT}, speculators_model_type eagle3, or a flat Llama config with draft_vocab_size",
        load_head,
    ),
)
