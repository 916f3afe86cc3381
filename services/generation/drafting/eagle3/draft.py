"""The head's side of one sequence: its entries in the head's cache, and the tree that is being verified."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.copies import OwnText
from services.generation.drafting.draft_tree.draft_tree import DraftTree
from services.generation.drafting.draft_tree.expansion import Speaking
from services.generation.drafting.draft_tree.shape import DraftShape
from services.generation.drafting.eagle3.head_pass import HeadPass
from services.generation.drafting.prediction import Prediction
from services.generation.engine.drafter import Draft
from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree
from services.generation.target.blocks import slot_of
from services.generation.target.errors import CacheFull
from services.generation.target.rows import PlacedNode, RowsBuilder

Float32 = NDArray[np.float32]

_FEW = 16  # features that are read together with the next draft
_MOST_WAITING = 1 << 23  # bytes of features that wait for the head's next draft; it may never come


class Eagle3Draft(Draft):
    """`Draft` of one sequence.

    Entries [0, length) are in the head's cache, computed from features of committed tokens only. Features that were
    read and not computed yet are `waiting`. Entries of draft steps lie behind them and are never counted: the next
    features overwrite them, so the cache follows the accepted path.
    """

    def __init__(
        self,
        request: EngineRequest,
        shape: DraftShape,
        speaking: Speaking,
        head: HeadPass,
        store: Callable[[Eagle3Draft, int], None],
    ) -> None:
        """`store` computes the entries of so many features from `length` on."""
        self.shape, self.speaking, self.text, self.prediction = shape, speaking, OwnText(), Prediction(request)
        self.table: list[int] = []
        self.length = 0
        self.tokens: list[int] = []  # that follow the waiting features, one each
        self._waiting: list[Float32] = []
        self._head, self._store = head, store
        self._placed: dict[int, PlacedNode] = {}  # nodes of the tree in flight that the head has computed
        self._level: list[int] = []  # those that it computed last

    @property
    def tree(self) -> DraftTree | None:
        """In flight."""
        return self.speaking.tree

    @property
    def computed(self) -> int:
        """Nodes that the head computed last."""
        return len(self._level)

    @property
    def waiting(self) -> int:
        return len(self.tokens)

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        """Raises ValueError if positions were left out."""
        if start == 0 and self.length:
            self.release()
        if start != self.length + self.waiting:
            raise ValueError(f"features from position {start}; expected {self.length + self.waiting}")
        self._waiting.append(features)
        self.tokens += tokens[start + 1 : start + 1 + len(features)]
        if self.waiting > _FEW and self.waiting * features.itemsize * features.shape[1] > _MOST_WAITING:
            self._store_all_but_one()
        else:
            self._waiting[-1] = features.copy()

    def settle(self) -> None:
        """Read the waiting features, but for those that the next draft reads anyway."""
        if self.waiting > _FEW:
            self._store_all_but_one()

    def _store_all_but_one(self) -> None:
        """The last feature waits: the next draft begins with it. Where the cache is full, all go on waiting."""
        features = self.features()
        try:
            self._store(self, self.waiting - 1)
        except CacheFull:
            self._waiting = [features.copy()]
            return
        self.length += self.waiting - 1
        self.tokens, self._waiting = self.tokens[-1:], [features[-1:].copy()]

    def features(self) -> Float32:
        """Those that are waiting, [waiting, layers * hidden]."""
        return self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)

    def caught_up(self) -> None:
        """The waiting features are in the cache; draft entries start behind them, with those below the root."""
        self.length += self.waiting
        self._waiting.clear()
        self.tokens, self._placed, self._level = [], {}, [0]

    def add_frontier(self, rows: RowsBuilder) -> list[int]:
        """Add the frontier of the tree as the next level. Returns each node's parent, by place in the level before. A
        node's entry lies behind all computed ones.
        """
        assert self.tree is not None
        nodes, root = self.tree.nodes, PlacedNode(0, 0, 0, self.length, ())
        frontier: list[int] = self.tree.frontier.tolist()
        before = {node: place for place, node in enumerate(self._level)}
        sources = []
        for node in frontier:
            parent = int(nodes[node]["parent"])
            above, entry = self._placed.get(parent, root), self.length + len(self._placed)
            slot, straight = slot_of(self.table, entry), not above.branch and above.run == entry
            self._placed[node] = PlacedNode(
                token=int(nodes[node]["token"]),
                position=self.length + int(nodes[node]["depth"]) - 1,
                slot=slot,
                run=above.run + straight,
                branch=() if straight else (*above.branch, slot),
            )
            sources.append(before[parent])
        rows.add_level(self.table, [self._placed[node] for node in frontier])
        self._level = frontier
        return sources

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        self.speaking.observe(tree.tokens[0], tokens[-len(path) :])

    def release(self) -> None:
        self._head.blocks.release(self.table)
        self.length = 0
        self._waiting.clear()
        self.tokens, self.speaking.tree = [], None
