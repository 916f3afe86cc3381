"""The seam between the engine and the methods of speculation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

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
    sequences: int = 1  # that the pass decodes
    row_factor: float = 1.0  # times a row over a short history (`PassCost.row`) that one of these takes


class Draft(Protocol):
    """Speculation for one sequence. Used by the engine's thread only.

    It may propose anything: a wrong, slow or hostile draft costs time, never a token. An exception ends speculation for
    its sequence, not the sequence.
    """

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        """A tree whose root is tokens[-1]. `tokens` are prompt and output so far; not to be changed or kept."""
        ...

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: NDArray[np.float32]) -> None:
        """The pass is done: `tokens` now ends with what it emitted; path and logits [nodes, vocab] belong to `tree`.
        There are no logits, [0, 0], where the pass might have been and was not (`auto.shadow`).
        """
        ...


class Drafter(Protocol):
    """A method of speculation."""

    def begin(self, request: EngineRequest) -> Draft:
        """Start on a sequence; called before its first tree."""
        ...


class FeatureDraft(Protocol):
    """Speculation for one sequence that reads the target's features. As with `Draft`, it can do no harm."""

    def read(self, tokens: list[int], start: int, features: NDArray[np.float32]) -> None:
        """Features [rows, layers * hidden_size] of the committed tokens from position `start` on.

        Called after every pass that computed some, prompts included, positions in order, if its drafter reads any
        layers; `tokens` goes at least one token further. After `release` it starts again from position 0.
        """
        ...

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: NDArray[np.float32]) -> None:
        """As `Draft.observe`; called after `read`."""
        ...

    def release(self) -> None:
        """The sequence was preempted, or it is over: give back what its tokens occupy."""
        ...


@runtime_checkable
class Choosing(Protocol):
    """A draft that chooses among several methods."""

    feature_layers: tuple[int, ...]
    """Of those of its drafter, the layers that any method may read that it will choose; the same for all of its
    life.
    """

    @property
    def drafting(self) -> str:
        """The method that was asked last."""
        ...

    def ended(self, tokens: list[int], tree: TokenTree, path: list[int]) -> None:
        """The last pass of its sequence is done, which nobody observes: what it cost, and brought, counts too. Its
        features have been read.
        """
        ...


@dataclass(frozen=True, slots=True)
class Ask:
    """A sequence that wants a draft. `tokens` are prompt and output so far; not to be changed or kept."""

    draft: FeatureDraft
    tokens: list[int]
    budget: Budget


@runtime_checkable
class FeatureDrafter(Protocol):
    """A method that drafts for all of its sequences at once, from features of the target's own passes."""

    feature_layers: tuple[int, ...]  # see `Target.forward`

    def begin(self, request: EngineRequest) -> FeatureDraft:
        """Start on a sequence; called before its first pass."""
        ...

    def propose_all(self, asks: Sequence[Ask]) -> Sequence[TokenTree]:
        """A tree for each, its root the last token. After an exception it is called again with each of them alone."""
        ...
