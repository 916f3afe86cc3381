"""What sequences have left in the key/value cache, for those that begin alike: automatic prefix caching.

Keys and values of a token are the same bits whoever computed them (DESIGN §1), so a block of them serves every sequence
with the same tokens up to its end and the same adapter. Tenants share none: how fast an answer comes would tell one of
them what another has asked.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.sequence import Sequence
from services.generation.target.blocks import BLOCK, BlockPool

Float32 = NDArray[np.float32]


@dataclass(slots=True, eq=False)
class _Node:
    """A full block after those of its ancestors, and features [BLOCK, layers * hidden] where some have been read."""

    block: int
    layers: tuple[int, ...] = ()
    features: Float32 | None = None


@dataclass(slots=True)
class _Place:
    """How far a sequence's tokens are known here: below `node`, up to `tokens`; what was computed since."""

    node: Hashable
    tokens: int
    layers: tuple[int, ...]
    waiting: list[Float32] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Found:
    """Blocks that a sequence begins with: so many tokens, and the features of `layers` of all of them."""

    tokens: int
    features: tuple[Float32, ...]  # block by block; empty where no layers were asked for


class PrefixCache:
    """Blocks by the tokens they hold and the blocks before them. Used by the engine's thread.

    Only full blocks are shared, and at least one token of a sequence is left to be computed.
    """

    def __init__(self, blocks: BlockPool) -> None:
        self._blocks = blocks
        self._nodes: dict[tuple[Hashable, tuple[int, ...]], _Node] = {}
        self._places: dict[Sequence, _Place] = {}

    def __len__(self) -> int:
        """Blocks that are known."""
        return len(self._nodes)

    def enter(self, sequence: Sequence, layers: tuple[int, ...]) -> Found:
        """Give an empty table the blocks that are known; `layers` are those whose features the drafter reads."""
        assert not sequence.table
        node: Hashable = (sequence.request.tenant, sequence.request.adapter)
        features: list[Float32] = []
        for first in range(0, len(sequence.tokens) - BLOCK, BLOCK):
            known = self._nodes.get((node, _block(sequence, first)))
            if known is None or (layers and known.layers != layers):
                break
            self._blocks.share(sequence.table, known.block)
            node = known
            if known.features is not None and layers:
                features.append(known.features)
        sequence.cached = len(sequence.table) * BLOCK
        self._places[sequence] = _Place(node, sequence.cached, layers)
        return Found(sequence.cached, tuple(features))

    def computed(self, sequence: Sequence, features: Float32 | None) -> None:
        """Its tokens up to `cached` are in the cache for good; `features` are those of the tokens since the last call.
        Where there are none, none are learned from here on.
        """
        place = self._places.get(sequence)
        if place is None:
            return
        if features is None:
            place.layers, place.waiting = (), []
        elif place.layers:
            place.waiting.append(features)
        while sequence.cached - place.tokens >= BLOCK:
            self._learn(sequence, place)

    def _learn(self, sequence: Sequence, place: _Place) -> None:
        """The next full block. Where another sequence has filled one with the same tokens, that one stays."""
        features = _taken(place)
        key = place.node, _block(sequence, place.tokens)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = _Node(sequence.table[place.tokens // BLOCK])
            self._blocks.keep(node.block, lambda: self._forget(key))
        if features is not None:
            node.layers, node.features = place.layers, features
        place.node, place.tokens = node, place.tokens + BLOCK

    def _forget(self, key: tuple[Hashable, tuple[int, ...]]) -> None:
        del self._nodes[key]

    def leave(self, sequence: Sequence) -> None:
        """It gives up its table."""
        self._places.pop(sequence, None)


def _block(sequence: Sequence, first: int) -> tuple[int, ...]:
    return tuple(sequence.tokens[first : first + BLOCK])


def _taken(place: _Place) -> Float32 | None:
    """The features of the next block, copied, so that they hold no pass's memory."""
    if not place.layers:
        return None
    together = np.concatenate(place.waiting)
    place.waiting = [together[BLOCK:].copy()]
    return together[:BLOCK].copy()
