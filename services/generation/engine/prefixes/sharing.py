"""Sequences that begin alike are computed once: those that came first compute, the others wait and take over.

They share keys, values and features, bit for bit those that each would have computed itself. Before every
pass it is decided anew which sequence computes and which wait. So no message is needed when the one that computed is
cancelled, preempted or fails: the next one computes.
"""

from __future__ import annotations

from services.generation.engine.prefixes.place import Place
from services.generation.engine.prefixes.prefix_cache import Piece, PrefixCache
from services.generation.engine.sequence import Sequence
from services.generation.engine.speculation import Speculation
from services.generation.target.blocks import BLOCK, blocks_for
from services.generation.target.errors import CacheFull
from services.generation.target.target import Float32, Target

_WORTH_A_PASS = 16  # tokens: a sequence does not wait for less, it would begin to answer later for little


class PrefixSharing:
    """Gives sequences what others have computed. Used by the engine's thread, between passes."""

    def __init__(self, target: Target, speculation: Speculation, feature_bytes: int, *, on: bool) -> None:
        """If it is not `on`, it keeps and shares nothing."""
        self._target, self._speculation, self._on = target, speculation, on
        self._cache = PrefixCache(target.blocks, feature_bytes)
        self.reused_tokens = 0

    @property
    def feature_bytes(self) -> int:
        """Bytes of the features kept for prefixes."""
        return self._cache.feature_bytes

    def room_for(self, sequence: Sequence) -> int:
        """Free blocks that a sequence needs at least before it is admitted; its draft has begun."""
        needed = blocks_for(len(sequence.tokens) + 1)
        if needed <= self._target.blocks.free or not self._takes_part(sequence):
            return needed
        return needed - self._cache.in_use(sequence, self._speculation.feature_layers([sequence]))

    def enter(self, sequence: Sequence) -> None:
        """A sequence was admitted, its table empty."""
        if self._takes_part(sequence):
            self._cache.enter(sequence, self._speculation.feature_layers([sequence]))

    def _takes_part(self, sequence: Sequence) -> bool:
        return self._on and sequence.request.reuse

    def computed(self, sequence: Sequence, features: Float32 | None) -> None:
        """As `PrefixCache.computed`."""
        self._cache.computed(sequence, features)

    def leave(self, sequence: Sequence) -> None:
        """It gives up its table."""
        self._cache.leave(sequence)

    def share(self, running: list[Sequence]) -> set[Sequence]:
        """Give each of `running`, by arrival, what is there for it; returns those that wait for another one.

        The first one that is not done with its prompt never waits, and nobody waits for one that waits itself or comes
        later: so there is no circle, and who is waited for takes part in the pass that follows.
        """
        computing: list[Sequence] = []
        waiting: set[Sequence] = set()
        for sequence in running:
            if sequence.pending > 1 and self._waits(sequence, computing):
                waiting.add(sequence)
            elif sequence.pending > 1:
                computing.append(sequence)
        return waiting

    def _waits(self, sequence: Sequence, computing: list[Sequence]) -> bool:
        """Whether one of `computing` will soon have what is next. If none will, what is there of a block is copied."""
        place = self._cache.border(sequence)
        if place is None:
            return False
        self._follow(place)
        piece, coming = self._cache.known_piece(place), 0
        for other in self._cache.beside(place):
            there, comes = other.sequence.cached - other.tokens, other.sequence in computing
            count = place.alike(other.block) if there or comes else 0
            if min(count, there) > (piece.tokens if piece else 0):
                piece = self._cache.unfilled_piece(place, other, min(count, there))
            if comes:
                coming = max(coming, count)
        if coming == BLOCK or coming >= (piece.tokens if piece else 0) + _WORTH_A_PASS:
            return True
        if piece is not None:
            self._copy(place, piece)
        return False

    def _follow(self, place: Place) -> None:
        start = place.tokens
        for number, features in enumerate(self._cache.follow(place)):
            self._speculation.read(place.sequence, start + number * BLOCK, features, place.layers)
        self._count(place.sequence, place.tokens - start)

    def _copy(self, place: Place, piece: Piece) -> None:
        """Into a block of its own, which it goes on to fill in another way. Nobody is preempted for its room.

        That may be the very block that the piece is from, given up for this: what is in it stays.
        """
        sequence = place.sequence
        try:
            self._target.blocks.extend(sequence.table, sequence.cached + piece.tokens)
        except CacheFull:
            return
        first, copy = piece.block * BLOCK, sequence.table[-1] * BLOCK
        self._target.move([*range(first, first + piece.tokens)], [*range(copy, copy + piece.tokens)])
        sequence.cached += piece.tokens
        if piece.features is not None:
            self._speculation.read(sequence, place.tokens, piece.features, place.layers)
        self._cache.computed(sequence, piece.features)
        self._count(sequence, piece.tokens)

    def _count(self, sequence: Sequence, tokens: int) -> None:
        sequence.tracker.reused(tokens)
        self.reused_tokens += tokens
