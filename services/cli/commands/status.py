"""`kolm status`: the whole stack on one screen, once or live."""

from __future__ import annotations

from typing import Annotated

import typer

from services.cli.failures import exits
from services.cli.options import options


def status(
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    auditor: options.Auditor = options.AUDITOR,
    registry: options.Registry = options.REGISTRY,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Judge only whether every server serves (else 5) and the numerics profile is proven (else 3).",
        ),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option("--watch", help="Live: what the stack does a second. In a pipe a line each time, or an object."),
    ] = False,
    every: Annotated[float, typer.Option(min=0.1, max=3600.0, help="Seconds between two lines of --watch.")] = 2.0,
    count: Annotated[
        int | None, typer.Option(min=1, help="Lines of --watch before it ends. Default: until Ctrl-C.")
    ] = None,
    json: options.Json = False,
) -> None:
    """Show servers, model, halts, receipts on their way, log and audit. Exit code 5 if a server does not serve or
    does not tell, 3 if a promise does not hold: profile unproven, halts open, deviations, overdue verdicts, refused
    receipts, a fork.
    """
    if watch and check:
        raise exits.UsageError("--watch: goes on and judges nothing; use it without --check")
    if count is not None and not watch:
        raise exits.UsageError("--count: counts the lines of --watch, which is not given")

    addresses = {"generation": generation, "ledger": ledger, "auditor": auditor, "registry": registry}
    if watch:
        return _watch(addresses, every, count, json)

    from services.cli.jobs.running.stack import read_stack
    from services.cli.terminal.output import answer
    from services.cli.views.services.stack import stack_json, stack_view

    stack = read_stack(addresses)
    answer(json, lambda: stack_json(stack), lambda: stack_view(stack))
    if not (stack.answering if check else stack.complete):
        raise typer.Exit(exits.UNAVAILABLE)
    raise typer.Exit(exits.VERIFICATION_FAILED if (stack.unproven if check else stack.broken) else exits.OK)


def _watch(addresses: dict[str, str], every: float, count: int | None, json: bool) -> None:
    from services.cli.jobs.running.rates import rates
    from services.cli.jobs.running.watching import looks
    from services.cli.views.services.stack_watch import shown

    with shown(as_json=json) as show:
        for before, after in looks(addresses, every, count):
            show(after, rates(before, after))
