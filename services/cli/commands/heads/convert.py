"""`kolm heads convert`: a head from the layouts of others to kolm's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli.options import options
from services.cli.values.named_files import expect_folder
from services.generation.target.folders.folder_kinds import HEAD


def convert(
    source: Annotated[Path, typer.Argument(help="A head as SafeAILab, SpecForge or speculators publish it.")],
    out: Annotated[Path, typer.Argument(help="The folder to write in kolm's layout.")],
    model: options.TrainedOn = options.MODEL,
    feature_layers: Annotated[
        str | None, typer.Option(metavar="N,N,N", help="Layers whose features it reads, where its config is wrong.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Write a head in kolm's layout, with every choice explicit."""
    from services.cli.values.parsing import numbers

    expect_folder("SOURCE", source, HEAD)
    layers = None if feature_layers is None else numbers("--feature-layers", feature_layers, int)

    from services.cli.jobs.heads import conversion
    from services.cli.terminal.output import answer
    from services.cli.views.heads.heads import converted_view

    written = conversion.convert(source, out, model, layers)
    answer(json, lambda: written, lambda: converted_view(written))
