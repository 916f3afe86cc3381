"""What sequences have left in the key/value cache, for those that begin alike: automatic prefix caching.

Keys and values of a token are the same bits whoever computed them (DESIGN §1), so a block of them serves every sequence
with the same tokens up to its end and the same adapter. Tenants share none: how fast an answer comes would tell one of
them what another has asked.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.prefix_features import PrefixFeatures
from services.generation.engine.prefix_node import PrefixNode
from services.generation.engine.sequence import Sequence
from services.generation.target.blocks import BLOCK, BlockPool

Float32 = NDArray[np.float32]
_LOOKED_AT = 64  # blocks of those that may follow, the newest ones

Owner = tuple[str | None, str | None]  # tenant and adapter
Before = tuple[Owner, PrefixNode | None]
Tokens = tuple[int, ...]


@dataclass(slots=True)
class Place:
    """How far a sequence's tokens are known here: to the end of `node`, `tokens` of them.

    `waiting` are features of those computed since, of `layers`: of all of them, or there are no layers.
    """

    owner: Owner
    layers: tuple[int, ...]
    node: PrefixNode | None = None
    tokens: int = 0
    waiting: list[Float32] = field(default_factory=list)

    @property
    def before(self) -> Before:
        return self.owner, self.node

    def serves(self, other: Place) -> bool:
        """Whether what is computed from here on is what `other` needs next, features included."""
        return self.before == other.before and other.layers in ((), self.layers)


@dataclass(frozen=True, slots=True)
class Piece:
    """The first `tokens` slots of a block, and features of them where they were asked for."""

    block: int
    tokens: int
    features: Float32 | None


class PrefixCache:
    """Blocks by the tokens they hold and the blocks before them. Used by the engine's thread.

    Full blocks are shared; of one that begins as a sequence goes on a piece can be copied. At least one token of a
    sequence is left to be computed.
    """

    def __init__(self, blocks: BlockPool, feature_bytes: int) -> None:
        self._blocks = blocks
        self._following: dict[Before, dict[Tokens, PrefixNode]] = {}
        self._features = PrefixFeatures(feature_bytes)
        self._places: dict[Sequence, Place] = {}

    def __len__(self) -> int:
        """Blocks that are known."""
        return sum(len(nodes) for nodes in self._following.values())

    @property
    def feature_bytes(self) -> int:
        """What the features kept with them take."""
        return self._features.bytes

    def enter(self, sequence: Sequence, layers: tuple[int, ...]) -> None:
        """A sequence without any blocks takes part; `layers` are those whose features its drafter reads."""
        assert not sequence.table
        self._places[sequence] = Place((sequence.request.tenant, sequence.request.adapter), layers)

    def place(self, sequence: Sequence) -> Place | None:
        """Where it stands; None where it takes no part, or has begun to fill a block."""
        place = self._places.get(sequence)
        at_border = place is not None and place.tokens == sequence.cached == len(sequence.table) * BLOCK
        return place if at_border else None

    def beside(self, sequence: Sequence) -> list[Sequence]:
        """The others that compute, or have in their last block, what may serve it next."""
        place = self._places[sequence]
        return [other for other, its in self._places.items() if other is not sequence and its.serves(place)]

    def follow(self, sequence: Sequence) -> list[Float32]:
        """Give a sequence that stands at a border the blocks known to come next; returns their features, block by
        block, where its drafter reads some.
        """
        place, found = self._places[sequence], list[Float32]()
        while place.tokens + BLOCK < len(sequence.tokens):
            node = self._following.get(place.before, {}).get(_next_block(place, sequence))
            features = None if node is None else self._features.of(node, place.layers)
            if node is None or (place.layers and features is None):
                break
            self._blocks.share(sequence.table, node.block)
            place.node, place.tokens = node, place.tokens + BLOCK
            if features is not None:
                found.append(features)
        sequence.cached = place.tokens
        if found and place.node is not None:
            self._features.use(place.node)
        return found

    def known_piece(self, sequence: Sequence) -> Piece | None:
        """The longest of known blocks that a sequence at a border, the blocks known being its own, can go on with."""
        place, best = self._places[sequence], None
        following = self._following.get(place.before, {})
        for tokens, node in islice(reversed(following.items()), _LOOKED_AT):
            count = alike(sequence, tokens, place.tokens)
            features = self._features.of(node, place.layers) if place.layers else None
            if count > (best.tokens if best else 0) and (features is not None or not place.layers):
                best = Piece(node.block, count, None if features is None else features[:count])
        return best

    def piece_of(self, other: Sequence, sequence: Sequence, count: int) -> Piece:
        """Of the block that `other`, which is beside `sequence`, is filling."""
        its = self._places[other]
        features = np.concatenate(its.waiting)[:count] if self._places[sequence].layers else None
        return Piece(other.table[its.tokens // BLOCK], count, features)

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

    def _learn(self, sequence: Sequence, place: Place) -> None:
        """The next full block. Where another sequence has filled one with the same tokens, that one stays."""
        features, before, tokens = _taken(place), place.before, _next_block(place, sequence)
        following = self._following.setdefault(before, {})
        node = following.get(tokens)
        if node is None:
            node = following[tokens] = PrefixNode(sequence.table[place.tokens // BLOCK], place.node)
            self._blocks.keep(node.block, lambda: self._forget(before, tokens))
        if features is not None:
            self._features.keep(node, place.layers, features)
        place.node, place.tokens = node, place.tokens + BLOCK

    def _forget(self, before: Before, tokens: Tokens) -> None:
        following = self._following[before]
        self._features.drop(following.pop(tokens))
        if not following:
            del self._following[before]

    def leave(self, sequence: Sequence) -> None:
        """It gives up its table."""
        self._places.pop(sequence, None)


def alike(sequence: Sequence, other: Collection[int], start: int) -> int:
    """Tokens from `start` on, up to a block, that `other` begins with; the last of `sequence` is never among them."""
    end = min(start + BLOCK, len(sequence.tokens) - 1)
    pairs = zip(sequence.tokens[start:end], other, strict=False)
    return next((count for count, (mine, its) in enumerate(pairs) if mine != its), min(end - start, len(other)))


def _next_block(place: Place, sequence: Sequence) -> Tokens:
    return tuple(sequence.tokens[place.tokens : place.tokens + BLOCK])


def _taken(place: Place) -> Float32 | None:
    """The features of the next block, copied, so that they hold no pass's memory."""
    if not place.layers:
        return None
    together = np.concatenate(place.waiting)
    place.waiting = [together[BLOCK:].copy()]
    return together[:BLOCK].copy()
