"""Block drafters as a method: one pass of a head proposes tokens for several next positions.

After DFlash, DSpark (arXiv 2607.05147) and DFlash2. Beyond the papers, the positions' tokens form a tree, which is cut
by the costs of rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.generation.drafting.block.block_checkpoint import (
    KNOWN_BY,
    BlockHead,
    is_block,
    load_block_head,
)
from services.generation.drafting.block.block_pass import BlockPass, BlockPrograms
from services.generation.drafting.draft_tree.candidates import DraftShape
from services.generation.drafting.draft_tree.draft_tree import expand
from services.generation.drafting.head_drafter import ARITHMETIC, SPARE_BLOCKS, HeadDraft, HeadDrafter
from services.generation.drafting.heads import HeadKind
from services.generation.drafting.method_spec import DrafterInputs, MethodSpec, Parameter
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target


class BlockDrafter(HeadDrafter):
    """Drafts with one pass of the head, whose tokens are taken position by position."""

    width = "block_width"

    def __init__(self, head: BlockHead, target: Target, *, copies: bool = False) -> None:
        self.head = head
        blocks, length = target.blocks.total + SPARE_BLOCKS, target.config.context_length
        programs = _on_device(head, target, blocks)
        self._pass = BlockPass(head, target, blocks, length, arithmetic=ARITHMETIC, programs=programs)
        super().__init__(head, self._pass, target, depth=head.config.drafts, copies=copies)

    def entries(self, shape: DraftShape) -> int:
        return self.head.config.block_size

    def _store(self, draft: HeadDraft, count: int) -> None:
        rows = RowsBuilder()
        rows.add_chunk(draft.table, draft.length, draft.tokens[:count], False)
        self._pass.store(rows.build(), draft.features()[:count])

    def expand(self, drafts: Sequence[HeadDraft]) -> None:
        config = self.head.config
        if late := [draft for draft in drafts if draft.waiting]:
            rows, features = RowsBuilder(), np.concatenate([draft.features() for draft in late])
            for draft in late:
                rows.add_chunk(draft.table, draft.length, draft.tokens, False)
                draft.caught_up()
            self._pass.store(rows.build(), features)
        rows, masks = RowsBuilder(), [config.mask_token] * (config.block_size - 1)
        for draft in drafts:
            assert draft.tree is not None
            rows.add_block(draft.table, draft.length, [draft.tree.root, *masks], want_first=config.from_first)
        out = self._pass.draft(rows.build())
        logits, states = (x.reshape(len(drafts), config.drafts, -1) for x in (out.logits, out.states))
        for position in range(config.drafts):
            trees = [(number, draft.tree) for number, draft in enumerate(drafts) if draft.tree is not None]
            sources = [number for number, tree in trees for _ in tree.frontier]
            if not sources:
                return
            before = [int(tree.nodes[node]["token"]) for _, tree in trees for node in tree.frontier]
            adjusted = self._pass.add_previous(logits[sources, position], states[sources, position], before)
            sure = self._pass.confidence(states[sources, position], before)
            growing = [draft.state for draft in drafts if draft.tree is not None and len(draft.tree.frontier)]
            expand(growing, adjusted, sure)


def _on_device(head: BlockHead, target: Target, cache_blocks: int) -> BlockPrograms | None:
    """The head's programs on the target's device; None on the CPU."""
    if target.device == "cpu":
        return None
    from services.generation.drafting.block.device_programs import DevicePrograms
    from services.generation.target.gpu.gpu_target import GpuTarget

    assert isinstance(target, GpuTarget)
    return DevicePrograms(head, target, cache_blocks)


def _build(parts: DrafterInputs) -> dict[str, BlockDrafter]:
    """A drafter for each head, with its drafts timed."""
    own = {name: head for name, head in parts.heads.items() if isinstance(head, BlockHead)}
    return {name: BlockDrafter(head, parts.target, copies=True) for name, head in own.items()}


METHOD = MethodSpec(
    name="block",
    meaning="a head on the target's own hidden states drafts a block of tokens in one pass",
    build=_build,
    missing="no_head",
    flag="--head",
    depth=16,
    parameters=(Parameter("block_width", 1, 16, "tokens tried at each position of the block; 1 is a chain"),),
    heads=HeadKind(is_block, KNOWN_BY, load_block_head),
)
