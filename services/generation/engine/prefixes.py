"""Automatic prefix caching: a common beginning of sequences is computed once.

Keys and values of a token are the same bits in every sequence (docs/numerics.md). So a block of them serves every
sequence with the same adapter and the same tokens up to its end, features included. Tenants share no blocks: the time
of an answer would reveal the prompts of another tenant.

The first sequence computes a shared block; later ones wait for it and take it over. The plan is made again before every
pass, so that another sequence computes if the first one is cancelled, preempted or fails.
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

_WORTH_A_PASS = 16  # tokens: for fewer, waiting delays the first token more than it saves
_LOOKED_AT = 64  # newest of the blocks that may follow
_TAKING = 0.005  # seconds of a step in which a sequence may take over blocks from the disk


@dataclass(frozen=True, slots=True, eq=False)
class PrefixNode:
    """A full block of the cache: its tokens follow those of `parent`, which is None for a first block."""

    block: int
    parent: PrefixNode | None
    digest: bytes  # its name on the disk, empty without one

    def upwards(self) -> Iterator[PrefixNode]:
        """This node and its ancestors; the node of the first tokens is last."""
        node: PrefixNode | None = self
        while node is not None:
            yield node
            node = node.parent


Before = tuple[Owner, PrefixNode | None]


@dataclass(slots=True)
class PrefixCursor:
    """A place in the blocks: at the end of `node`, after the first `tokens` tokens of `sequence`.

    `complete`: features of all tokens so far were computed or taken over, so that later ones are kept. `needed`: a
    draft of the sequence reads them; without need, blocks without features are taken over. `unfilled`: features of the
    tokens computed since, while they are complete. `looking`: the next block is looked for on the disk at each border.
    `reading`: blocks on their way from the disk, awaited until `patience` on its clock.
    """

    sequence: Sequence
    complete: bool
    needed: bool
    node: PrefixNode | None = None
    tokens: int = 0
    unfilled: list[Float32] = field(default_factory=list)
    looking: bool = False
    reading: Reading | None = None
    patience: float = 0.0
    entered: int = field(default_factory=time.time_ns)

    @property
    def owner(self) -> Owner:
        return self.sequence.request.tenant, self.sequence.request.adapter

    @property
    def before(self) -> Before:
        return self.owner, self.node

    @property
    def block(self) -> Tokens:
        """The next tokens of the sequence, at most a block of them."""
        return tuple(self.sequence.tokens[self.tokens : self.tokens + BLOCK])

    @property
    def at_border(self) -> bool:
        """Whether the sequence has not begun to fill the next block."""
        return self.tokens == self.sequence.cached == len(self.sequence.table) * BLOCK

    def can_feed(self, other: PrefixCursor) -> bool:
        """Whether blocks computed from here on may be the next blocks of `other`, features included."""
        return self.before == other.before and (self.complete or not other.needed)

    def common_prefix(self, tokens: Collection[int]) -> int:
        """Length of the common prefix of `tokens` and the next tokens, without the sequence's last token, which it
        computes itself.
        """
        follow = self.block[: len(self.sequence.tokens) - 1 - self.tokens]
        pairs = zip(follow, tokens, strict=False)
        return next((i for i, (own, other) in enumerate(pairs) if own != other), min(len(follow), len(tokens)))

    def advance(self, node: PrefixNode) -> None:
        """Move to the end of the next block, which is `node`."""
        self.node, self.tokens = node, self.tokens + BLOCK

    def lack_features(self) -> None:
        """Keep no features from here on: a sequence reads them from its first token on."""
        self.complete, self.unfilled = False, []

    def features_of_block(self) -> Float32 | None:
        """Take the features of the next block out of `unfilled`."""
        if not self.complete:
            return None
        pieces, left = list[Float32](), BLOCK
        while left:
            first = self.unfilled.pop(0)
            pieces.append(first[:left])
            if len(first) > left:
                self.unfilled.insert(0, first[left:])
            left -= len(pieces[-1])
        return np.concatenate(pieces)


class KeptFeatures:
    """Features [BLOCK, layers * hidden] by block, up to a number of bytes; the least recently used are dropped first.

    A sequence reads features from its first token on, so a block is useless without the blocks before it: use of a
    block is use of its ancestors, and the end of a prefix is dropped before its beginning.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most = most_bytes
        self._kept: OrderedDict[PrefixNode, Float32] = OrderedDict()  # the longest unused first
        self.bytes = 0

    def keep(self, node: PrefixNode, features: Float32) -> None:
        """Keep `features` in place of the node's older features, and drop the least recently used beyond the limit."""
        self.drop(node)
        if features.nbytes > self._most:
            return
        self._kept[node] = features
        self.bytes += features.nbytes
        self.use(node)
        while self.bytes > self._most:
            self.drop(next(iter(self._kept)))

    def of(self, node: PrefixNode) -> Float32 | None:
        """The node's features; None if they are not kept."""
        return self._kept.get(node)

    def use(self, node: PrefixNode) -> None:
        """Note a use of `node` and its ancestors."""
        for each in node.upwards():
            if each in self._kept:
                self._kept.move_to_end(each)

    def drop(self, node: PrefixNode) -> None:
        """Drop the features of `node`, if there are any."""
        features = self._kept.pop(node, None)
        if features is not None:
            self.bytes -= features.nbytes


@dataclass(frozen=True, slots=True)
class Piece:
    """The first `tokens` slots of a block, and their features if they are kept."""

    block: int
    tokens: int
    features: Float32 | None


class PrefixSharing:
    """Gives sequences the blocks that others have computed, by the tokens of a block and the blocks before it.

    Full blocks are shared; the common beginning of a block can be copied. At least one token of a sequence is left to
    be computed. Used by the engine's thread, between passes.
    """

    def __init__(
        self, target: Target, speculation: Speculation, feature_bytes: int, disk: PrefixDisk | None, *, on: bool
    ) -> None:
        """Blocks are kept on the `disk` too, if there is one. Without `on` nothing is kept or shared."""
        self._target, self._speculation, self._disk, self._on = target, speculation, disk, on
        self._layers = speculation.feature_layers
        self._following: dict[Before, dict[Tokens, PrefixNode]] = {}
        self._cursors: dict[Sequence, PrefixCursor] = {}
        self.features = KeptFeatures(feature_bytes)
        self.reused_tokens = 0

    def room_for(self, sequence: Sequence) -> int:
        """Free blocks that a sequence needs before it is admitted; its draft has begun."""
        needed = blocks_for(len(sequence.tokens) + 1)
        if needed <= self._target.blocks.free or not self._takes_part(sequence):
            return needed
        return needed - self._in_use(sequence)

    def enter(self, sequence: Sequence) -> None:
        """Note a sequence that was admitted; its table is empty."""
        if self._takes_part(sequence):
            assert not sequence.table
            self._cursors[sequence] = cursor = self._cursor(sequence)
            cursor.looking = self._disk is not None and self._disk.allow_reading()

    def _cursor(self, sequence: Sequence) -> PrefixCursor:
        """At the beginning of a sequence."""
        return PrefixCursor(sequence, bool(self._layers), self._speculation.reads_features(sequence))

    def _takes_part(self, sequence: Sequence) -> bool:
        return self._on and sequence.request.reuse

    def computed(self, sequence: Sequence, features: Float32 | None) -> None:
        """Note that the tokens up to `cached` are in the cache. `features`: of the tokens since the last call; without
        them, later blocks are kept without features.
        """
        cursor = self._cursors.get(sequence)
        if cursor is None:
            return
        if features is None:
            cursor.lack_features()
        elif cursor.complete:
            cursor.unfilled.append(features)
        while sequence.cached - cursor.tokens >= BLOCK:
            self._learn(cursor)

    def leave(self, sequence: Sequence) -> None:
        """Note a sequence that gives up its table."""
        cursor = self._cursors.pop(sequence, None)
        if cursor is not None and cursor.reading is not None:
            cursor.reading.cancel()

    def wait(self) -> None:
        """Wait for blocks from the disk, some milliseconds at most, because nothing can be computed now."""
        if readings := [cursor.reading for cursor in self._cursors.values() if cursor.reading is not None]:
            PrefixDisk.wait(readings)

    def share(self, running: list[Sequence]) -> set[Sequence]:
        """Take over the existing blocks of each of `running`, by arrival; returns the sequences that wait.

        The first sequence with a pending prompt waits for the disk only, and the others wait only for earlier sequences
        that do not wait. So there is no circle: the awaited sequence takes part in the next pass, or reads.
        """
        computing: list[Sequence] = []
        waiting: set[Sequence] = set()
        for sequence in running:
            if sequence.pending > 1 and self._take_over(sequence, computing):
                waiting.add(sequence)
            elif sequence.pending > 1:
                computing.append(sequence)
        return waiting

    def _take_over(self, sequence: Sequence, computing: list[Sequence]) -> bool:
        """Take over the existing blocks of one sequence; returns whether it waits in the next pass."""
        cursor = self._cursors.get(sequence)
        if cursor is None or not cursor.at_border:
            return False
        self._follow(cursor)
        if self._disk is not None and self._read(cursor, self._disk):
            return True
        return self._wait_or_copy(cursor, computing)

    def _wait_or_copy(self, cursor: PrefixCursor, computing: list[Sequence]) -> bool:
        """Wait for a block that one of `computing` is filling, or copy a piece of a block; returns whether it waits."""
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
        """Share the known next blocks with a sequence at a border; its drafter reads their features."""
        start, found = cursor.tokens, list[Float32]()
        while (node := self._next(cursor)) is not None:
            self._target.blocks.share(cursor.sequence.table, node.block)
            cursor.advance(node)
            features = self.features.of(node)
            if features is None:
                cursor.lack_features()
            elif cursor.complete:
                found.append(features)
            if self._disk is not None:
                self._disk.use(cursor.owner, node.digest, self._disk_layers(cursor), cursor.entered - cursor.tokens)
            if cursor.reading is not None:
                cursor.reading.advance()
        cursor.sequence.cached = cursor.tokens
        if found and cursor.node is not None:
            self.features.use(cursor.node)
        for number, features in enumerate(found):
            self._speculation.read(cursor.sequence, start + number * BLOCK, features)
        self._count(cursor.sequence, cursor.tokens - start)

    def _read(self, cursor: PrefixCursor, disk: PrefixDisk) -> bool:
        """Take over the next blocks that were read from the disk; returns whether there are more to wait for."""
        if cursor.looking:
            if self._is_read_for_another(cursor):
                return True
            self._begin_reading(cursor, disk)
        if (reading := cursor.reading) is None:
            return False
        until = disk.clock() + _TAKING
        while (block := reading.next) is not None:
            if not block.done() and disk.clock() < cursor.patience:
                return True
            kept = block.result() if block.done() else None
            if kept is None or not self._fill_block(cursor, kept):
                reading.cancel()
                # After a missing file, later blocks may be there when this block is computed.
                cursor.looking = kept is None and block.done()
                break
            reading.advance()
            if disk.clock() > until and reading.next is not None:
                return True  # other sequences wait for the pass; the rest comes after it
        else:
            cursor.looking = True
        cursor.reading = None
        return False

    def _begin_reading(self, cursor: PrefixCursor, disk: PrefixDisk) -> None:
        digest = disk.first_digest(cursor.owner) if cursor.node is None else cursor.node.digest
        rest = tuple(cursor.sequence.tokens[cursor.tokens :])
        layers, entered = self._disk_layers(cursor), cursor.entered - cursor.tokens
        cursor.reading = disk.read(cursor.owner, digest, rest, layers, entered)
        if cursor.reading is not None:
            cursor.looking = False
            cursor.patience = disk.clock() + cursor.reading.patience

    def _is_read_for_another(self, cursor: PrefixCursor) -> bool:
        """Whether another sequence is reading the next block."""
        return len(cursor.sequence.tokens) > cursor.tokens + BLOCK and any(
            other.reading is not None and other.can_feed(cursor) and other.block == cursor.block
            for other in self._cursors.values()
        )

    def _fill_block(self, cursor: PrefixCursor, kept: KeptBlock) -> bool:
        """Fill a new block of the sequence; returns whether there was room. No sequence is preempted for it."""
        sequence = cursor.sequence
        try:
            self._target.blocks.extend(sequence.table, sequence.cached + BLOCK)
        except CacheFull:
            return False
        self._target.fill_block(sequence.table[-1], kept.content)
        self._reuse(cursor, BLOCK, kept.features)
        return True

    def _reuse(self, cursor: PrefixCursor, tokens: int, features: Float32 | None) -> None:
        """Note `tokens` more tokens in the table that were computed earlier; the drafter reads their features."""
        sequence, start = cursor.sequence, cursor.tokens
        sequence.cached += tokens
        if features is not None:
            self._speculation.read(sequence, start, features)
        self.computed(sequence, features)
        self._count(sequence, tokens)

    def _copy(self, cursor: PrefixCursor, piece: Piece) -> None:
        """Copy a piece into a new block, which the sequence goes on to fill. No sequence is preempted for it.

        The new block may be the block of the piece, evicted for it: copying in place is safe.
        """
        sequence = cursor.sequence
        try:
            self._target.blocks.extend(sequence.table, sequence.cached + piece.tokens)
        except CacheFull:
            return
        first, copy = piece.block * BLOCK, sequence.table[-1] * BLOCK
        self._target.move([*range(first, first + piece.tokens)], [*range(copy, copy + piece.tokens)])
        self._reuse(cursor, piece.tokens, piece.features)

    def _count(self, sequence: Sequence, tokens: int) -> None:
        sequence.tracker.reused(tokens)
        self.reused_tokens += tokens

    def _next(self, cursor: PrefixCursor) -> PrefixNode | None:
        """The next full block, if it is known and has the features that the cursor needs."""
        if cursor.tokens + BLOCK >= len(cursor.sequence.tokens):
            return None
        node = self._following.get(cursor.before, {}).get(cursor.block)
        usable = node is not None and (not cursor.needed or self.features.of(node) is not None)
        return node if usable else None

    def _known_piece(self, cursor: PrefixCursor) -> Piece | None:
        """The longest common beginning of a known block and the next tokens; None without one."""
        best: Piece | None = None
        for tokens, node in islice(reversed(self._following.get(cursor.before, {}).items()), _LOOKED_AT):
            count = cursor.common_prefix(tokens)
            features = self.features.of(node) if cursor.complete else None
            if count > (best.tokens if best else 0) and (features is not None or not cursor.needed):
                best = Piece(node.block, count, None if features is None else features[:count])
        return best

    def _in_use(self, sequence: Sequence) -> int:
        """Count of the sequence's first blocks that other sequences use: it needs no room for them."""
        cursor = self._cursor(sequence)
        while (node := self._next(cursor)) is not None and self._target.blocks.in_use(node.block):
            cursor.advance(node)
        return cursor.tokens // BLOCK

    def _learn(self, cursor: PrefixCursor) -> None:
        """Keep the next full block. A block of another sequence with the same tokens takes precedence."""
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
            self.features.keep(node, features)
        if self._disk is not None:
            content = partial(self._target.block_content, node.block)
            used = cursor.entered - cursor.tokens
            self._disk.keep(cursor.owner, node.digest, content, self._disk_layers(cursor), features, used)
        cursor.advance(node)

    def _disk_layers(self, cursor: PrefixCursor) -> tuple[int, ...]:
        """Layers whose features are read from the disk and written to it: in memory alone they cost no time."""
        return self._layers if cursor.needed else ()

    def _forget(self, before: Before, tokens: Tokens) -> None:
        following = self._following[before]
        self.features.drop(following.pop(tokens))
        if not following:
            del self._following[before]


def _unfilled_piece(cursor: PrefixCursor, other: PrefixCursor, count: int) -> Piece:
    """The first `count` tokens of the block that the sequence of `other` is filling."""
    features = np.concatenate(other.unfilled)[:count] if cursor.complete and other.complete else None
    return Piece(other.sequence.table[other.tokens // BLOCK], count, features)
