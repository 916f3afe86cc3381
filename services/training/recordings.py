"""Recordings of a run's answers: asked for where missing, read from disk, or computed again by a prefill."""

from __future__ import annotations

import errno
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from random import Random
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.arrays import Float32
from services.generation.target.rows import RowsBuilder
from services.generation.target.target import Target
from services.training.answering import Question, Recording, Streams, questions, regenerate, split
from services.training.plan import SECONDS_PER_MINUTE, DiskFull, Job, OutputInvalid, Reporter, WorkFolder
from services.training.prompts import Answer, AnswerFile, Prompt, PromptsInvalid, read_prompts

ANSWERS, RECORDINGS = "answers.jsonl", "recordings.bin"
"""The files of a run's folder."""
_BYTES = 2  # of a bfloat16
_ROWS = 256  # of a pass; a whole answer is one pass at least


class Recordings(Protocol):
    """Recordings by answer number."""

    def of(self, numbers: Sequence[int]) -> list[Recording]: ...


class Archive:
    """Answers and recordings on disk, appended one by one. A crash loses or damages no earlier one.

    An answer's recording is written before its line: the numbers of features, then of finals. Its start follows from
    the lengths of the answers before it.
    """

    def __init__(self, folder: Path, streams: Streams, record: bool) -> None:
        """Open for appending, without `record` the answers only.

        Raises OutputInvalid if `record` and an earlier answer has no recording: a run to recompute them wrote it, or a
        power cut lost it.
        """
        folder.mkdir(parents=True, exist_ok=True)
        self._answers = AnswerFile(folder / ANSWERS)
        self._path, self._record = folder / RECORDINGS, record
        self._closed = folder / "answers.closed"
        answers = list(self._answers)
        self.ids = {answer.id for answer in answers}
        self._cut_unfinished(_begins(answers, streams)[-1] * _BYTES)

    def append(self, answer: Answer, recording: Recording) -> None:
        """Raises DiskFull."""
        try:
            if self._record:
                with self._path.open("ab") as file:
                    file.write(recording.features.tobytes() + recording.finals.tobytes())
            self._answers.append([answer])
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            path, remedy = (self._path, ", or use --recompute") if self._record else (self._answers.path, "")
            raise DiskFull(f"{path}: no space is left; free some and restart, which continues here{remedy}") from error
        self.ids.add(answer.id)

    @property
    def closed(self) -> bool:
        """Whether no answer may be added any more: training that has begun needs the same answers again."""
        return self._closed.exists()

    def close(self) -> None:
        self._closed.touch()

    def _cut_unfinished(self, whole: int) -> None:
        size = self._path.stat().st_size if self._path.exists() else 0
        if self._record and size < whole:
            raise OutputInvalid(
                f"{self._path}: lacks recordings of some of {ANSWERS}; use --recompute, or choose another folder"
            )
        if size > whole:
            os.truncate(self._path, whole)


class Stored:
    """All answers of a folder in the order of their ids, and `Recordings` in that order, mapped from the file."""

    def __init__(self, folder: Path, streams: Streams) -> None:
        self._streams, self._path = streams, folder / RECORDINGS
        answers = list(AnswerFile(folder / ANSWERS))
        found = sorted(zip(answers, _begins(answers, streams), strict=False), key=lambda entry: entry[0].id)
        self.answers = [answer for answer, _ in found if len(answer.output) > 1]  # else there is nothing to draft
        self._places = [begin for answer, begin in found if len(answer.output) > 1]

    def of(self, numbers: Sequence[int]) -> list[Recording]:
        return [self._read(self.answers[number], self._places[number]) for number in numbers]

    @cached_property
    def _values(self) -> NDArray[np.uint16]:
        return np.memmap(self._path, np.uint16, mode="r")

    def _read(self, answer: Answer, begin: int) -> Recording:
        width, hidden = self._streams.width, self._streams.hidden_size
        middle = begin + (len(answer.tokens) - 1) * width
        end = middle + len(answer.output) * hidden
        features, finals = self._values[begin:middle], self._values[middle:end]
        return Recording(features.reshape(-1, width), finals.reshape(-1, hidden))


def _begins(answers: Sequence[Answer], streams: Streams) -> list[int]:
    """The start of each recording, and the end of the last, in values and not in bytes."""
    sizes = ((len(a.tokens) - 1) * streams.width + len(a.output) * streams.hidden_size for a in answers)
    return list(accumulate(sizes, initial=0))


class Prefill:
    """`Recordings` without storage: every epoch computes its recordings again."""

    def __init__(self, target: Target, streams: Streams, answers: Sequence[Answer]) -> None:
        self._target, self._streams, self._answers = target, streams, answers

    def of(self, numbers: Sequence[int]) -> list[Recording]:
        made: list[Recording] = []
        for group in _groups([self._answers[number] for number in numbers]):
            rows, first = self._pass(group), 0
            for answer in group:
                last = first + len(answer.tokens) - 1
                made.append(self._streams.recording([rows[first:last]], len(answer.prompt), len(answer.output)))
                first = last
        return made

    def _pass(self, answers: Sequence[Answer]) -> Float32:
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
    """Groups of answers that fit into a pass, at least one each."""
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


@dataclass(frozen=True, slots=True)
class Data:
    """Answers to learn from, and prompts to be measured on, which nothing was learned from."""

    answers: list[Answer]
    recordings: Recordings
    held_out: list[Prompt]


@dataclass(frozen=True, slots=True)
class Collection:
    """Asks the target."""

    job: Job
    target: Target
    streams: Streams
    folder: WorkFolder
    reporter: Reporter
    stop: Callable[[], bool]

    def collect(self) -> Data | None:
        """None if the run was stopped.

        Raises:
            PromptsInvalid: there are no answers to train on, or none left to measure on.
            OutputInvalid: the folder lacks recordings of earlier answers.
            DiskFull: there is no room for the answers or the recordings.
        """
        asked, held_out = self._questions()
        if not self._answered(asked):
            return None
        return self._read(held_out)

    def _questions(self) -> tuple[list[Question], list[Prompt]]:
        plan = self.job.data
        room = self.target.config.context_length - plan.max_tokens - 1
        prompts = read_prompts(self.job.prompts, Tokenizer(self.job.base), min(plan.longest_prompt, room))
        Random(plan.seed).shuffle(prompts)  # so that all domains have their share where time ends the answering
        learned, measured = split(prompts, plan.held_out, plan.seed)
        if not learned or not measured:
            raise PromptsInvalid(
                f"{len(prompts)} prompts: {len(learned)} to learn from, {len(measured)} held out; give more prompts"
            )
        return questions(learned, plan.temperatures, plan.seed), measured[: plan.most_held_out]

    def _answered(self, asked: list[Question]) -> bool:
        """False if it was stopped before all questions, or all for which the minutes suffice, were answered."""
        archive = Archive(self.folder.train, self.streams, record=not self.job.recompute)
        if not archive.closed and self._ask_all(archive, asked):
            archive.close()
        return archive.closed

    def _ask_all(self, archive: Archive, asked: list[Question]) -> bool:
        minutes = self.job.answering_minutes
        left = [question for question in asked if question.id not in archive.ids]
        ends = time.monotonic() + minutes * SECONDS_PER_MINUTE if minutes is not None else math.inf
        for answer, recording in regenerate(self.target, left, self.job.data.max_tokens, self.streams):
            archive.append(answer, recording)
            self.reporter.answered("to learn from", len(archive.ids), len(asked))
            if self.stop() or time.monotonic() > ends:
                return not self.stop()
        return True

    def _read(self, held_out: list[Prompt]) -> Data:
        stored = Stored(self.folder.train, self.streams)
        if not stored.answers:
            raise PromptsInvalid("no answer is longer than one token: there is nothing to foresee; use other prompts")
        recordings = Prefill(self.target, self.streams, stored.answers) if self.job.recompute else stored
        return Data(stored.answers, recordings, held_out)
