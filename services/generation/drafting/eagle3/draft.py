"""The head's side of one sequence: its entries in the head's cache, and the tree that is being verified."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3.growth import Growth
from services.generation.drafting.eagle3.head_pass import HeadPass
from services.generation.drafting.eagle3.shape import DraftShape
from services.generation.drafting.lookahead import LookaheadDraft
from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree
from services.generation.target.kernels import BLOCK

Float32 = NDArray[np.float32]

_MANY = 64  # features that are not left waiting for the next draft once more come: a prompt's, mostly


class Eagle3Draft:
    """`FeatureDraft` of one sequence.

    Entries [0, length) are in the head's cache, computed from features of committed tokens only; features that were
    read and not computed yet are `waiting`. What draft steps store lies behind them and is never counted: after a pass
    the next features overwrite it, so the cache follows the accepted path by itself.
    """

    def __init__(
        self,
        request: EngineRequest,
        shape: DraftShape,
        head: HeadPass,
        catch_up: Callable[[Eagle3Draft], None],
        copies: LookaheadDraft | None,
    ) -> None:
        sampling = request.sampling
        self.shape = shape
        self.temperature, self.seed, self.choice = sampling.temperature, sampling.seed, request.choice
        self.biases = sampling.logit_bias
        self.table: list[int] = []
        self.length = 0
        self.tokens: list[int] = []  # that follow the waiting features, one each
        self.growth: Growth | None = None
        self.copies = copies
        self.passes = 0
        self._expanded = 0  # draft entries of the tree that grows
        self._places: dict[int, tuple[int, tuple[int, ...]]] = {}
        self._waiting: list[Float32] = []
        self._head, self._catch_up = head, catch_up

    @property
    def waiting(self) -> int:
        return len(self.tokens)

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        """Raises ValueError if positions were left out."""
        if start == 0 and self.length:
            self.release()
        if start != self.length + self.waiting:
            raise ValueError(f"features from position {start}; expected {self.length + self.waiting}")
        if self.waiting >= _MANY:
            self._catch_up(self)
        self._waiting.append(features.copy())
        self.tokens += tokens[start + 1 : start + 1 + len(features)]

    def features(self) -> Float32:
        """Those that are waiting, [waiting, layers * hidden]."""
        return self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)

    def caught_up(self) -> None:
        """The waiting features are in the cache; draft entries start behind them."""
        self.length += self.waiting
        self._expanded, self._places = 0, {0: (0, ())}
        self._waiting.clear()
        self.tokens = []

    def slot(self, entry: int) -> int:
        return self.table[entry // BLOCK] * BLOCK + entry % BLOCK

    def place(self, node: int, parent: int) -> tuple[int, int, tuple[int, ...]]:
        """Where the entry of a draft node goes, and what it sees: its slot, the length of the run from the start of the
        sequence, and the slots of its ancestors beyond that run, its own last.
        """
        run, beyond = self._places[parent]
        slot, straight = self.slot(self.length + self._expanded), not beyond and self._expanded == run
        self._places[node] = (run + 1, ()) if straight else (run, (*beyond, slot))
        self._expanded += 1
        return slot, self.length + self._places[node][0], self._places[node][1]

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        growth, self.growth = self.growth, None
        if growth is not None and growth.tokens[0] == tree.tokens[0]:
            growth.judge(tokens[-len(path) :])
        if self.copies is not None:
            self.copies.observe(tokens, tree, path, logits)

    def release(self) -> None:
        self._head.blocks.release(self.table)
        self.length = 0
        self._waiting.clear()
        self.tokens, self.growth = [], None
