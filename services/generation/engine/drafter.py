"""The seam between the engine and the methods of speculation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from services.generation.engine.economics import breakeven
from services.generation.engine.request import EngineRequest, RequestKey
from services.generation.engine.tree import TokenTree
from services.generation.target.arrays import Float32, Float64
from services.generation.target.unread import LogitRows


@dataclass(frozen=True, slots=True)
class Budget:
    """The rows and depth that one sequence may spend in the next pass."""

    depth: int  # deepest draft node; deeper ones could not be emitted
    pass_cost: Float64  # [nodes + 1] seconds of the pass that this sequence accounts for with 0, 1, … draft nodes
    breakeven: float  # chance of acceptance below which a node is not worth its row, however many there are

    @classmethod
    def of(cls, depth: int, pass_cost: Float64) -> Budget:
        return cls(depth, pass_cost, breakeven(pass_cost))

    @property
    def nodes(self) -> int:
        """Draft nodes at most, the root not counted."""
        return len(self.pass_cost) - 1


ONE_NODE = Budget(1, np.ones(2), 0.0)  # to try a drafter with


def tried(draft: Draft) -> None:
    """Draft once for nothing: code is compiled and read from disk now, not on the first request."""
    tree = draft.propose([0, 0], ONE_NODE)
    draft.observe([0, 0, 0], tree, [0], np.zeros((len(tree), 1), np.float32))


class Draft:
    """Speculation for one sequence. Used by the engine's thread only. A method overrides what it needs.

    A draft may propose anything: what is wrong or slow costs time, never a token. An exception ends this method for its
    sequence, not the sequence.
    """

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        """A tree whose root is tokens[-1]. `tokens` are prompt and output so far; not to be changed or kept."""
        return TokenTree.root(tokens[-1])

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        """Features [rows, layers * hidden_size] of the committed tokens from position `start` on.

        Called after every pass that computed some, prompts included, positions in order, if the drafter reads any
        layers. They stay as they are, and may be kept; `tokens` goes at least one token further. After `release` it
        starts again from position 0.
        """

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: LogitRows) -> None:
        """The pass is done: `tokens` now ends with the emitted ones. Path and logits [nodes, vocab_size] belong to
        `tree`, which this draft proposed, or to a bare root. After a sequence's last pass nothing is `read`.
        """

    def finish(self, tokens: list[int]) -> None:
        """The sequence is over: prompt and output, whichever method drafted for it. `release` follows."""

    def release(self) -> None:
        """The sequence was preempted, or it is over: give back what its tokens occupy."""


@dataclass(frozen=True, slots=True)
class DraftRequest:
    """A sequence that wants a draft. `tokens` are prompt and output so far; not to be changed or kept. `table`: its
    blocks in the target's cache, which has the keys and values of all tokens but the last.
    """

    draft: Draft
    tokens: list[int]
    budget: Budget
    table: Sequence[int] = ()


class Drafter(Protocol):
    """A method of speculation."""

    feature_layers: tuple[int, ...] = ()  # whose features its drafts read, see `Target.forward`
    negligible_cost: bool = False  # it is asked even if a grammar already forces the next token
    ready: bool = True  # whether its code is compiled; it drafts for no sequence that begins before

    def begin(self, request: EngineRequest) -> Draft:
        """Start on a sequence; called before its first pass."""
        ...

    def propose(self, asks: Sequence[DraftRequest]) -> Sequence[TokenTree]:
        """A tree for each, its root the last token. After an exception it is called again with each of them alone."""
        return [ask.draft.propose(ask.tokens, ask.budget) for ask in asks]

    def forget(self, tenant: str, request: RequestKey | None = None) -> None:
        """Drop what is kept of a tenant's text: of one request that is over, or all. From any thread.

        It is gone when this returns, but for drafts that are in flight.
        """
        return
