"""How far the tokens of a sequence are known to others."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.sequence import Sequence
from services.generation.target.blocks import BLOCK

Float32 = NDArray[np.float32]
Owner = tuple[str | None, str | None]  # tenant and adapter: others share nothing with it
Tokens = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class PrefixNode:
    """`block` of the cache holds the tokens after those of `parent`; None is before the first token."""

    block: int
    parent: PrefixNode | None

    def upwards(self) -> Iterator[PrefixNode]:
        """This one first, the one that holds the first tokens last."""
        node: PrefixNode | None = self
        while node is not None:
            yield node
            node = node.parent


Before = tuple[Owner, PrefixNode | None]


@dataclass(slots=True)
class Place:
    """At the end of `node`, after the first `tokens` tokens of `sequence`.

    `unfilled` are features of those computed since, of `layers`: of all of them, or there are no layers.
    """

    sequence: Sequence
    layers: tuple[int, ...]
    node: PrefixNode | None = None
    tokens: int = 0
    unfilled: list[Float32] = field(default_factory=list)

    @property
    def before(self) -> Before:
        request = self.sequence.request
        return (request.tenant, request.adapter), self.node

    @property
    def block(self) -> Tokens:
        """The tokens that follow, as many as a block holds or the sequence has."""
        return tuple(self.sequence.tokens[self.tokens : self.tokens + BLOCK])

    @property
    def at_border(self) -> bool:
        """Whether the sequence has not begun to fill the next block."""
        return self.tokens == self.sequence.cached == len(self.sequence.table) * BLOCK

    def serves(self, other: Place) -> bool:
        """Whether what is computed from here on may be what `other` needs next, features included."""
        return self.before == other.before and other.layers in ((), self.layers)

    def alike(self, tokens: Collection[int]) -> int:
        """How many of `tokens` are those that follow; the last of the sequence, which it computes itself, is none."""
        follow = self.block[: len(self.sequence.tokens) - 1 - self.tokens]
        pairs = zip(follow, tokens, strict=False)
        return next((i for i, (own, other) in enumerate(pairs) if own != other), min(len(follow), len(tokens)))

    def go_on(self, node: PrefixNode) -> None:
        """To the end of the next block."""
        self.node, self.tokens = node, self.tokens + BLOCK

    def features_of_block(self) -> Float32 | None:
        """Take those of the next block out of `unfilled`; copied, so that they hold no pass's memory."""
        if not self.layers:
            return None
        together = np.concatenate(self.unfilled)
        self.unfilled = [together[BLOCK:].copy()]
        return together[:BLOCK].copy()
