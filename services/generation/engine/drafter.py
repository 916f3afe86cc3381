"""The seam between the engine and the methods of speculation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Budget:
    """What one sequence may spend in the next pass."""

    nodes: int  # draft nodes at most, the root not counted
    depth: int  # deepest draft node; deeper ones could not be emitted
    breakeven: float  # probability of acceptance from which a node pays for its row (`PassCost.breakeven`)


class Draft(Protocol):
    """Speculation for one sequence. Used by the engine's thread only.

    It may propose anything: a wrong, slow or hostile draft costs time, never a token. An exception ends speculation for
    its sequence, not the sequence.
    """

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        """A tree whose root is tokens[-1]. `tokens` are prompt and output so far; not to be changed or kept."""
        ...

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: NDArray[np.float32]) -> None:
        """The pass is done: `tokens` now ends with what it emitted; path and logits [nodes, vocab] belong to `tree`."""
        ...


class Drafter(Protocol):
    """A method of speculation."""

    def begin(self, request: EngineRequest) -> Draft:
        """Start on a sequence; called before its first tree."""
        ...
