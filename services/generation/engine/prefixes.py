"""Automatic prefix caching: sequences that begin alike are computed once.

Keys and values of a token are the same bits in every sequence (docs/numerics.md). So a block of them serves every
sequence with the same adapter and the same tokens up to its end, features included. Tenants share none: the time of an
answer would tell one of them what another has asked.

Those that came first compute, the others wait and take over. Before every pass it is decided anew which sequence
computes and which wait. So no message is needed when the one that computed is cancelled, preempted or fails: the next
one computes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice

import numpy as np

from services.generation.engine.prefix_disk import KeptBlock, Owner, PrefixDisk, Reading, Tokens, next_digest
from services.generation.engine.sequence import Sequence
from services.generation.engine.speculation import Speculation
from services.generation.target.arrays import Float32
from services.generation.target.blocks import BLOCK, blocks_for
from services.generation.target.errors import CacheFull
from services.generation.target.target import Target

_WORTH_A_PASS = 16  # tokens: a sequence does not wait for less, it would begin to answer later for little
_LOOKED_AT = 64  # blocks of those that may follow, the newest ones
_TAKING = 0.005  # seconds of a step in which a sequence takes over blocks from the disk


@dataclass(frozen=True, slots=True, eq=False)
class PrefixNode:
    """`block` of the cache holds the tokens after those of `parent`; None is before the first token."""

    block: int
    parent: PrefixNode | None
    digest: bytes  # its name on the disk, empty without one

    def upwards(self) -> Iterator[PrefixNode]:
        """This one first, the one that holds the first tokens last."""
        node: PrefixNode | None = self
        while node is not None:
            yield node
            node = node.parent


Before = tuple[Owner, PrefixNode | None]


@dataclass(slots=True)
class PrefixCursor:
    """At the end of `node`, after the first `tokens` tokens of `sequence`.

    `unfilled` are features of those computed since, of `layers`: of all of them, or there are no layers. `reading` are
    blocks that are on their way from the disk, waited for up to `patience`.
    """

    sequence: Sequence
    layers: tuple[int, ...]
    node: PrefixNode | None = None
    tokens: int = 0
    unfilled: list[Float32] = field(default_factory=list)
    reading: Reading | None = None
    patience: float = 0.0
    looks: bool = False  # on the disk
    entered: int = field(default_factory=time.time_ns)

    @property
    def owner(self) -> Owner:
        return self.sequence.request.tenant, self.sequence.request.adapter

    @property
    def before(self) -> Before:
        return self.owner, self.node

    @property
    def block(self) -> Tokens:
        """The tokens that follow, as many as a block holds or the sequence has."""
        return tuple(self.sequence.tokens[self.tokens : self.tokens + BLOCK])

    @property
    def at_border(self) -> bool:
        """Whether the sequence has not begun to fill the next block."""
        return self.tokens == self.sequence.cached == len(self.sequence.table) * BLOCK

    def can_feed(self, other: PrefixCursor) -> bool:
        """Whether what is computed from here on may be what `other` needs next, features included."""
        return self.before == other.before and other.layers in ((), self.layers)

    def common_prefix(self, tokens: Collection[int]) -> int:
        """How many of `tokens` are those that follow; its last, which it computes itself, does not count."""
        follow = self.block[: len(self.sequence.tokens) - 1 - self.tokens]
        pairs = zip(follow, tokens, strict=False)
        return next((i for i, (own, other) in enumerate(pairs) if own != other), min(len(follow), len(tokens)))

    def advance(self, node: PrefixNode) -> None:
        """To the end of the next block."""
        self.node, self.tokens = node, self.tokens + BLOCK

    def features_of_block(self) -> Float32 | None:
        """Take those of the next block out of `unfilled`."""
        if not self.layers:
            return None
        pieces, left = list[Float32](), BLOCK
        while left:
            first = self.unfilled.pop(0)
            pieces.append(first[:left])
            if len(first) > left:
                self.unfilled.insert(0, first[left:])
            left -= len(pieces[-1])
        return np.concatenate(pieces)


@dataclass(frozen=True, slots=True)
class _Kept:
    layers: tuple[int, ...]
    features: Float32  # [BLOCK, layers * hidden]


class KeptFeatures:
    """Features by block, up to a number of bytes; the least recently used are dropped first.

    A sequence reads features from its first token on, so a block is of no use without those before it: use of a block
    is use of all of them, and of one prefix the end is dropped before the beginning.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[PrefixNode, _Kept] = OrderedDict()  # the longest unused first
        self.bytes = 0

    def keep(self, node: PrefixNode, layers: tuple[int, ...], features: Float32) -> None:
        """Keep `features` in place of what `node` had, if there is room once older ones are dropped."""
        self.drop(node)
        if features.nbytes > self._most:
            return
        self._kept[node] = _Kept(layers, features)
        self.bytes += features.nbytes
        self.use(node)
        while self.bytes > self._most:
            self.drop(next(iter(self._kept)))

    def of(self, node: PrefixNode, layers: tuple[int, ...]) -> Float32 | None:
        """The node's features of `layers`; None where others, or none, are kept."""
        kept = self._kept.get(node)
        return kept.features if kept is not None and kept.layers == layers else None

    def use(self, node: PrefixNode) -> None:
        """A sequence is at the end of `node`."""
        for each in node.upwards():
            if each in self._kept:
                self._kept.move_to_end(each)

    def drop(self, node: PrefixNode) -> None:
        """Forget those of `node`, if there are any."""
        kept = self._kept.pop(node, None)
        if kept is not None:
            self.bytes -= kept.features.nbytes


@dataclass(frozen=True, slots=True)
class Piece:
    """The first `tokens` slots of a block, and features of them where they were asked for."""

    block: int
    tokens: int
    features: Float32 | None


class PrefixSharing:
    """Gives sequences what others have computed: blocks by the tokens they hold and the blocks before them.

    Full blocks are shared; of one that begins as a sequence goes on a piece can be copied. At least one token of a
    sequence is left to be computed. Used by the engine's thread, between passes.
    """

    def __init__(
        self, target: Target, speculation: Speculation, feature_bytes: int, disk: PrefixDisk | None, *, on: bool
    ) -> None:
        """If it is not `on`, it keeps and shares nothing. Blocks are kept on the `disk`, too, where there is one."""
        self._target, self._speculation, self._disk, self._on = target, speculation, disk, on
        self._following: dict[Before, dict[Tokens, PrefixNode]] = {}
        self._cursors: dict[Sequence, PrefixCursor] = {}
        self.features = KeptFeatures(feature_bytes)
        self.reused_tokens = 0

    def room_for(self, sequence: Sequence) -> int:
        """Free blocks that a sequence needs at least before it is admitted; its draft has begun."""
        needed = blocks_for(len(sequence.tokens) + 1)
        if needed <= self._target.blocks.free or not self._takes_part(sequence):
            return needed
        return needed - self._in_use(sequence)

    def enter(self, sequence: Sequence) -> None:
        """A sequence was admitted, its table empty."""
        if self._takes_part(sequence):
            assert not sequence.table
            self._cursors[sequence] = cursor = PrefixCursor(sequence, self._speculation.feature_layers([sequence]))
            cursor.looks = self._disk is not None and self._disk.is_worth_a_look()

    def _takes_part(self, sequence: Sequence) -> bool:
        return self._on and sequence.request.reuse

    def computed(self, sequence: Sequence, features: Float32 | None) -> None:
        """Its tokens up to `cached` are in the cache for good; `features` are those of the tokens since the last call.
        Without features, later blocks are kept without them.
        """
        cursor = self._cursors.get(sequence)
        if cursor is None:
            return
        if features is None:
            cursor.layers, cursor.unfilled = (), []
        elif cursor.layers:
            cursor.unfilled.append(features)
        while sequence.cached - cursor.tokens >= BLOCK:
            self._learn(cursor)

    def leave(self, sequence: Sequence) -> None:
        """It gives up its table."""
        cursor = self._cursors.pop(sequence, None)
        if cursor is not None and cursor.reading is not None:
            cursor.reading.cancel()

    def wait(self) -> None:
        """Nothing can be computed now: wait for what is on its way from the disk, some milliseconds at most."""
        if readings := [cursor.reading for cursor in self._cursors.values() if cursor.reading is not None]:
            PrefixDisk.wait(readings)

    def share(self, running: list[Sequence]) -> set[Sequence]:
        """Give each of `running`, by arrival, what is there for it; returns those that wait for another one.

        The first one that is not done with its prompt waits for the disk at most, and nobody waits for one that waits
        for another one itself or comes later: so there is no circle, and who is waited for takes part in the pass that
        follows, or reads.
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
        """Whether one of `computing`, or the disk, will soon have what is next. If not, what is there of a block is
        copied.
        """
        cursor = self._cursors.get(sequence)
        if cursor is None or not cursor.at_border:
            return False
        self._follow(cursor)
        if self._disk is not None and cursor.looks and self._arrives(cursor, self._disk):
            return True
        piece, coming = self._known_piece(cursor), 0
        for other in self._cursors.values():
            if other is cursor or not other.can_feed(cursor):
                continue
            there, comes = other.sequence.cached - other.tokens, other.sequence in computing
            count = cursor.common_prefix(other.block) if there or comes else 0
            if min(count, there) > (piece.tokens if piece else 0):
                piece = _unfilled_piece(cursor, other, min(count, there))
            if comes:
                coming = max(coming, count)
        if coming == BLOCK or coming >= (piece.tokens if piece else 0) + _WORTH_A_PASS:
            return True
        if piece is not None:
            self._copy(cursor, piece)
        return False

    def _follow(self, cursor: PrefixCursor) -> None:
        """Give a sequence at a border the blocks known to come next; its drafter reads their features."""
        start, found = cursor.tokens, list[Float32]()
        while (node := self._next(cursor)) is not None:
            self._target.blocks.share(cursor.sequence.table, node.block)
            cursor.advance(node)
            features = self.features.of(node, cursor.layers)
            if features is not None:
                found.append(features)
            if self._disk is not None:
                self._disk.use(cursor.owner, node.digest, cursor.layers, cursor.entered - cursor.tokens)
            if cursor.reading is not None:
                cursor.reading.advance()
        cursor.sequence.cached = cursor.tokens
        if found and cursor.node is not None:
            self.features.use(cursor.node)
        for number, features in enumerate(found):
            self._speculation.read(cursor.sequence, start + number * BLOCK, features, cursor.layers)
        self._count(cursor.sequence, cursor.tokens - start)

    def _arrives(self, cursor: PrefixCursor, disk: PrefixDisk) -> bool:
        """Take over what has come from the disk of what is next; whether there is more to wait for."""
        if cursor.reading is None:
            if self._is_read_for_another(cursor):
                return True
            digest = disk.first_digest(cursor.owner) if cursor.node is None else cursor.node.digest
            rest = tuple(cursor.sequence.tokens[cursor.tokens :])
            cursor.reading = disk.read(cursor.owner, digest, rest, cursor.layers, cursor.entered - cursor.tokens)
            if cursor.reading is None:
                return False
            cursor.patience = disk.clock() + cursor.reading.patience
        reading, until = cursor.reading, disk.clock() + _TAKING
        while (block := reading.next) is not None:
            if not block.done() and disk.clock() < cursor.patience:
                return True
            kept = block.result() if block.done() else None
            if kept is None or not self._take(cursor, kept):
                reading.cancel()
                cursor.looks = kept is None and block.done()  # what follows may be there once this is computed
                break
            reading.advance()
            if disk.clock() > until and reading.next is not None:
                return True  # others wait for their tokens; the rest comes after a pass
        cursor.reading = None
        return False

    def _is_read_for_another(self, cursor: PrefixCursor) -> bool:
        """Whether another sequence waits for the very block that is next."""
        return len(cursor.sequence.tokens) > cursor.tokens + BLOCK and any(
            other.reading is not None and other.can_feed(cursor) and other.block == cursor.block
            for other in self._cursors.values()
        )

    def _take(self, cursor: PrefixCursor, kept: KeptBlock) -> bool:
        """Into a block of its own; whether there was room. Nobody is preempted for it."""
        sequence = cursor.sequence
        try:
            self._target.blocks.extend(sequence.table, sequence.cached + BLOCK)
        except CacheFull:
            return False
        self._target.fill_block(sequence.table[-1], kept.content)
        self._taken(cursor, BLOCK, kept.features)
        return True

    def _taken(self, cursor: PrefixCursor, tokens: int, features: Float32 | None) -> None:
        """`tokens` more are in its table, computed earlier; its drafter reads their features."""
        sequence, start = cursor.sequence, cursor.tokens
        sequence.cached += tokens
        if features is not None:
            self._speculation.read(sequence, start, features, cursor.layers)
        self.computed(sequence, features)
        self._count(sequence, tokens)

    def _copy(self, cursor: PrefixCursor, piece: Piece) -> None:
        """Into a block of its own, which it goes on to fill in another way. Nobody is preempted for its room.

        The new block may be the very one that the piece is from, given up for this: copying in place is safe.
        """
        sequence = cursor.sequence
        try:
            self._target.blocks.extend(sequence.table, sequence.cached + piece.tokens)
        except CacheFull:
            return
        first, copy = piece.block * BLOCK, sequence.table[-1] * BLOCK
        self._target.move([*range(first, first + piece.tokens)], [*range(copy, copy + piece.tokens)])
        self._taken(cursor, piece.tokens, piece.features)

    def _count(self, sequence: Sequence, tokens: int) -> None:
        sequence.tracker.reused(tokens)
        self.reused_tokens += tokens

    def _next(self, cursor: PrefixCursor) -> PrefixNode | None:
        """The next full block, if a sequence at `cursor` may have it."""
        if cursor.tokens + BLOCK >= len(cursor.sequence.tokens):
            return None
        node = self._following.get(cursor.before, {}).get(cursor.block)
        usable = node is not None and (not cursor.layers or self.features.of(node, cursor.layers) is not None)
        return node if usable else None

    def _known_piece(self, cursor: PrefixCursor) -> Piece | None:
        """The longest of a known block that the sequence goes on with, where it may have no whole one."""
        best: Piece | None = None
        for tokens, node in islice(reversed(self._following.get(cursor.before, {}).items()), _LOOKED_AT):
            count = cursor.common_prefix(tokens)
            features = self.features.of(node, cursor.layers) if cursor.layers else None
            if count > (best.tokens if best else 0) and (features is not None or not cursor.layers):
                best = Piece(node.block, count, None if features is None else features[:count])
        return best

    def _in_use(self, sequence: Sequence) -> int:
        """How many blocks that a sequence would begin with others stand in: it needs no room for them."""
        cursor = PrefixCursor(sequence, self._speculation.feature_layers([sequence]))
        while (node := self._next(cursor)) is not None and self._target.blocks.in_use(node.block):
            cursor.advance(node)
        return cursor.tokens // BLOCK

    def _learn(self, cursor: PrefixCursor) -> None:
        """The next full block. Where another sequence has filled one with the same tokens, that one stays."""
        features, before, tokens = cursor.features_of_block(), cursor.before, cursor.block
        following = self._following.setdefault(before, {})
        node = following.get(tokens)
        if node is None:
            block, digest = cursor.sequence.table[cursor.tokens // BLOCK], b""
            if self._disk is not None:
                digest = self._disk.first_digest(cursor.owner) if cursor.node is None else cursor.node.digest
                digest = next_digest(digest, tokens)
            node = following[tokens] = PrefixNode(block, cursor.node, digest)
            self._target.blocks.keep(node.block, lambda: self._forget(before, tokens))
        if features is not None:
            self.features.keep(node, cursor.layers, features)
        if self._disk is not None:
            content = partial(self._target.block_content, node.block)
            used = cursor.entered - cursor.tokens
            self._disk.keep(cursor.owner, node.digest, content, cursor.layers, features, used)
        cursor.advance(node)

    def _forget(self, before: Before, tokens: Tokens) -> None:
        following = self._following[before]
        self.features.drop(following.pop(tokens))
        if not following:
            del self._following[before]


def _unfilled_piece(cursor: PrefixCursor, other: PrefixCursor, count: int) -> Piece:
    """The first `count` tokens of the block that the sequence of `other` is filling."""
    features = np.concatenate(other.unfilled)[:count] if cursor.layers else None
    return Piece(other.sequence.table[other.tokens // BLOCK], count, features)
