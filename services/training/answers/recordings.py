"""Recordings by answer number: read from an archive on disk, or computed again by a prefill over each answer."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from services.training.answers.answer import Answer, AnswerFile, Recording, Streams
from services.training.training_error import DiskFull

_BYTES = 2  # of a bfloat16
_ROWS = 256  # of a pass; a whole answer is one pass at least


class Recordings(Protocol):
    """Recordings by answer number."""

    def of(self, numbers: Sequence[int]) -> list[Recording]: ...


class Archive:
    """Appended to answer by answer; after a crash at any point, what was appended before it is there and whole.

    An answer's recording is written before its line: features, then finals, and nothing but the numbers. Where they
    begin follows from the lengths of the answers before it.
    """

    def __init__(self, folder: Path, part: int, streams: Streams, record: bool) -> None:
        """Open for appending, without `record` the answers only."""
        folder.mkdir(parents=True, exist_ok=True)
        self._answers = AnswerFile(folder / f"answers-{part}.jsonl")
        self._streams, self._path = streams, (_recordings_path(folder, part) if record else None)
        self._closed = folder / f"answers-{part}.closed"
        self.ids = {answer.id for answer in self._answers}
        if self._path is not None:
            self._cut_unfinished(self._path)

    def append(self, answer: Answer, recording: Recording) -> None:
        """Raises DiskFull."""
        try:
            if self._path is not None:
                with self._path.open("ab") as file:
                    file.write(recording.features.tobytes() + recording.finals.tobytes())
            self._answers.append([answer])
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            raise DiskFull(
                f"{self._path}: no space is left; free some and start again, it goes on from here, or use --recompute"
            ) from error
        self.ids.add(answer.id)

    @property
    def closed(self) -> bool:
        """Whether nothing is to be added any more: a head that has begun to learn must find the same answers again."""
        return self._closed.exists()

    def close(self) -> None:
        self._closed.touch()

    def _cut_unfinished(self, path: Path) -> None:
        whole = _begins(list(self._answers), self._streams)[-1] * _BYTES
        with path.open("ab") as file:
            file.truncate(min(whole, path.stat().st_size))


class Stored:
    """All answers of a folder in the order of their ids, and `Recordings` by that order, read where they lie."""

    def __init__(self, folder: Path, streams: Streams) -> None:
        self._streams = streams
        found: list[tuple[Answer, int, int]] = []  # answer, its part, its begin
        self._parts: list[Path] = []
        for path in sorted(folder.glob("answers-*.jsonl")):
            answers = list(AnswerFile(path))
            begins = _begins(answers, streams)
            found += [(answer, len(self._parts), begin) for answer, begin in zip(answers, begins, strict=False)]
            self._parts.append(_recordings_path(folder, int(path.stem.removeprefix("answers-"))))
        found.sort(key=lambda entry: entry[0].id)
        self.answers = [answer for answer, _, _ in found if len(answer.said) > 1]  # else there is nothing to draft
        self._places = [(part, begin) for answer, part, begin in found if len(answer.said) > 1]
        self._values: dict[int, NDArray[np.uint16]] = {}

    def of(self, numbers: Sequence[int]) -> list[Recording]:
        return [self._read(self.answers[number], *self._places[number]) for number in numbers]

    def _read(self, answer: Answer, part: int, begin: int) -> Recording:
        if part not in self._values:
            self._values[part] = np.memmap(self._parts[part], np.uint16, mode="r")
        width, hidden = self._streams.width, self._streams.hidden_size
        middle = begin + (len(answer.tokens) - 1) * width
        end = middle + len(answer.said) * hidden
        values = self._values[part]
        return Recording(values[begin:middle].reshape(-1, width), values[middle:end].reshape(-1, hidden))


def _begins(answers: Sequence[Answer], streams: Streams) -> list[int]:
    """Where each recording begins, and where the last ends; in values, not in bytes."""
    sizes = ((len(a.tokens) - 1) * streams.width + len(a.said) * streams.hidden_size for a in answers)
    return list(accumulate(sizes, initial=0))


def _recordings_path(folder: Path, part: int) -> Path:
    return folder / f"recordings-{part}.bin"


class Prefill:
    """`Recordings` that keeps nothing: every epoch computes its recordings again."""

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
