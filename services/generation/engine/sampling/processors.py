"""Logits processors, before a token is chosen: penalties, biases, the ban on an early end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.request import SamplingParams

Float32 = NDArray[np.float32]
Int64 = NDArray[np.int64]


def end_ids(params: SamplingParams, eos_token_ids: Collection[int]) -> frozenset[int]:
    """The tokens that end a sequence."""
    return frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else eos_token_ids)


class LogitsProcessors:
    """Those of one sequence, after the tokens that `append` was told of. Float32 operations, each rounded by itself.

    A drafter's rows may hold other tokens than the target's: `columns` [vocab_size] then has the place of each token in
    them, -1 for none.
    """

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], ends: frozenset[int], columns: Int64 | None = None
    ) -> None:
        self._params, self._columns = params, columns
        self._prompt_length, self._emitted = len(prompt), 0
        self._end_ids = np.array(self._within(sorted(ends)), np.int64)
        self._output = _Tokens() if params.presence_penalty or params.frequency_penalty else None
        self._seen = _Tokens(self._within(prompt)) if params.repetition_penalty != 1.0 else None
        biases = [(column, bias) for token, bias in params.logit_bias for column in self._within((token,))]
        self._bias_ids = np.array([column for column, _ in biases], np.int64)
        self._biases = np.array([bias for _, bias in biases], np.float32)

    def _within(self, tokens: Sequence[int]) -> Sequence[int]:
        """The columns of those that have one."""
        if self._columns is None:
            return tokens
        columns: list[int] = self._columns[list(tokens)].tolist()
        return [column for column in columns if column >= 0]

    def append(self, token: int) -> None:
        """Tell that `token` was emitted."""
        self._emitted += 1
        for tokens in (self._output, self._seen):
            if tokens is not None:
                for column in self._within((token,)):
                    tokens.add(column)

    def follow(self, tokens: Sequence[int]) -> None:
        """Tell all tokens so far, prompt and output."""
        for token in tokens[self._prompt_length + self._emitted :]:
            self.append(token)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to change now."""
        return self._output is None and self._seen is None and not len(self._biases) and not self._bans

    @property
    def _bans(self) -> bool:
        return self._emitted < self._params.min_tokens and len(self._end_ids) > 0

    def apply(self, logits: Float32) -> Float32:
        """Logits [..., vocab_size] as a token is to be chosen by them: the same array if there is nothing to change."""
        if self.idle:
            return logits
        processed = logits.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # `Row` refuses what comes of either
            self._penalise(processed)
            processed[..., self._bias_ids] += self._biases
        if self._bans:
            processed[..., self._end_ids] = -np.inf
        return processed

    def _penalise(self, logits: Float32) -> None:
        """In place: repetition penalty over prompt and output (Keskar et al. 2019), then OpenAI's over the output."""
        if self._seen is not None:
            penalty, values = np.float32(self._params.repetition_penalty), logits[..., self._seen.ids]
            logits[..., self._seen.ids] = np.where(values > 0, values / penalty, values * penalty)
        if self._output is not None:
            frequency, presence = self._params.frequency_penalty, self._params.presence_penalty
            logits[..., self._output.ids] -= np.float32(frequency) * self._output.counts + np.float32(presence)


class _Tokens:
    """Distinct tokens by their first appearance, and how often each was added."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._places: dict[int, int] = {}
        self._ids, self._counts = np.empty(64, np.int64), np.empty(64, np.float32)
        for token in tokens:
            self.add(token)

    @property
    def ids(self) -> Int64:
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> Float32:
        return self._counts[: len(self._places)]

    def add(self, token: int) -> None:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == len(self._ids):
                self._ids, self._counts = np.resize(self._ids, 2 * place), np.resize(self._counts, 2 * place)
            self._ids[place], self._counts[place] = token, 0
        self._counts[place] += 1
