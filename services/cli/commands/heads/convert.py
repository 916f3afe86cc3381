"""`kolm heads convert`: from the layouts of others to kolm's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import options
from services.cli.exits import UsageError


def convert(
    source: Annotated[Path, typer.Argument(help="A head as SafeAILab, SpecForge or speculators publish it.")],
    out: Annotated[Path, typer.Argument(help="The folder to write in kolm's layout.")],
    model: options.TrainedOn = Path("smollm2"),
    feature_layers: Annotated[
        str | None, typer.Option(metavar="N,N,N", help="Layers whose features it reads, where its config is wrong.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Write a head in kolm's layout, with every choice explicit."""
    from services.cli.jobs.heads.conversion import convert as write
    from services.cli.output import data, print_json

    written = write(source, out, model, _layers(feature_layers))
    if json:
        print_json(written)
    else:
        layers = ", ".join(map(str, written["feature_layers"]))
        data().print(f"{written['origin']} → {out}: reads the features of layers {layers}", soft_wrap=True)


def _layers(text: str | None) -> tuple[int, ...] | None:
    if text is None:
        return None
    numbers = text.split(",")
    if not all(number.strip().isdecimal() for number in numbers):
        raise UsageError(f"--feature-layers: expected layer numbers with commas between them, got {text!r}")
    return tuple(map(int, numbers))
