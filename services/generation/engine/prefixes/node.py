"""A full block in the key/value cache, known by the tokens up to its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


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
