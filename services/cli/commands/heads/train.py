"""`kolm heads train`: its flags."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import options
from services.cli.exits import INTERRUPTED


def train(
    base: Annotated[
        Path,
        typer.Argument(
            metavar="BASE", callback=options.found_model, help="The model whose tokens the head is to foresee."
        ),
    ],
    prompts: Annotated[list[Path], typer.Option(help="JSON lines with prompt or messages; repeat it for more files.")],
    out: Annotated[Path, typer.Option(help="Folder for the head; must not exist.")],
    work: Annotated[Path | None, typer.Option(help="Answers and checkpoints. Default: <out>.work.")] = None,
    minutes: Annotated[float | None, typer.Option(help="Length of the training; the learning rate follows it.")] = None,
    steps: Annotated[int | None, typer.Option(help="Steps instead of minutes: reproducible to the bit.")] = None,
    answering_minutes: Annotated[float | None, typer.Option(help="Let the base answer for so long at most.")] = None,
    temperatures: Annotated[str, typer.Option(help="Of the answers; prompts take them in turns.")] = "0,0.7,0,1",
    max_tokens: Annotated[int, typer.Option(help="Tokens of an answer at most.")] = 256,
    held_out: Annotated[float, typer.Option(help="Share of the prompts that the head is measured on.")] = 0.05,
    feature_layers: Annotated[str | None, typer.Option(help="Which streams it reads. Default: 2, n/2, n-3.")] = None,
    draft_vocabulary: Annotated[
        int | None, typer.Option(help="Tokens it can draft. Default: at most 32000, or as many as --start-from.")
    ] = None,
    intermediate: Annotated[int | None, typer.Option(help="Width of its MLP. Default: the base's.")] = None,
    unroll: Annotated[int, typer.Option(help="Draft steps it is unrolled for.")] = 7,
    decay: Annotated[float, typer.Option(help="Weight of each draft step beside the one before it.")] = 0.8,
    starts: Annotated[int, typer.Option(help="Draft starts in one pass: more need more memory.")] = 256,
    passes: Annotated[int, typer.Option(help="Passes in an optimiser step, over all devices.")] = 1,
    start_from: Annotated[
        Path | None, typer.Option(help="A head to go on from; it learns which tokens to draft anew.")
    ] = None,
    precision: Annotated[str, typer.Option(help="Of the matrix products: bfloat16 or float32.")] = "bfloat16",
    recompute: Annotated[bool, typer.Option("--recompute", help="Keep no features on disk; slower.")] = False,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: cuda where there is one.")] = None,
    seed: Annotated[int, typer.Option(help="Decides the split, the noise of the answers and the order.")] = 0,
    json: options.Json = False,
) -> None:
    """Train a head: the base answers prompts, the head learns to foresee it. Ctrl-C saves; the same command goes on.

    For several devices: torchrun --nproc-per-node N -m services.cli heads train …
    """
    from services.cli.jobs.heads import training
    from services.cli.output import data, print_json, talk
    from services.cli.views.training import acceptance_table
    from services.training.devices import end_process

    job = training.job_of(
        base, prompts, out, work, minutes=minutes, steps=steps, answering_minutes=answering_minutes,
        temperatures=temperatures, max_tokens=max_tokens, held_out=held_out, feature_layers=feature_layers,
        draft_vocabulary=draft_vocabulary, intermediate=intermediate, unroll=unroll, decay=decay, starts=starts,
        passes=passes, start_from=start_from, precision=precision, recompute=recompute, seed=seed,
    )  # fmt: skip
    found = training.run(job, device)
    if found is None:
        talk().print("stopped; the same command goes on from here")
        raise typer.Exit(INTERRUPTED)
    if json:
        print_json(training.to_json(job, found))
    elif found:
        data().print(acceptance_table(found))
        data().print(f"{out}\nkolm heads push {out} --name NAME publishes it", soft_wrap=True)
    end_process()
