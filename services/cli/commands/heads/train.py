"""`kolm heads train`: its flags."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from services.cli.failures.exits import INTERRUPTED, UsageError
from services.cli.options import options
from services.cli.values.named_files import expect_files, expect_folder, expect_new
from services.cli.values.parsing import numbers
from services.generation.target.model_path import HEAD_FOLDER

if TYPE_CHECKING:
    from services.training.plan import Budget, DataPlan, LessonPlan


@dataclass(frozen=True, slots=True)
class LengthOptions:
    """The length of the training."""

    minutes: Annotated[float | None, typer.Option(help="Minutes of training; the learning rate follows them.")] = None
    steps: Annotated[int | None, typer.Option(min=1, help="Steps instead of minutes; reproducible to the bit.")] = None

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
    """The base's answers, which the head learns from."""

    answering_minutes: Annotated[float | None, typer.Option(min=0, help="Minutes at most for the base's answers.")] = (
        None
    )
    temperatures: Annotated[str, typer.Option(help="Of the answers; prompts take them in turns.")] = "0,0.7,0,1"
    max_tokens: Annotated[int, typer.Option(min=2, help="Tokens of an answer at most.")] = 256
    held_out: Annotated[float, typer.Option(help="Share of the prompts kept for the measurement.")] = 0.05

    @property
    def heats(self) -> tuple[float, ...]:
        """The temperatures. Raises UsageError."""
        return numbers("--temperatures", self.temperatures, float)

    def check(self) -> None:
        """Raises UsageError."""
        if not all(0 <= each <= 100 for each in self.heats):
            raise UsageError(f"--temperatures: is {self.temperatures}; expected numbers from 0 to 100")
        if not 0 < self.held_out < 1:
            raise UsageError(f"--held-out: is {self.held_out:g}; expected a share between 0 and 1")

    def plan(self, seed: int) -> DataPlan:
        from services.training.plan import DataPlan

        return DataPlan(self.heats, self.max_tokens, held_out=self.held_out, seed=seed)


@dataclass(frozen=True, slots=True)
class SizeOptions:
    """Sizes of the head, where they do not follow from the base."""

    feature_layers: Annotated[str | None, typer.Option(help="Layers whose features it reads. Default: 2,n/2,n-3.")] = (
        None
    )
    draft_vocabulary: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens that it can draft. Default: at most 32000, or those of --start-from."),
    ] = None
    intermediate: Annotated[int | None, typer.Option(min=1, help="Width of its MLP. Default: the base's.")] = None

    def chosen(self) -> dict[str, Any] | None:
        """Members of `services.training.plan.HeadSizes`. Raises UsageError."""
        layers = self.feature_layers
        sizes = {
            "feature_layers": numbers("--feature-layers", layers, int) if layers else None,
            "draft_vocab_size": self.draft_vocabulary,
            "intermediate_size": self.intermediate,
        }
        return {name: size for name, size in sizes.items() if size is not None} or None


@dataclass(frozen=True, slots=True)
class LessonOptions:
    """Draft steps and passes of the training."""

    unroll: Annotated[int, typer.Option(min=1, help="Draft steps that the training unrolls.")] = 7
    decay: Annotated[float, typer.Option(help="Weight of a draft step relative to the one before it.")] = 0.8
    starts: Annotated[int, typer.Option(min=1, help="Draft starts in one pass; more of them need more memory.")] = 256
    passes: Annotated[int, typer.Option(min=1, help="Passes in an optimiser step, over all devices.")] = 1

    def check(self) -> None:
        """Raises UsageError."""
        if not 0 < self.decay <= 1:
            raise UsageError(f"--decay: is {self.decay:g}; expected a number above 0, at most 1")

    def plan(self, precision: Literal["bfloat16", "float32"], seed: int) -> LessonPlan:
        from services.training.plan import LessonPlan

        shape = (self.unroll, self.decay, self.starts, self.passes)
        return LessonPlan(*shape, precision=precision, seed=seed)


LENGTH, ANSWERS, SIZES, LESSON = LengthOptions(), AnswerOptions(), SizeOptions(), LessonOptions()


def train(
    base: Annotated[
        Path,
        typer.Argument(
            metavar="BASE", callback=options.found_model, help="The model whose tokens the head learns to predict."
        ),
    ],
    prompts: Annotated[list[Path], typer.Option(help="JSON lines with prompt or messages; repeat it for more files.")],
    out: Annotated[Path, typer.Option(help="Folder for the head; must not exist.")],
    work: Annotated[Path | None, typer.Option(help="Answers and checkpoints. Default: <out>.work.")] = None,
    length: LengthOptions = LENGTH,
    answers: AnswerOptions = ANSWERS,
    sizes: SizeOptions = SIZES,
    lesson: LessonOptions = LESSON,
    start_from: Annotated[
        Path | None, typer.Option(help="A head to start from; the tokens that it can draft are chosen anew.")
    ] = None,
    precision: Annotated[
        Literal["bfloat16", "float32"] | None,
        typer.Option(help="Precision of the matrix products. Default: the faster one on this device."),
    ] = None,
    recompute: Annotated[bool, typer.Option("--recompute", help="Keep no features on disk, which is slower.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split, of the answers' sampling and of the order.")] = 0,
    json: options.Json = False,
) -> None:
    """Train a head: the base answers prompts, the head learns to predict it. Ctrl-C saves; the same command continues.

    For several devices: torchrun --nproc-per-node N -m services.cli heads train …
    """
    expect_files("--prompts", prompts, "JSON lines with prompt or messages")
    expect_new("--out", out)
    if start_from is not None:
        expect_folder("--start-from", start_from, HEAD_FOLDER)
    for each in (length, answers, lesson):
        each.check()
    chosen = sizes.chosen()

    from services.cli.terminal.output import answer, talk

    talk().print(f"a head for {base}: loading torch, then the model …", soft_wrap=True, markup=False)

    from services.cli.jobs.heads import training
    from services.cli.views.heads.training import trained_json, trained_view
    from services.training.devices import end_process, faster_precision
    from services.training.plan import Job

    job = Job(
        base=base,
        prompts=tuple(prompts),
        out=out,
        work=work or out.with_name(f"{out.name}.work"),
        budget=length.budget(),
        data=answers.plan(seed),
        lesson=lesson.plan(precision or faster_precision(device), seed),
        sizes=chosen,
        start_from=start_from,
        answering_minutes=answers.answering_minutes,
        recompute=recompute,
    )
    found = training.run(job, device)
    if found is None:
        talk().print("stopped; the same command continues from here")
        raise typer.Exit(INTERRUPTED)
    if found or json:  # only the leading process has figures
        answer(json, lambda: trained_json(job, found), lambda: trained_view(job, found))
    end_process()
