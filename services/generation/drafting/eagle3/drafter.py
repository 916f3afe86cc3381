"""EAGLE-3 as a method: one head drafts for all sequences that ask, a level of all their trees at a time.

After Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.generation.drafting.draft_tree.candidates import HEAD_NOISE, DraftShape
from services.generation.drafting.draft_tree.draft_tree import expand
from services.generation.drafting.eagle3.checkpoint import LAYOUT
from services.generation.drafting.eagle3.head_pass import MOST_ROWS, Head, HeadPass
from services.generation.drafting.eagle3.levels import Levels, next_level
from services.generation.drafting.eagle3.loading import check_head, confirm_layers, is_eagle3, load_head
from services.generation.drafting.head_drafter import ARITHMETIC, SPARE_BLOCKS, HeadDraft, HeadDrafter
from services.generation.drafting.heads import HeadKind
from services.generation.drafting.method_spec import DrafterInputs, MethodSpec, Parameter
from services.generation.engine.cost import PassCost
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target


class Eagle3Drafter(HeadDrafter):
    """A step of the head for each level of the trees."""

    def __init__(
        self, head: Head, target: Target, cost: PassCost, *, noise: float = HEAD_NOISE, copies: bool = False
    ) -> None:
        self.head = head
        blocks, length = target.blocks.total + SPARE_BLOCKS, target.config.context_length
        self._pass = HeadPass(head, target.embed, blocks, length, threads=target.threads, arithmetic=ARITHMETIC)
        super().__init__(head, self._pass, target, cost, noise=noise, copies=copies)

    def entries(self, shape: DraftShape) -> int:
        return 1 + shape.depth * shape.width

    def _store(self, draft: HeadDraft, count: int) -> None:
        self._pass.blocks.extend(draft.table, draft.length + count)
        entries = RowsBuilder()
        entries.add_chunk(draft.table, draft.length, draft.tokens[:count], False)
        self._pass.read(entries.build(), draft.features()[:count])

    def expand(self, drafts: Sequence[HeadDraft]) -> None:
        """The entries of committed tokens, then those of the frontiers of all trees, until none has one."""
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


_PROBE = "The capital of France is Paris. Once upon a time, in a small town by the sea, there"
"""The prompt that the base continues to confirm a published head's layers."""


def _build(parts: DrafterInputs) -> dict[str, Eagle3Drafter]:
    """One for each head, its layers confirmed and its steps timed."""
    own = {name: head for name, head in parts.heads.items() if isinstance(head, Head)}
    prompt = parts.tokenizer.encode(_PROBE) if own else []
    return {
        name: Eagle3Drafter(confirm_layers(head, parts.target, prompt), parts.target, parts.cost, copies=True)
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
        Parameter("tree_width", 1, 16, "children looked at below a node, and nodes expanded at each depth"),
        Parameter("tree_tokens", 1, 64, "draft tokens verified in a pass"),
    ),
    heads=HeadKind(
        is_eagle3,
        f"layout {LAYOUT}, speculators_model_type eagle3, or a flat Llama config with draft_vocab_size",
        load_head,
        check_head,
    ),
)
