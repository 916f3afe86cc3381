"""One training run: steps, and checkpoints that continue bit for bit."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from services.training.answers.answer import Answer
from services.training.answers.recordings import Recordings
from services.training.budget import Budget
from services.training.devices import Devices
from services.training.head.batches import Passes, Window, window_of
from services.training.head.loss import Teacher, step_sums
from services.training.head.module import HeadModule
from services.training.head.optimiser import Clock, Optimiser, rate_factor
from services.training.plan import LessonPlan
from services.training.reporter import StepReport
from services.training.training_error import OutputInvalid
from services.training.work_folder import write_checkpoint

_DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


class Lesson(nn.Module):
    """The unrolled head and its teacher as one module, which is what gradients are averaged over."""

    def __init__(self, head: HeadModule, teacher: Teacher, steps: int) -> None:
        super().__init__()
        self.head, self._teacher, self._steps = head, teacher, steps

    def forward(self, window: Window) -> tuple[Tensor, Tensor]:
        """(losses [steps], right guesses [steps]), summed over the window's starts; only losses have gradients."""
        sums = step_sums(self.head, self._teacher, window, self._steps)
        return sums.losses, sums.right


class Trainer:
    """A head under training. Everything that decides the next step is in `state()`."""

    def __init__(
        self,
        head: HeadModule,
        teacher: Teacher,
        answers: list[Answer],
        recordings: Recordings,
        plan: LessonPlan,
        budget: Budget,
        devices: Devices,
        clock: Clock = time.monotonic,
    ) -> None:
        self.head = head
        self.steps = 0
        self._target_ids = teacher.target_ids
        self._lesson = devices.together(Lesson(head, teacher, plan.steps_unrolled).to(devices.device))
        self._passes = Passes(answers, plan.starts_per_pass, plan.seed)
        self._answers, self._recordings = answers, recordings
        self._plan, self._budget, self._devices = plan, budget, devices
        self._optimiser = Optimiser(head, plan.matrix_rate, plan.vector_rate, dtype=_DTYPES[plan.precision])
        self._clock, self._seconds_before, self._started = clock, 0.0, clock()

    @property
    def fraction(self) -> float:
        """How much of the budget is used, 1.0 or more when the run is over; the leading process's clock counts."""
        own = self._budget.fraction(self.steps, self.seconds) if self._devices.leads else 0.0
        return float(self._devices.sum(torch.tensor(own, dtype=torch.float64, device=self._devices.device)).item())

    def step(self) -> StepReport:
        """One optimiser step over the passes of all devices: the mean over their starts, each draft step by itself."""
        passes = self._passes.of_step(self.steps, self._plan.passes_per_step)
        starts = self._starts(passes)
        weights = self._plan.decay ** torch.arange(self._plan.steps_unrolled) / starts.clamp(min=1)
        sums = torch.zeros(2, self._plan.steps_unrolled, device=self._devices.device)
        own = self._devices.share(passes)
        for number, numbers in enumerate(own, 1):
            with self._synchronised(number == len(own)):
                sums += self._learn(numbers, weights.to(self._devices.device))
        self._optimiser.step(rate_factor(self.fraction))
        self.steps += 1
        return _report(self._devices.sum(sums).cpu(), starts)

    def _learn(self, numbers: list[int], weights: Tensor) -> Tensor:
        """Gradients of one pass; returns its sums, [losses, right guesses] x [steps]."""
        device, half = self._devices.device, self._plan.precision == "bfloat16"
        window = window_of([self._answers[n] for n in numbers], self._recordings.of(numbers))
        with torch.autocast(device.type, dtype=torch.bfloat16, enabled=half):
            losses, right = self._lesson(window.to(device, torch.bfloat16 if half else torch.float32))
        # Gradients are averaged over the devices; their sum is wanted.
        ((losses * weights).sum() * self._devices.count).backward()
        return torch.stack([losses.detach(), right])

    def _starts(self, passes: list[list[int]]) -> Tensor:
        """[steps] how many starts of an optimiser step have a token to foresee at each draft step."""
        lengths = torch.tensor([len(self._answers[number].said) for numbers in passes for number in numbers])
        return torch.stack([(lengths - step).clamp(min=0).sum() for step in range(1, self._plan.steps_unrolled + 1)])

    def _synchronised(self, last: bool) -> AbstractContextManager[Any]:
        """Gradients travel once a step, with its last pass."""
        if last or not isinstance(self._lesson, DistributedDataParallel):
            return nullcontext()
        return self._lesson.no_sync()

    def save(self, path: Path) -> None:
        write_checkpoint(path, self.state())

    def load(self, path: Path) -> None:
        self.restore(torch.load(path, map_location=self._devices.device, weights_only=True))

    def state(self) -> dict[str, Any]:
        return {
            "head": self.head.state_dict(),
            "optimiser": self._optimiser.state(),
            "target_ids": self._target_ids,
            "steps": self.steps,
            "seconds": self.seconds,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Raises OutputInvalid where the head drafted other tokens: rows of its output matrix would change hands."""
        if not torch.equal(state["target_ids"].cpu(), self._target_ids.cpu()):
            raise OutputInvalid("the checkpoint's draft vocabulary is another one; use another folder, or remove it")
        self.head.load_state_dict(state["head"])
        self._optimiser.restore(state["optimiser"])
        self.steps = state["steps"]
        self._seconds_before, self._started = state["seconds"], self._clock()

    @property
    def seconds(self) -> float:
        """Of training, those before the checkpoint that it continues included."""
        return self._seconds_before + self._clock() - self._started


def _report(sums: Tensor, starts: Tensor) -> StepReport:
    losses, right = (sums / starts.clamp(min=1)).tolist()
    return StepReport(tuple(losses), tuple(right), int(starts[0]))
