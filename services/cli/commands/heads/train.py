"""`kolm heads train`: its flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from services.cli import options


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
    minutes: Annotated[float | None, typer.Option(help="Minutes of training; the learning rate follows them.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps instead of minutes; reproducible to the bit.")] = None,
    answering_minutes: Annotated[float | None, typer.Option(help="Minutes at most for the base's answers.")] = None,
    temperatures: Annotated[str, typer.Option(help="Of the answers; prompts take them in turns.")] = "0,0.7,0,1",
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 256,
    held_out: Annotated[float, typer.Option(help="Share of the prompts kept for the measurement.")] = 0.05,
    feature_layers: Annotated[
        str | None, typer.Option(help="Layers whose features it reads. Default: 2,n/2,n-3.")
    ] = None,
    draft_vocabulary: Annotated[
        int | None, typer.Option(help="Tokens that it can draft. Default: at most 32000, or those of --start-from.")
    ] = None,
    intermediate: Annotated[int | None, typer.Option(help="Width of its MLP. Default: the base's.")] = None,
    unroll: Annotated[int, typer.Option(help="Draft steps that the training unrolls.")] = 7,
    decay: Annotated[float, typer.Option(help="Weight of a draft step relative to the one before it.")] = 0.8,
    starts: Annotated[int, typer.Option(help="Draft starts in one pass; more of them need more memory.")] = 256,
    passes: Annotated[int, typer.Option(help="Passes in an optimiser step, over all devices.")] = 1,
    start_from: Annotated[
        Path | None, typer.Option(help="A head to start from; the tokens that it can draft are chosen anew.")
    ] = None,
    precision: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Precision of the matrix products.")
    ] = "bfloat16",
    recompute: Annotated[bool, typer.Option("--recompute", help="Keep no features on disk, which is slower.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the split, of the answers' sampling and of the order.")] = 0,
    json: options.Json = False,
) -> None:
    """Train a head: the base answers prompts, the head learns to predict it. Ctrl-C saves; the same command continues.

    For several devices: torchrun --nproc-per-node N -m services.cli heads train …
    """
    from services.cli.exits import INTERRUPTED, UsageError
    from services.cli.named_files import expect_files, expect_folder, expect_new
    from services.cli.parsing import numbers

    expect_files("--prompts", prompts, "JSON lines with prompt or messages")
    expect_new("--out", out)
    if start_from is not None:
        expect_folder("--start-from", start_from, "config.json", "a head's folder")
    length = minutes if steps is None else steps
    if length is None or None not in (minutes, steps):
        raise UsageError("expected either --minutes or --steps: the length of the training")
    if length <= 0:
        raise UsageError("--minutes or --steps: expected more than 0")
    layers = numbers("--feature-layers", feature_layers, int) if feature_layers else None
    heats = numbers("--temperatures", temperatures, float)

    from services.cli.jobs.heads import training
    from services.cli.output import answer, talk
    from services.cli.views.training import trained_json, trained_view
    from services.training.devices import end_process
    from services.training.head.optimiser import Minutes, Steps
    from services.training.job import Job
    from services.training.plan import DataPlan, LessonPlan

    sizes = {"feature_layers": layers, "draft_vocab_size": draft_vocabulary, "intermediate_size": intermediate}
    job = Job(
        base=base,
        prompts=tuple(prompts),
        out=out,
        work=work or out.with_name(f"{out.name}.work"),
        budget=Minutes(length) if steps is None else Steps(steps),
        data=DataPlan(
            temperatures=heats,
            max_tokens=max_tokens,
            held_out=held_out,
            seed=seed,
        ),
        lesson=LessonPlan(
            steps_unrolled=unroll,
            decay=decay,
            starts_per_pass=starts,
            passes_per_step=passes,
            precision=precision,
            seed=seed,
        ),
        sizes={name: size for name, size in sizes.items() if size is not None} or None,
        start_from=start_from,
        answering_minutes=answering_minutes,
        recompute=recompute,
    )
    found = training.run(job, device)
    if found is None:
        talk().print("stopped; the same command continues from here")
        raise typer.Exit(INTERRUPTED)
    if found or json:  # only the leading process has figures
        answer(json, lambda: trained_json(job, found), lambda: trained_view(job, found))
    end_process()
