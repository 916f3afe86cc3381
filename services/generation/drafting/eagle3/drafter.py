"""EAGLE-3 as a method: one head drafts for all sequences that ask, a level of all their trees at a time.

After Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via Training-Time Test" (2025).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from services.generation.drafting.draft_tree.candidates import HEAD_NOISE, DraftShape
from services.generation.drafting.draft_tree.draft_tree import expand
from services.generation.drafting.eagle3.checkpoint import LAYOUT
from services.generation.drafting.eagle3.head_pass import Head, HeadPass
from services.generation.drafting.eagle3.loading import confirm_layers, is_eagle3, load_head
from services.generation.drafting.head_drafter import ARITHMETIC, SPARE_BLOCKS, HeadDraft, HeadDrafter
from services.generation.drafting.heads import HeadKind
from services.generation.drafting.method_spec import DrafterInputs, MethodSpec, Parameter
from services.generation.engine.cost import PassCost
from services.generation.target.blocks import slot_of
from services.generation.target.rows import PlacedNode, RowsBuilder
from services.generation.target.target import Target


class _Levels:
    """The levels of one tree, as the head computes them behind all committed entries."""

    def __init__(self, draft: HeadDraft) -> None:
        self.draft = draft
        self._placed: dict[int, PlacedNode] = {}  # nodes that the head has computed
        self._level = [0]  # those that it computed last, the root first

    @property
    def computed(self) -> int:
        """Nodes that the head computed last."""
        return len(self._level)

    def add_frontier(self, rows: RowsBuilder) -> list[int]:
        """Add the frontier of the tree as the next level. Returns each node's parent, by place in the level before."""
        draft, tree = self.draft, self.draft.tree
        assert tree is not None
        nodes, root = tree.nodes, PlacedNode(0, 0, 0, draft.length, ())
        frontier: list[int] = tree.frontier.tolist()
        before = {node: place for place, node in enumerate(self._level)}
        sources = []
        for node in frontier:
            parent = int(nodes[node]["parent"])
            above, entry = self._placed.get(parent, root), draft.length + len(self._placed)
            slot, straight = slot_of(draft.table, entry), not above.branch and above.run == entry
            self._placed[node] = PlacedNode(
                token=int(nodes[node]["token"]),
                position=draft.length + int(nodes[node]["depth"]) - 1,
                slot=slot,
                run=above.run + straight,
                branch=() if straight else (*above.branch, slot),
            )
            sources.append(before[parent])
        rows.add_level(draft.table, [self._placed[node] for node in frontier])
        self._level = frontier
        return sources


class Eagle3Drafter(HeadDrafter):
    """A step of the head for each level of the trees."""

    def __init__(
        self, head: Head, target: Target, cost: PassCost, *, noise: float = HEAD_NOISE, copies: bool = False
    ) -> None:
        self.head = head
        blocks, length = target.blocks.total + SPARE_BLOCKS, target.config.context_length
        self._pass = HeadPass(head, target.embed, blocks, length, threads=target.threads, arithmetic=ARITHMETIC)
        super().__init__(head, self._pass, target, cost, noise=noise, copies=copies)

    def _entries(self, shape: DraftShape) -> int:
        return 1 + shape.depth * shape.width

    def _store(self, draft: HeadDraft, count: int) -> None:
        self._pass.blocks.extend(draft.table, draft.length + count)
        entries = RowsBuilder()
        entries.add_chunk(draft.table, draft.length, draft.tokens[:count], False)
        self._pass.read(entries.build(), draft.features()[:count])

    def _expand(self, drafts: Sequence[HeadDraft]) -> None:
        """The entries of committed tokens, then those of the frontiers of all trees, until none has one."""
        if not all(draft.waiting for draft in drafts):
            raise ValueError("a draft has no feature to begin with")
        rows = RowsBuilder()
        for draft in drafts:
            rows.add_chunk(draft.table, draft.length, draft.tokens, True)
        features = np.concatenate([draft.features() for draft in drafts])
        for draft in drafts:
            draft.caught_up()
        out, growing = self._pass.read(rows.build(), features), [_Levels(draft) for draft in drafts]
        while True:
            expand([levels.draft.speaking for levels in growing], out.logits)
            rows, sources, first = RowsBuilder(), list[int](), 0
            for levels in growing:
                before = levels.computed
                sources += [first + source for source in levels.add_frontier(rows)]
                first += before
            if not len(rows):
                return
            growing = [levels for levels in growing if levels.computed]
            out = self._pass.step(rows.build(), out.states[sources])


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
    ),
)
