"""The drafts of one sequence, of which one is chosen for each pass."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import cast

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.auto.arm import Arm
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.reader import Reader
from services.generation.drafting.auto.tally import Tally
from services.generation.engine.drafter import Ask, Budget, Draft, FeatureDraft
from services.generation.engine.tree import TokenTree

log = logging.getLogger(__name__)

Float32 = NDArray[np.float32]

_WAKE, _LONGEST_WAKE = 0.4, 0.15  # what a pass loses after a draft, which took what it needs out of the processor's
# caches: as a share of the draft's time, and of its own at most


class AutoDraft:
    """`FeatureDraft` over the drafts of several drafters, by the engine's names for them. Each begins when it is chosen
    for the first time: what is never chosen costs next to nothing.
    """

    def __init__(
        self,
        bandit: Bandit,
        row_seconds: float,
        plain: dict[str, Callable[[], Draft]],
        reading: dict[str, Reader],
    ) -> None:
        """`row_seconds` is what one more row adds to a pass; `plain` begin drafts that read no features, `reading` are
        the others.
        """
        self._bandit, self._row_seconds = bandit, row_seconds
        self._plain, self._reading = plain, reading
        self._begun: dict[str, Draft | FeatureDraft] = {}  # those that were chosen at least once
        self._pass_seconds = 0.0  # of a pass without drafts, this sequence's share; 0 where none was asked for
        self._drafting_seconds = 0.0  # of the tree in flight, this sequence's share

    @property
    def drafting(self) -> str:
        """The method that was asked last."""
        return self._bandit.arm.method

    def choose(self, breakeven: float) -> Arm:
        """The arm for the next pass."""
        self._pass_seconds = self._row_seconds / breakeven
        self._drafting_seconds = 0.0
        return self._bandit.next()

    def drafted(self, seconds: float, *, counts: bool) -> None:
        """The tree took so long, this sequence's share. The first one that a drafter ever makes does not count: pages
        come from disk and code is compiled.
        """
        self._drafting_seconds = seconds + min(_WAKE * seconds, _LONGEST_WAKE * self._pass_seconds)
        if not counts:
            self._pass_seconds = 0.0

    def budget(self, ask: Ask) -> Budget:
        """What the chosen arm may spend."""
        k = self._bandit.arm.k
        return ask.budget if k is None else replace(ask.budget, depth=min(ask.budget.depth, k))

    def plain(self, name: str) -> Draft:
        """The draft of a drafter without features, begun. Raises what the drafter does."""
        draft = self._begun.get(name)
        if draft is None:
            draft = self._begun[name] = self._plain[name]()
        return cast(Draft, draft)

    def reading(self, name: str, tokens: list[int]) -> FeatureDraft:
        """The draft of a drafter on features, begun, with all of them read. Raises what the drafter does."""
        draft = self._begun[name] = self._reading[name].ready(tokens)
        return draft

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        asked = self._bandit.arm.drafter
        for name, reader in tuple(self._reading.items()):
            self._guarded(name, partial(reader.read, tokens, start, features, drafting=name == asked))

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        for name, draft in tuple(self._begun.items()):
            self._guarded(name, partial(draft.observe, tokens, tree, path, logits))
        self._saw(tree, path)

    def ended(self, tree: TokenTree, path: list[int]) -> None:
        self._saw(tree, path)
        self._bandit.tell()

    def _saw(self, tree: TokenTree, path: list[int]) -> None:
        if self._pass_seconds > 0.0:
            seconds = self._pass_seconds + (len(tree) - 1) * self._row_seconds + self._drafting_seconds
            self._bandit.saw(Tally(1.0, float(len(path)), seconds / self._pass_seconds, 1e3 * seconds))
            self._pass_seconds = 0.0

    def release(self) -> None:
        self._pass_seconds = 0.0
        self._bandit.tell()
        for name, reader in tuple(self._reading.items()):
            self._guarded(name, reader.release)

    def _guarded(self, name: str, call: Callable[[], None]) -> None:
        """Its failure costs the sequence this drafter, not the others."""
        try:
            call()
        except Exception:
            log.exception("%s failed; its request goes on with other methods", name)
            self.drop(name)

    def drop(self, name: str) -> None:
        """Do without a drafter from here on."""
        self._bandit.drop(name)
        self._begun.pop(name, None)
        reader = self._reading.pop(name, None)
        if reader is not None:
            try:
                reader.release()
            except Exception:
                log.exception("%s failed to release what it held", name)
