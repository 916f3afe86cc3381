"""The drafts of one sequence by several drafters, each begun when it is first wanted."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import cast

import numpy as np
from numpy.typing import NDArray

from services.generation.drafting.auto.reader import Reader
from services.generation.engine.drafter import Draft, FeatureDraft
from services.generation.engine.tree import TokenTree

log = logging.getLogger(__name__)

Float32 = NDArray[np.float32]


class Drafts:
    """By the engine's names for their drafters: what is never wanted costs next to nothing."""

    def __init__(
        self, plain: dict[str, Callable[[], Draft]], reading: dict[str, Reader], failed: Callable[[str], None]
    ) -> None:
        """`plain` begin drafts that read no features, `reading` are the others; `failed` is told whose draft did."""
        self._plain, self._reading, self._failed = plain, reading, failed
        self._listening = [(name, reader) for name, reader in reading.items() if reader.listens]
        self._begun: dict[str, Draft | FeatureDraft] = {}
        self._broken: list[str] = []

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

    def read(self, tokens: list[int], start: int, features: Float32, asked: str | None) -> None:
        """As `FeatureDraft.read`; `asked` is who drafts now."""
        for name, reader in self._listening:
            try:
                reader.read(tokens, start, features, drafting=name == asked)
            except Exception as error:
                self._broke(name, error)
        self._drop_broken()

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: Float32) -> None:
        for name, draft in self._begun.items():
            try:
                draft.observe(tokens, tree, path, logits)
            except Exception as error:
                self._broke(name, error)
        self._drop_broken()

    def release(self) -> None:
        for name, reader in self._reading.items():
            try:
                reader.release()
            except Exception as error:
                self._broke(name, error)
        self._drop_broken()

    def _broke(self, name: str, error: Exception) -> None:
        """Its failure costs the sequence this drafter, not the others."""
        log.error("%s failed; its request goes on with other methods", name, exc_info=error)
        self._broken.append(name)

    def _drop_broken(self) -> None:
        while self._broken:
            self.drop(self._broken.pop())

    @property
    def empty(self) -> bool:
        """Whether all of them have failed."""
        return not self._plain and not self._reading

    def drop(self, name: str) -> None:
        """Do without a drafter from here on."""
        self._failed(name)
        self._plain.pop(name, None)
        self._begun.pop(name, None)
        reader = self._reading.pop(name, None)
        self._listening = [(other, each) for other, each in self._listening if other != name]
        if reader is not None:
            try:
                reader.release()
            except Exception:
                log.exception("%s failed to release what it held", name)
