"""Recordings of answers that exist already: one prefill over each answer's tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from services.training.answers.answer import Answer
from services.training.answers.recording import Recording, Streams

_ROWS = 256  # of a pass; a whole answer is one pass at least


class Prefill:
    """`Recordings` that keeps nothing: what is asked for is computed, and every epoch computes it again."""

    def __init__(self, target: Target, streams: Streams, answers: Sequence[Answer]) -> None:
        self._target, self._streams, self._answers = target, streams, answers

    def of(self, numbers: Sequence[int]) -> list[Recording]:
        made: list[Recording] = []
        for group in _groups([self._answers[number] for number in numbers]):
            rows, first = self._pass(group), 0
            for answer in group:
                last = first + len(answer.tokens) - 1
                made.append(self._streams.recording([rows[first:last]], len(answer.prompt), len(answer.said)))
                first = last
        return made

    def _pass(self, answers: Sequence[Answer]) -> NDArray[np.float32]:
        builder, tables = RowsBuilder(), [list[int]() for _ in answers]
        try:
            for table, answer in zip(tables, answers, strict=True):
                self._target.blocks.extend(table, len(answer.tokens) - 1)
                builder.add_chunk(table, 0, list(answer.tokens[:-1]), want_last=False)
            return self._target.forward(builder.build(), self._streams.layers).features
        finally:
            for table in tables:
                self._target.blocks.release(table)


def _groups(answers: Sequence[Answer]) -> Iterator[list[Answer]]:
    """As many as fit into a pass, at least one."""
    group: list[Answer] = []
    rows = 0
    for answer in answers:
        if group and rows + len(answer.tokens) > _ROWS:
            yield group
            group, rows = [], 0
        group.append(answer)
        rows += len(answer.tokens)
    if group:
        yield group
