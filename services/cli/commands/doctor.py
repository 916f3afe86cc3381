"""`kolm doctor`: whether this machine keeps the contract for a model, and what a pass costs on it."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.failures import exits
from services.cli.options import options


def _compile(asked: bool) -> None:
    """Before any other option is looked at: no model has to be there."""
    if not asked:
        return
    from services.cli.jobs.compiling import compile_here

    print(f"all kernels are compiled: {compile_here()}")
    raise typer.Exit


def doctor(
    model: options.Model = options.MODEL,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads to compute with. Default: all CPUs.")] = None,
    compile: Annotated[
        bool,
        typer.Option(
            "--compile",
            is_eager=True,
            callback=_compile,
            help="Only compile every kernel ahead, for any model; the first start then need not.",
        ),
    ] = False,
    json: options.Json = False,
) -> None:
    """Load a model, probe its numerics bit by bit, and time its passes. Exit code 3 if the probe fails."""
    from services.cli.jobs.diagnosis import diagnose
    from services.cli.terminal.output import answer
    from services.cli.views.services.diagnosis import diagnosis_json, diagnosis_view

    found = diagnose(model, threads)
    answer(json, lambda: diagnosis_json(found), lambda: diagnosis_view(found))
    raise typer.Exit(exits.OK if found.profile.passed else exits.VERIFICATION_FAILED)
