"""A recorded output as a draft: a pass verifies as many of its tokens as have room in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.drafter import Budget, Draft, Drafter
from services.generation.engine.request import EngineRequest
from services.generation.engine.tree import TokenTree


@dataclass(frozen=True, slots=True)
class Record:
    """A request as it was served, and the output tokens that were recorded for it."""

    request: EngineRequest
    output: tuple[int, ...]


class RecordDrafter(Drafter):
    """Drafts the recorded output of one request, whatever the target says of it."""

    negligible_cost = True

    def __init__(self, output: Sequence[int]) -> None:
        self._output = tuple(output)
        self.draft: RecordDraft | None = None

    @property
    def left(self) -> bool:
        """Whether the target has sampled another token than the recorded one, or went on after the last."""
        return self.draft is not None and self.draft.left

    def begin(self, request: EngineRequest) -> RecordDraft:
        self.draft = RecordDraft(len(request.prompt), self._output)
        return self.draft


class RecordDraft(Draft):
    """A chain of what comes next in the record; nothing once the target has left it."""

    def __init__(self, prompt_length: int, output: tuple[int, ...]) -> None:
        self._prompt_length, self._output = prompt_length, output
        self.left = False

    def propose(self, tokens: list[int], budget: Budget) -> TokenTree:
        done = len(tokens) - self._prompt_length
        return TokenTree.chain((tokens[-1], *self._output[done : done + budget.nodes]))

    def observe(self, tokens: list[int], tree: TokenTree, path: list[int], logits: NDArray[np.float32]) -> None:
        emitted = tuple(tokens[self._prompt_length :])
        self.left = emitted != self._output[: len(emitted)]
