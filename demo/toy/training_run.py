"""A training run as a person sees it: progress bar, checkpoints on the way, a clean stop."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from transformers import PreTrainedTokenizerFast

from demo.toy.export import export
from demo.toy.threads import PoliteThreads
from demo.toy.trainer import Trainer, Windows

_SMOOTHING = 0.95
"""Weight of the past in the loss that is shown."""
_SECONDS_PER_MINUTE = 60.0


@dataclass(slots=True)
class StopRequest:
    """Raised by Ctrl-C or SIGTERM; the step under way is finished and saved first."""

    raised: bool = False

    def listen(self) -> None:
        signal.signal(signal.SIGINT, self._raise)
        signal.signal(signal.SIGTERM, self._raise)

    def _raise(self, number: int, frame: FrameType | None) -> None:
        self.raised = True


@dataclass(frozen=True, slots=True)
class Saving:
    """Where and how often a run is saved: `first` after that many steps, then every so many minutes."""

    checkpoint: Path
    snapshot: Path
    first: int
    minutes: float


@dataclass(slots=True)
class Run:
    """Trains until the budget is used up or a stop is requested."""

    trainer: Trainer
    tokenizer: PreTrainedTokenizerFast
    held_out: Mapping[str, Windows]
    saving: Saving
    console: Console
    threads: PoliteThreads | None = None
    stop: StopRequest = field(default_factory=StopRequest)
    _loss: float | None = None
    _saved_at: float = field(default_factory=time.monotonic)

    def to_the_end(self) -> bool:
        """False where a stop was requested before the budget was used up."""
        self.stop.listen()
        columns = (BarColumn(), TextColumn("{task.percentage:>5.1f} %  {task.description}"), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            bar = progress.add_task("", total=1.0)
            while self.trainer.fraction < 1.0 and not self.stop.raised:
                self._step(progress, bar)
                if self._is_due():
                    self._save()
            self._save()
        return not self.stop.raised

    def _step(self, progress: Progress, bar: TaskID) -> None:
        began = time.monotonic()
        if self.threads:
            self.threads.begin_step()
        loss = self.trainer.step()
        if self.threads:
            self.threads.end_step()
        self._loss = loss if self._loss is None else _SMOOTHING * self._loss + (1 - _SMOOTHING) * loss
        speed = self.trainer.tokens_per_step / (time.monotonic() - began)
        shown = f"step {self.trainer.steps}  loss {self._loss:.3f}  {speed:,.0f} tokens/s"
        progress.update(bar, completed=self.trainer.fraction, description=shown)

    def _is_due(self) -> bool:
        waited = (time.monotonic() - self._saved_at) / _SECONDS_PER_MINUTE
        return self.trainer.steps == self.saving.first or waited > self.saving.minutes

    def _save(self) -> None:
        """Checkpoint, snapshot for readers, and one line with the held-out losses."""
        self.trainer.save(self.saving.checkpoint)
        export(self.trainer.model, self.tokenizer, self.saving.snapshot)
        losses = self.trainer.held_out_losses(self.held_out)
        shown = "  ".join(f"{name} {loss:.3f}" for name, loss in losses.items())
        loss = f"loss {self._loss:.3f}" if self._loss is not None else "no step yet"
        self.console.print(f"step {self.trainer.steps}  {self.trainer.fraction:.1%}  {loss}  held out: {shown}")
        self._saved_at = time.monotonic()
