"""Logits processors of one sequence, before a token is chosen, in the order that docs/numerics.md fixes."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from services.generation.engine.request import SamplingParams
from services.generation.engine.sampling.biases import LogitBias, MinTokens
from services.generation.engine.sampling.penalties import OutputPenalties, RepetitionPenalty
from services.generation.engine.sampling.processor import Columns, Float32, Int64, LogitsProcessor


def end_ids(params: SamplingParams, eos_token_ids: Collection[int]) -> frozenset[int]:
    """The tokens that end a sequence."""
    return frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else eos_token_ids)


class LogitsProcessors:
    """Those that a request asks for, after the tokens that `accept` was told of.

    `columns`: where a drafter's rows have tokens, see `Columns`.
    """

    def __init__(
        self, params: SamplingParams, prompt: Sequence[int], ends: frozenset[int], columns: Int64 | None = None
    ) -> None:  # fmt: skip
        self._processors = _asked_for(params, prompt, ends, Columns(columns))
        self._told = len(prompt)

    def accept(self, token: int) -> None:
        """Tell that `token` was emitted."""
        self._told += 1
        for processor in self._processors:
            processor.accept(token)

    def follow(self, tokens: Sequence[int]) -> None:
        """Tell all tokens so far, prompt and output."""
        for token in tokens[self._told :]:
            self.accept(token)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to change now."""
        return all(processor.idle for processor in self._processors)

    def apply(self, logits: Float32) -> Float32:
        """Logits [..., columns] as a token is to be chosen by them: the same array if there is nothing to change."""
        if self.idle:
            return logits
        processed = logits.copy()
        with np.errstate(over="ignore", invalid="ignore"):  # `Row` refuses what comes of either
            for processor in self._processors:
                processor.apply(processed)
        return processed


def _asked_for(
    params: SamplingParams, prompt: Sequence[int], ends: frozenset[int], columns: Columns
) -> list[LogitsProcessor]:
    found: list[LogitsProcessor] = []
    if params.repetition_penalty != 1.0:
        found.append(RepetitionPenalty(params.repetition_penalty, prompt, columns))
    if params.frequency_penalty or params.presence_penalty:
        found.append(OutputPenalties(params.frequency_penalty, params.presence_penalty, columns))
    if params.logit_bias:
        found.append(LogitBias(params.logit_bias, columns))
    if params.min_tokens and ends:
        found.append(MinTokens(params.min_tokens, ends, columns))
    return found
