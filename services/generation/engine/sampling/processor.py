"""The seam between the sampler and whatever changes a row of logits before a token is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


class LogitsProcessor(Protocol):
    """Built for one sequence, used by one thread. Its effect on a row depends on the sequence's prompt, parameters
    and accepted tokens only.

    Only tokens that the target has chosen are accepted, one by one: nothing is ever rolled back.
    """

    @property
    def idle(self) -> bool:
        """Whether `apply` would change nothing now."""
        ...

    def apply(self, logits: Float32) -> None:
        """Change rows [..., columns] in place: float32 operations, each rounded by itself (docs/numerics.md).

        Raises UnusableLogits where no token can be chosen any more.
        """
        ...

    def accept(self, token: int) -> None:
        """Tell that `token` was emitted."""
        ...


class LogitsMask(LogitsProcessor, Protocol):
    """-inf at some tokens, the bits of the others as they were."""

    def allows(self, token: int) -> bool | None:
        """Whether `apply` would leave the token's logit as it is. None where only `apply` tells."""
        ...


class Columns:
    """Where token ids stand in a row: everywhere at their own number, but in a drafter's rows of fewer tokens.

    `places` [vocab_size] then has the column of each token, -1 for none.
    """

    def __init__(self, places: Int64 | None = None) -> None:
        self._places = places

    def of(self, tokens: Sequence[int]) -> Sequence[int]:
        """The columns of those that have one."""
        if self._places is None:
            return tokens
        columns: list[int] = self._places[list(tokens)].tolist()
        return [column for column in columns if column >= 0]
