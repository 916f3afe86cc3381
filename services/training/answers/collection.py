"""The run's answers: asked for where they are missing, then read from disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

from services.generation.engine.text.tokenizer import Tokenizer
from services.generation.target.target import Target
from services.training.answers.answer import Answer, Streams
from services.training.answers.prompts import read_prompts, split
from services.training.answers.recordings import Archive, Prefill, Recordings, Stored
from services.training.answers.regeneration import Question, questions, regenerate
from services.training.devices import Devices
from services.training.job import Job
from services.training.reporter import Reporter
from services.training.training_error import PromptsInvalid
from services.training.work_folder import WorkFolder

_SECONDS_PER_MINUTE = 60.0


@dataclass(frozen=True, slots=True)
class Data:
    """Answers to learn from and answers to be measured on, by prompts that have nothing in common."""

    answers: list[Answer]
    recordings: Recordings
    held_out: list[Answer]
    held_out_recordings: Recordings


@dataclass(frozen=True, slots=True)
class Collection:
    """Asks the target, this process its share of the prompts."""

    job: Job
    target: Target
    streams: Streams
    folder: WorkFolder
    devices: Devices
    reporter: Reporter
    stop: Callable[[], bool]

    def collect(self) -> Data | None:
        """None where the run was stopped.

        Raises:
            PromptsInvalid: there is nothing to train on, or nothing left to measure on.
            DiskFull: there is no room for the recordings.
        """
        asked, held_out = self._questions()
        whole = self._ask("held out", self.folder.held_out, held_out, None)
        whole = whole and self._ask("to learn from", self.folder.train, asked, self.job.answering_minutes)
        if self.devices.agree(not whole):
            return None
        return self._read()

    def _questions(self) -> tuple[list[Question], list[Question]]:
        plan = self.job.data
        room = self.target.config.context_length - plan.max_tokens - 1
        prompts = read_prompts(self.job.prompts, Tokenizer(self.job.base), min(plan.longest_prompt, room))
        Random(plan.seed).shuffle(prompts)  # so that all domains have their share where time ends the answering
        learned, measured = split(prompts, plan.held_out, plan.seed)
        if not learned or not measured:
            raise PromptsInvalid(
                f"{len(prompts)} prompts: {len(learned)} to learn from, {len(measured)} held out; give more prompts"
            )
        return (
            questions(learned, plan.temperatures, plan.seed),
            questions(measured[: plan.most_held_out], (0.0,), plan.seed),
        )

    def _ask(self, what: str, folder: Path, asked: list[Question], minutes: float | None) -> bool:
        """False where it was stopped before all of them, or all that the minutes allow, were answered."""
        archive = Archive(folder, self.devices.rank, self.streams, record=not self.job.recompute)
        if not archive.closed and self._ask_all(what, archive, asked, minutes):
            archive.close()
        return archive.closed

    def _ask_all(self, what: str, archive: Archive, asked: list[Question], minutes: float | None) -> bool:
        share = self.devices.share(asked)
        left = [question for question in share if question.id not in archive.ids]
        ends = time.monotonic() + minutes * _SECONDS_PER_MINUTE if minutes is not None else math.inf
        for answer, recording in regenerate(self.target, left, self.job.data.max_tokens, self.streams):
            archive.append(answer, recording)
            if self.devices.leads:
                self.reporter.answered(what, len(archive.ids), len(share))
            if self.stop() or time.monotonic() > ends:
                return not self.stop()
        return True

    def _read(self) -> Data:
        self.devices.wait()
        stored, measured = Stored(self.folder.train, self.streams), Stored(self.folder.held_out, self.streams)
        if not stored.answers or not measured.answers:
            raise PromptsInvalid("no answer is longer than one token: there is nothing to foresee; use other prompts")
        if not self.job.recompute:
            return Data(stored.answers, stored, measured.answers, measured)
        computed, computed_measured = (
            Prefill(self.target, self.streams, answers) for answers in (stored.answers, measured.answers)
        )
        return Data(stored.answers, computed, measured.answers, computed_measured)
