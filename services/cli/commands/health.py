"""`kolm health`: which services answer, and what they say about themselves."""

from __future__ import annotations

import typer

from services.cli.failures import exits
from services.cli.options import options


def health(
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    auditor: options.Auditor = options.AUDITOR,
    registry: options.Registry = options.REGISTRY,
    json: options.Json = False,
) -> None:
    """Ask every service whether it serves. Exit code 5 if one does not, 3 if a numerics profile is unproven."""
    from services.cli.jobs.running.health import ask_all
    from services.cli.terminal.output import answer
    from services.cli.views.services.services import conditions_json, conditions_view

    conditions = ask_all(generation, ledger, auditor, registry)
    answer(json, lambda: conditions_json(conditions), lambda: conditions_view(conditions))
    if not all(each.serving for each in conditions):
        raise typer.Exit(exits.UNAVAILABLE)
    raise typer.Exit(exits.OK if all(each.proven for each in conditions) else exits.VERIFICATION_FAILED)
