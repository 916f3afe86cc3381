"""The head's side of one sequence: its entries in the head's cache, and the tree that is being verified."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.eagle3.children import UNCOUPLED
from services.generation.drafting.eagle3.confidence import Confidence
from services.generation.drafting.eagle3.copying import Copies
from services.generation.drafting.eagle3.coupling import Coupling
from services.generation.drafting.eagle3.growth import Growth
from services.generation.drafting.eagle3.head_pass import HeadPass
from services.generation.drafting.eagle3.shape import DraftShape
from services.generation.engine.drafter import Draft
from services.generation.engine.request import EngineRequest
from services.generation.engine.sampling.processors import LogitsProcessors
from services.generation.engine.tree import TokenTree
from services.generation.target.blocks import BLOCK
from services.generation.target.errors import CacheFull

Float32 = NDArray[np.float32]

_FEW = 16  # features that are read together with the next draft
_MOST_WAITING = 1 << 20  # bytes of features that wait until the head is to draft, which may be never


class Eagle3Draft(Draft):
    """`Draft` of one sequence.

    Entries [0, length) are in the head's cache, computed from features of committed tokens only; features that were
    read and not computed yet are `waiting`. What draft steps store lies behind them and is never counted: after a pass
    the next features overwrite it, so the cache follows the accepted path by itself.
    """

    def __init__(
        self,
        request: EngineRequest,
        shape: DraftShape,
        confidence: Confidence,
        coupling: Coupling | None,
        band: int,
        head: HeadPass,
        store: Callable[[Eagle3Draft, list[int], Float32], None],
        copies: Copies | None,
        processors: LogitsProcessors,
    ) -> None:
        """`store` computes the entries of features from `length` on, and of the tokens that follow each of them."""
        sampling = request.sampling
        self.shape, self.confidence, self.band = shape, confidence, band
        self.temperature, self.seed, self.choice = sampling.temperature, sampling.seed, request.choice
        self.cuts = float(sampling.top_k), sampling.top_p, sampling.min_p
        self.processors = processors
        self.table: list[int] = []
        self.length = 0
        self.tokens: list[int] = []  # that follow the waiting features, one each
        self.growth: Growth | None = None
        self.firsts = 0, 0  # of the tree in flight, see `Coupling.saw`
        self.copies = copies
        self._waiting: list[Float32] = []
        self._head, self._store, self._coupling = head, store, coupling

    @property
    def rule(self) -> int:
        """With how much noise it is drawn for, see `coupling`."""
        return UNCOUPLED if self._coupling is None else self._coupling.rule

    @property
    def waiting(self) -> int:
        return len(self.tokens)

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        """Raises ValueError if positions were left out."""
        if start == 0 and self.length:
            self.release()
        if start != self.length + self.waiting:
            raise ValueError(f"features from position {start}; expected {self.length + self.waiting}")
        self._waiting.append(features)
        self.tokens += tokens[start + 1 : start + 1 + len(features)]
        if self.waiting > _FEW and self.waiting * features.itemsize * features.shape[1] > _MOST_WAITING:
            self._store_all_but_one()
        else:
            self._waiting[-1] = features.copy()

    def settle(self) -> None:
        """Read what is waiting, but for as much as the next draft reads anyway."""
        if self.waiting > _FEW:
            self._store_all_but_one()

    def _store_all_but_one(self) -> None:
        """The last one waits for the next draft, which begins with it; where the cache is full, all go on waiting."""
        waiting = self.features()
        try:
            self._store(self, self.tokens[:-1], waiting[:-1])
        except CacheFull:
            self._waiting = [waiting.copy()]
            return
        self.length += self.waiting - 1
        self.tokens, self._waiting = self.tokens[-1:], [waiting[-1:].copy()]

    def features(self) -> Float32:
        """Those that are waiting, [waiting, layers * hidden]."""
        return self._waiting[0] if len(self._waiting) == 1 else np.concatenate(self._waiting)

    def caught_up(self) -> None:
        """The waiting features are in the cache; draft entries start behind them."""
        self.length += self.waiting
        self._waiting.clear()
        self.tokens = []

    def slot(self, entry: int) -> int:
        return self.table[entry // BLOCK] * BLOCK + entry % BLOCK

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        growth, self.growth = self.growth, None
        if growth is not None and growth.root == tree.tokens[0]:
            growth.judge(tokens[-len(path) :])
            if self._coupling is not None:
                self._coupling.saw(self.firsts, tokens[-len(path)])
        if self.copies is not None:
            self.copies.judge(tokens)

    def release(self) -> None:
        self._head.blocks.release(self.table)
        self.length = 0
        self._waiting.clear()
        self.tokens, self.growth = [], None
