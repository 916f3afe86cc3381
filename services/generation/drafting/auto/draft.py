"""The drafts of one sequence, of which one is chosen for each pass."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.auto.arm import Arm
from services.generation.drafting.auto.bandit import Bandit
from services.generation.drafting.auto.tally import Tally
from services.generation.engine.drafter import Ask, Budget, Draft, FeatureDraft
from services.generation.engine.tree import TokenTree

log = logging.getLogger(__name__)

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Reader:
    """A draft that reads features, and which of the layers that are captured are its own."""

    draft: FeatureDraft
    places: list[int]
    hidden_size: int

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        streams = features.reshape(len(features), -1, self.hidden_size)
        self.draft.read(tokens, start, streams[:, self.places].reshape(len(features), -1))


class AutoDraft:
    """`FeatureDraft` over drafts by their drafters' names: `plain` ones and those that are `reading` features."""

    def __init__(self, bandit: Bandit, row_seconds: float) -> None:
        """`row_seconds` is what one more row adds to a pass."""
        self.plain: dict[str, Draft] = {}
        self.reading: dict[str, Reader] = {}
        self.drafting_seconds = 0.0  # of the tree in flight, this sequence's share
        self._bandit, self._row_seconds = bandit, row_seconds
        self._pass_seconds = 0.0  # of a pass without drafts, this sequence's share; 0 where none was asked for

    @property
    def drafting(self) -> str:
        """The method that was asked last."""
        return self._bandit.arm.method

    def choose(self, breakeven: float) -> Arm:
        """The arm for the next pass."""
        self._pass_seconds = self._row_seconds / breakeven
        self.drafting_seconds = 0.0
        return self._bandit.next()

    def budget(self, ask: Ask) -> Budget:
        """What the chosen arm may spend."""
        k = self._bandit.arm.k
        return ask.budget if k is None else replace(ask.budget, depth=min(ask.budget.depth, k))

    def read(self, tokens: list[int], start: int, features: Float32) -> None:
        for name, reader in list(self.reading.items()):
            self.guarded(name, lambda reader=reader: reader.read(tokens, start, features))  # type: ignore[misc]

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        for name, draft in [*self.plain.items(), *((name, each.draft) for name, each in self.reading.items())]:
            self.guarded(name, lambda draft=draft: draft.observe(tokens, tree, path, logits))  # type: ignore[misc]
        if self._pass_seconds > 0.0:
            seconds = self._pass_seconds + (len(tree) - 1) * self._row_seconds + self.drafting_seconds
            self._bandit.saw(Tally(1.0, float(len(path)), seconds / self._pass_seconds, 1e3 * seconds))
            self._pass_seconds = 0.0

    def release(self) -> None:
        self._pass_seconds = 0.0
        for name, reader in list(self.reading.items()):
            self.guarded(name, reader.draft.release)

    def guarded(self, name: str, call: Callable[[], None]) -> None:
        """Its failure costs the sequence this drafter, not the others."""
        try:
            call()
        except Exception:
            log.exception("%s failed; its request goes on with other methods", name)
            self.drop(name)

    def drop(self, name: str) -> None:
        """Do without a drafter from here on."""
        self._bandit.drop(name)
        self.plain.pop(name, None)
        reader = self.reading.pop(name, None)
        if reader is not None:
            try:
                reader.draft.release()
            except Exception:
                log.exception("%s failed to release what it held", name)
