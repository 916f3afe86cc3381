"""Automatic prefix caching: blocks of the key/value cache serve later sequences that begin alike.

Keys and values of a token are the same bits in every sequence (docs/numerics.md). So a block of them serves every
sequence with the same adapter and the same tokens up to its end. Tenants share none: the time of an answer would tell
one of them what another has asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.prefixes.kept_features import KeptFeatures
from services.generation.engine.prefixes.place import Before, Place, PrefixNode, Tokens
from services.generation.engine.sequence import Sequence
from services.generation.target.blocks import BLOCK, BlockPool

Float32 = NDArray[np.float32]
_LOOKED_AT = 64  # blocks of those that may follow, the newest ones


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
        self._features = KeptFeatures(feature_bytes)
        self._places: dict[Sequence, Place] = {}

    @property
    def feature_bytes(self) -> int:
        """Bytes of the features that are kept with the blocks."""
        return self._features.bytes

    def enter(self, sequence: Sequence, layers: tuple[int, ...]) -> None:
        """A sequence without any blocks takes part; `layers` are those whose features its drafter reads."""
        assert not sequence.table
        self._places[sequence] = Place(sequence, layers)

    def border(self, sequence: Sequence) -> Place | None:
        """Where it stands; None where it takes no part, or has begun to fill a block."""
        place = self._places.get(sequence)
        return place if place is not None and place.at_border else None

    def beside(self, place: Place) -> list[Place]:
        """The others that compute, or have in their last block, what may serve a sequence at `place` next."""
        return [other for other in self._places.values() if other is not place and other.serves(place)]

    def follow(self, place: Place) -> list[Float32]:
        """Give a sequence at a border the blocks known to come next; returns their features, block by block, where its
        drafter reads some.
        """
        found = list[Float32]()
        while (node := self._next(place)) is not None:
            self._blocks.share(place.sequence.table, node.block)
            place.go_on(node)
            features = self._features.of(node, place.layers)
            if features is not None:
                found.append(features)
        place.sequence.cached = place.tokens
        if found and place.node is not None:
            self._features.use(place.node)
        return found

    def in_use(self, sequence: Sequence, layers: tuple[int, ...]) -> int:
        """Of the blocks that a sequence would begin with, those that others stand in: it needs no room for them."""
        place = Place(sequence, layers)
        while (node := self._next(place)) is not None and self._blocks.in_use(node.block):
            place.go_on(node)
        return place.tokens // BLOCK

    def _next(self, place: Place) -> PrefixNode | None:
        """The next full block, if a sequence at `place` may have it."""
        if place.tokens + BLOCK >= len(place.sequence.tokens):
            return None
        node = self._following.get(place.before, {}).get(place.block)
        usable = node is not None and (not place.layers or self._features.of(node, place.layers) is not None)
        return node if usable else None

    def known_piece(self, place: Place) -> Piece | None:
        """The longest of a known block that the sequence goes on with, where it may have no whole one."""
        best: Piece | None = None
        for tokens, node in islice(reversed(self._following.get(place.before, {}).items()), _LOOKED_AT):
            count = place.alike(tokens)
            features = self._features.of(node, place.layers) if place.layers else None
            if count > (best.tokens if best else 0) and (features is not None or not place.layers):
                best = Piece(node.block, count, None if features is None else features[:count])
        return best

    def unfilled_piece(self, place: Place, other: Place, count: int) -> Piece:
        """Of the block that the sequence of `other`, which is beside `place`, is filling."""
        features = np.concatenate(other.unfilled)[:count] if place.layers else None
        return Piece(other.sequence.table[other.tokens // BLOCK], count, features)

    def computed(self, sequence: Sequence, features: Float32 | None) -> None:
        """Its tokens up to `cached` are in the cache for good; `features` are those of the tokens since the last call.
        Where there are none, none are learned from here on.
        """
        place = self._places.get(sequence)
        if place is None:
            return
        if features is None:
            place.layers, place.unfilled = (), []
        elif place.layers:
            place.unfilled.append(features)
        while sequence.cached - place.tokens >= BLOCK:
            self._learn(place)

    def _learn(self, place: Place) -> None:
        """The next full block. Where another sequence has filled one with the same tokens, that one stays."""
        features, before, tokens = place.features_of_block(), place.before, place.block
        following = self._following.setdefault(before, {})
        node = following.get(tokens)
        if node is None:
            node = following[tokens] = PrefixNode(place.sequence.table[place.tokens // BLOCK], place.node)
            self._blocks.keep(node.block, lambda: self._forget(before, tokens))
        if features is not None:
            self._features.keep(node, place.layers, features)
        place.go_on(node)

    def _forget(self, before: Before, tokens: Tokens) -> None:
        following = self._following[before]
        self._features.drop(following.pop(tokens))
        if not following:
            del self._following[before]

    def leave(self, sequence: Sequence) -> None:
        """It gives up its table."""
        self._places.pop(sequence, None)
