"""`kolm heads train`: runs in this process; torch comes in here and nowhere else in the command line."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from services.cli.exits import Failed, UsageError
from services.cli.views.training import StopRequest, training_view
from services.generation.drafting.eagle3.errors import HeadError
from services.generation.target.errors import TargetError
from services.training.acceptance import Acceptance
from services.training.devices import devices
from services.training.errors import DiskFull, TrainingError
from services.training.head.optimiser import Budget, Minutes, Steps
from services.training.job import Job
from services.training.plan import PRECISIONS, DataPlan, LessonPlan
from services.training.run import train_head

Number = TypeVar("Number", int, float)


def job_of(
    base: Path,
    prompts: list[Path],
    out: Path,
    work: Path | None,
    *,
    minutes: float | None,
    steps: int | None,
    answering_minutes: float | None,
    temperatures: str,
    max_tokens: int,
    held_out: float,
    feature_layers: str | None,
    draft_vocabulary: int | None,
    intermediate: int | None,
    unroll: int,
    decay: float,
    starts: int,
    passes: int,
    start_from: Path | None,
    precision: str,
    recompute: bool,
    seed: int,
) -> Job:
    """The flags as a job. Raises UsageError, naming the flag, for what cannot be read."""
    layers = _numbers("--feature-layers", feature_layers, int) if feature_layers else None
    sizes = {"feature_layers": layers, "draft_vocab_size": draft_vocabulary, "intermediate_size": intermediate}
    if precision not in PRECISIONS:
        raise UsageError(f"--precision: {precision!r}; expected one of {', '.join(PRECISIONS)}")
    return Job(
        base=base,
        prompts=tuple(prompts),
        out=out,
        work=work or out.with_name(f"{out.name}.work"),
        budget=_budget(minutes, steps),
        data=DataPlan(
            temperatures=_numbers("--temperatures", temperatures, float),
            max_tokens=max_tokens,
            held_out=held_out,
            seed=seed,
        ),
        lesson=LessonPlan(
            steps_unrolled=unroll,
            decay=decay,
            starts_per_pass=starts,
            passes_per_step=passes,
            precision="float32" if precision == "float32" else "bfloat16",
            seed=seed,
        ),
        sizes={name: size for name, size in sizes.items() if size is not None} or None,
        start_from=start_from,
        answering_minutes=answering_minutes,
        recompute=recompute,
    )


def _budget(minutes: float | None, steps: int | None) -> Budget:
    if (minutes is None) == (steps is None):
        raise UsageError("expected either --minutes or --steps: how long is the training to be?")
    if steps is not None and steps > 0:
        return Steps(steps)
    if minutes is not None and minutes > 0:
        return Minutes(minutes)
    raise UsageError("--minutes or --steps: expected more than 0")


def _numbers(flag: str, text: str, kind: Callable[[str], Number]) -> tuple[Number, ...]:
    try:
        return tuple(kind(part) for part in text.split(","))
    except ValueError as error:
        raise UsageError(f"{flag}: {text!r}; expected numbers with commas between them") from error


def run(job: Job, device: str | None) -> dict[str, Acceptance] | None:
    """Held-out acceptance by domain (of the leading process); None where the run was stopped on the way.

    Raises:
        UsageError, Failed: what does not fit, or what ran out; the message says what to do.
    """
    stop = StopRequest()
    try:
        with devices(device) as place, training_view() as view, stop.listening():
            return train_head(job, place, view, stop)
    except DiskFull as error:
        raise Failed(str(error)) from error
    except (TrainingError, HeadError, TargetError) as error:
        raise UsageError(str(error)) from error
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise Failed(
            f"{error.filename or job.work}: no space is left; free some and start again, it goes on where it was saved"
        ) from error


def to_json(job: Job, found: dict[str, Acceptance]) -> dict[str, Any]:
    figures = {
        domain: {"tokens": each.tokens, "mean_length": each.mean_length, "by_depth": list(each.by_depth)}
        for domain, each in found.items()
    }
    return {"head": str(job.out), "k": job.k, "held_out_acceptance": figures}
