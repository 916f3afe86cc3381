"""`kolm doctor`: whether this machine keeps the contract for a model, and what a pass costs on it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from services.cli import exits, options


def doctor(
    model: options.Model = Path("smollm2"),
    threads: Annotated[int | None, typer.Option(min=1, help="Threads to compute with. Default: all CPUs.")] = None,
    json: options.Json = False,
) -> None:
    """Load a model, probe its numerics bit by bit, and time its passes. Exit code 3 if the probe fails."""
    from services.cli.jobs.diagnosis import diagnose
    from services.cli.output import data, print_json
    from services.cli.views.diagnosis import diagnosis_json, diagnosis_view

    diagnosis = diagnose(model, threads)
    if json:
        print_json(diagnosis_json(diagnosis))
    else:
        data().print(diagnosis_view(diagnosis))
    raise typer.Exit(exits.OK if diagnosis.profile.passed else exits.VERIFICATION_FAILED)
