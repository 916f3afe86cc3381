"""`kolm doctor`: whether this machine keeps the contract for a model, and what a pass costs on it."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli import exits, options


def doctor(
    model: options.Model = options.MODEL,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads to compute with. Default: all CPUs.")] = None,
    json: options.Json = False,
) -> None:
    """Load a model, probe its numerics bit by bit, and time its passes. Exit code 3 if the probe fails."""
    from services.cli.jobs.diagnosis import diagnose
    from services.cli.output import answer
    from services.cli.views.diagnosis import diagnosis_json, diagnosis_view

    found = diagnose(model, threads)
    answer(json, lambda: diagnosis_json(found), lambda: diagnosis_view(found))
    raise typer.Exit(exits.OK if found.profile.passed else exits.VERIFICATION_FAILED)
