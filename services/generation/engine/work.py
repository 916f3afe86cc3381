"""The work of one pass for one sequence."""

from __future__ import annotations

from dataclasses import dataclass

from services.generation.engine.sequence import Sequence
from services.generation.engine.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Work:
    """A sequence's part of a pass: the next `chunk` of its pending tokens, or a tree under its one pending token."""

    sequence: Sequence
    chunk: list[int]
    tree: TokenTree | None

    @property
    def rows(self) -> int:
        return len(self.chunk) if self.tree is None else len(self.tree)

    @property
    def completes(self) -> bool:
        """Whether the pass yields logits for this sequence."""
        return self.tree is not None or len(self.chunk) == self.sequence.pending
