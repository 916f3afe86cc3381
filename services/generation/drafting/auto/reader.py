"""A draft on features that begins when it is first wanted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.drafter import FeatureDraft

Float32 = NDArray[np.float32]

_MOST_BYTES = 16 << 20  # of a sequence's features that wait to be read
_PART = 48  # rows: fewer are copied, so that they do not keep the features of a whole pass


class Reader:
    """One draft on features of one sequence. What it missed is held until it drafts, and read then: a head that does
    not draft costs memory, not the time that its entries would take. More than 16 MiB are read without being asked.
    """

    def __init__(self, begin: Callable[[], FeatureDraft], places: list[int], hidden_size: int) -> None:
        """`places` are those of its layers among the layers that are captured."""
        self._begin, self._places, self._hidden_size = begin, places, hidden_size
        self._draft: FeatureDraft | None = None
        self._held: list[tuple[int, Float32]] = []
        self._bytes = 0

    @property
    def listens(self) -> bool:
        """Whether there is anything to read to it."""
        return bool(self._places)

    def read(self, tokens: list[int], start: int, features: Float32, *, drafting: bool) -> None:
        """As `FeatureDraft.read`, of all captured layers; at once where it is `drafting`, has begun and nothing
        waits. Raises what the draft does.
        """
        own = self._own(features)
        if drafting and self._draft is not None and not self._held:
            self._draft.read(tokens, start, own)
            return
        self._held.append((start, own.copy() if len(own) < _PART else own))
        self._bytes += own.nbytes
        if self._bytes > _MOST_BYTES:
            self.ready(tokens)

    def _own(self, features: Float32) -> Float32:
        streams = features.reshape(len(features), -1, self._hidden_size)
        if self._places == list(range(streams.shape[1])):
            return features
        own: Float32 = streams[:, self._places].reshape(len(features), -1)
        return own

    def ready(self, tokens: list[int]) -> FeatureDraft:
        """The draft, begun, with all read that was held of what comes before the last of `tokens`. Raises what the
        draft does.
        """
        if self._draft is None:
            self._draft = self._begin()
        held, self._held = self._held, []
        for start, features in held:
            known = max(0, len(tokens) - 1 - start)
            if known:
                self._draft.read(tokens, start, features[:known])
            if known < len(features):
                self._held.append((start + known, features[known:]))
        self._bytes = sum(features.nbytes for _, features in self._held)
        return self._draft

    def release(self) -> None:
        self._held, self._bytes = [], 0
        if self._draft is not None:
            self._draft.release()
