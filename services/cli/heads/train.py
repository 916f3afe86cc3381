"""`kolm heads train`: trains in this process until it is done or stopped."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from services.cli.frame import options
from services.cli.frame.exits import INTERRUPTED, Failed, UsageError
from services.cli.frame.output import answer, bars, remark
from services.cli.frame.process import stop_signals
from services.cli.frame.values import expect_files, expect_folder, expect_new, numbers
from services.cli.frame.views import Column, View, table
from services.generation.target.errors import TargetError
from services.generation.target.model_path import HEAD_FOLDER

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from services.training.kscore import Measured
    from services.training.plan import Budget, DataPlan, Job, StepReport, TrainingPlan


_LINE_SECONDS = 10.0
"""Time between two lines if there is no terminal."""
_SMOOTHING = 0.95
"""Weight of the past in the shown figures."""


@dataclass(frozen=True, slots=True)
class LengthOptions:
    """The length of the training."""

    minutes: Annotated[float | None, Option(help="Minutes of training; the learning rate follows them.")] = None
    steps: Annotated[int | None, Option(min=1, help="Number of steps instead of minutes; reproducible to the bit.")] = (
        None
    )

    def check(self) -> None:
        """Raises UsageError."""
        length = self.minutes if self.steps is None else self.steps
        if length is None or None not in (self.minutes, self.steps):
            raise UsageError("expected either --minutes or --steps: the length of the training")
        if length <= 0:
            raise UsageError(f"--minutes: is {length:g}; expected a number above 0")

    def budget(self) -> Budget:
        from services.training.plan import Minutes, Steps

        return Minutes(self.minutes or 0.0) if self.steps is None else Steps(self.steps)


@dataclass(frozen=True, slots=True)
class AnswerOptions:
    """The base's answers, from which the head learns."""

    answering_minutes: Annotated[float | None, Option(min=0, help="Time limit of the base's answers, in minutes.")] = (
        None
    )
    temperatures: Annotated[str, Option(help="Sampling temperatures of the answers, used in rotation.")] = "0,0.7,0,1"
    max_tokens: Annotated[int, Option(min=2, help="Limit of an answer, in tokens.")] = 256
    held_out: Annotated[float, Option(help="Share of the prompts that is kept for the measurement.")] = 0.05

    @property
    def by_turn(self) -> tuple[float, ...]:
        """The temperatures in their order. Raises UsageError."""
        return numbers("--temperatures", self.temperatures, float)

    def check(self) -> None:
        """Raises UsageError."""
        if not all(0 <= each <= 100 for each in self.by_turn):
            raise UsageError(f"--temperatures: is {self.temperatures}; expected numbers from 0 to 100")
        if not 0 < self.held_out < 1:
            raise UsageError(f"--held-out: is {self.held_out:g}; expected a share between 0 and 1")

    def plan(self, seed: int) -> DataPlan:
        from services.training.plan import DataPlan

        return DataPlan(self.by_turn, self.max_tokens, held_out=self.held_out, seed=seed)


@dataclass(frozen=True, slots=True)
class SizeOptions:
    """Sizes of the head, by default the base's."""

    feature_layers: Annotated[str | None, Option(help="Layers whose features the head reads. Default: 2,n/2,n-3.")] = (
        None
    )
    draft_vocabulary: Annotated[
        int | None,
        Option(min=1, help="Number of tokens that it can draft. Default: at most 32000, or as in --start-from."),
    ] = None
    intermediate: Annotated[int | None, Option(min=1, help="Width of its MLP. Default: the base's.")] = None
    layers: Annotated[int | None, Option(min=1, help="Layers of a block head. Default: 2.")] = None

    def chosen(self) -> dict[str, Any] | None:
        """Members of `services.training.plan.HeadSizes`. Raises UsageError."""
        layers = self.feature_layers
        sizes = {
            "feature_layers": numbers("--feature-layers", layers, int) if layers else None,
            "draft_vocab_size": self.draft_vocabulary,
            "intermediate_size": self.intermediate,
            "layers": self.layers,
        }
        return {name: size for name, size in sizes.items() if size is not None} or None


@dataclass(frozen=True, slots=True)
class LessonOptions:
    """Draft steps and passes of the training."""

    unroll: Annotated[int, Option(min=1, help="Number of unrolled draft steps, or tokens of a block.")] = 7
    decay: Annotated[float, Option(help="Weight of a draft step relative to the previous step.")] = 0.8
    starts: Annotated[int, Option(min=1, help="Draft starts in one pass; more need more memory.")] = 256
    passes: Annotated[int, Option(min=1, help="Number of passes in an optimiser step.")] = 1
    rate: Annotated[float, Option(help="Learning rate of matrices; other tensors get a tenth of it.")] = 0.02

    def check(self) -> None:
        """Raises UsageError."""
        for name, value in (("decay", self.decay), ("rate", self.rate)):
            if not 0 < value <= 1:
                raise UsageError(f"--{name}: is {value:g}; expected a number above 0, at most 1")

    def plan(self, precision: Literal["bfloat16", "float32"], seed: int) -> TrainingPlan:
        from services.training.plan import TrainingPlan

        shape = (self.unroll, self.decay, self.starts, self.passes)
        return TrainingPlan(*shape, matrix_rate=self.rate, vector_rate=self.rate / 10, precision=precision, seed=seed)


LENGTH, ANSWERS, SIZES, LESSON = LengthOptions(), AnswerOptions(), SizeOptions(), LessonOptions()


def train(
    base: Annotated[
        Path,
        Argument(
            metavar="BASE", callback=options.found_model, help="The model whose tokens the head learns to predict."
        ),
    ],
    prompts: Annotated[list[Path], Option(help="JSON lines with prompt or messages; may be repeated.")],
    out: Annotated[Path, Option(help="Folder for the head; must not exist.")],
    kind: Annotated[
        Literal["eagle3", "block"], Option(help="Kind of head: drafts a token at a time, or a block in one pass.")
    ] = "eagle3",
    work: Annotated[Path | None, Option(help="Folder of answers and checkpoints. Default: <out>.work.")] = None,
    length: LengthOptions = LENGTH,
    answers: AnswerOptions = ANSWERS,
    sizes: SizeOptions = SIZES,
    lesson: LessonOptions = LESSON,
    start_from: Annotated[
        Path | None, Option(help="A head to start from; its draft vocabulary is chosen again.")
    ] = None,
    precision: Annotated[
        Literal["bfloat16", "float32"] | None,
        Option(help="Precision of the matrix products. Default: the faster one on this device."),
    ] = None,
    recompute: Annotated[
        bool, Option("--recompute", help="Recompute features instead of keeping them on disk; slower.")
    ] = False,
    device: Annotated[str | None, Option(help="Device, cpu or cuda. Default: cuda if there is one.")] = None,
    seed: Annotated[int, Option(min=0, help="Seed of the split, of the answers' sampling and of the order.")] = 0,
    json: options.Json = False,
) -> None:
    """Train a head: the base answers prompts, the head learns to predict it. Ctrl-C saves; the same
    command continues.
    """
    expect_files("--prompts", prompts, "JSON lines with prompt or messages")
    expect_new("--out", out)
    if start_from is not None:
        expect_folder("--start-from", start_from, HEAD_FOLDER)
    for each in (length, answers, lesson):
        each.check()
    chosen = sizes.chosen()

    remark(f"a head for {base}: loading torch, then the model …")

    from services.training.plan import Job
    from services.training.trainer import faster_precision

    job = Job(
        base=base,
        prompts=tuple(prompts),
        out=out,
        work=work or out.with_name(f"{out.name}.work"),
        budget=length.budget(),
        data=answers.plan(seed),
        lesson=lesson.plan(precision or faster_precision(device), seed),
        kind=kind,
        sizes=chosen,
        start_from=start_from,
        answering_minutes=answers.answering_minutes,
        recompute=recompute,
    )
    found = run(job, device)
    if found is None:
        remark("stopped; the same command continues from here")
        raise typer.Exit(INTERRUPTED)
    answer(json, _document(job, found), _trained_view)


def run(job: Job, device: str | None) -> dict[str, Measured] | None:
    """Held-out acceptance by domain; None if Ctrl-C or SIGTERM stopped the run, after the current step was saved.

    Raises UsageError for a job that does not fit its base, Failed for a full disk.
    """
    from services.generation.drafting.heads import HeadError
    from services.training.plan import DiskFull
    from services.training.prompts import TrainingError
    from services.training.run import train_head
    from services.training.trainer import training_device

    came: list[int] = []
    try:
        with terminal_reporter() as reporter, stop_signals(came.append):
            return train_head(job, training_device(device), reporter, stop=lambda: bool(came))
    except DiskFull as error:
        raise Failed(str(error)) from error
    except (TrainingError, HeadError, TargetError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        hint = "free some and run the same command again, which continues from the last checkpoint"
        raise Failed(f"{error.filename or job.work}: no space is left", hint) from error


class TerminalReporter:
    """Implements `Reporter`: progress bars on a terminal, elsewhere a line every few seconds."""

    def __init__(self, progress: Progress, clock: Callable[[], float] = time.monotonic) -> None:
        self._progress = progress
        self._clock, self._shown_at = clock, -_LINE_SECONDS
        self._tasks: dict[str, TaskID] = {}
        self._losses: Sequence[float] | None = None
        self._acceptance: Sequence[float] | None = None
        self._starts, self._since = 0, clock()

    def note(self, line: str) -> None:
        self._progress.console.print(line, soft_wrap=True)

    def answered(self, what: str, done: int, total: int) -> None:
        self._since = self._clock()
        self._show(f"answers {what}", done / total, f"{done:,} of {total:,}")

    def stepped(self, fraction: float, steps: int, report: StepReport) -> None:
        self._losses = _smooth(self._losses, report.losses)
        self._acceptance = _smooth(self._acceptance, report.acceptance)
        self._starts += report.starts
        self._show("training", fraction, f"step {steps}  {self._figures()}")

    def saved(self, steps: int, snapshot: Path) -> None:
        self._progress.console.print(f"step {steps}  {self._figures()}  saved {snapshot}", soft_wrap=True)

    def _figures(self) -> str:
        if self._losses is None or self._acceptance is None:
            return "no step yet"
        losses = " ".join(f"{loss:.2f}" for loss in self._losses)
        accepted = " ".join(f"{share:.0%}" for share in self._acceptance)
        speed = self._starts / (self._clock() - self._since)
        return f"loss {losses}  right {accepted}  {speed:.0f} tokens/s"

    def _show(self, task: str, fraction: float, text: str) -> None:
        if task not in self._tasks:
            self._tasks[task] = self._progress.add_task(task, total=1.0, text="")
        self._progress.update(self._tasks[task], completed=fraction, text=text)
        if self._progress.disable and self._clock() - self._shown_at >= _LINE_SECONDS:
            self._shown_at = self._clock()
            self.note(f"{task} {fraction:.0%}  {text}")


@contextmanager
def terminal_reporter() -> Iterator[TerminalReporter]:
    """A reporter whose bars end with the block."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"), BarColumn(bar_width=16), TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(), TimeRemainingColumn(), TextColumn("{task.fields[text]}"),
    )  # fmt: skip
    with bars(*columns) as progress:
        yield TerminalReporter(progress)


def _smooth(past: Sequence[float] | None, now: Sequence[float]) -> Sequence[float]:
    if past is None:
        return now
    return [_SMOOTHING * a + (1 - _SMOOTHING) * b for a, b in zip(past, now, strict=True)]


def _document(job: Job, found: Mapping[str, Measured]) -> dict[str, Any]:
    """The head's folder, the depth of drafts, and acceptance on held-out prompts by domain."""
    figures = {
        domain: {
            "tokens": each.tokens,
            "mean_length": each.mean_acceptance_length,
            "by_depth": list(each.acceptance_by_depth),
        }
        for domain, each in found.items()
    }
    return {"head": str(job.out), "k": job.k, "held_out_acceptance": figures}


def _trained_view(trained: dict[str, Any]) -> View:
    """Its acceptance: mean length, and the share of drafts accepted to each depth; and how to publish it."""
    found = trained["held_out_acceptance"]
    depths = max((len(each["by_depth"]) for each in found.values()), default=0)

    def share(depth: int) -> Column:
        return Column(f"depth {depth + 1}", lambda row: f"{row['by_depth'][depth]:.0%}", right=True)

    return [
        table(
            [{"domain": domain} | each for domain, each in found.items()],
            Column("domain", "domain"),
            Column("tokens", lambda row: f"{row['tokens']:,}", right=True),
            Column("mean length", lambda row: f"{row['mean_length']:.2f}", right=True),
            *map(share, range(depths)),
        ),
        trained["head"],
        f"kolm heads push {trained['head']} --name NAME publishes it",
    ]
