"""`kolm status` and `kolm top`: the whole stack on one screen, once or live."""

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
    json: options.Json = False,
) -> None:
    """Show servers, model, halts, receipts on their way, log and audit. Exit code 5 if a server does not serve or
    does not tell, 3 if a promise does not hold: profile unproven, halts open, deviations, overdue verdicts, refused
    receipts, a fork.
    """
    from services.cli.jobs.running.stack import read_stack
    from services.cli.terminal.output import answer
    from services.cli.views.services.stack import stack_json, stack_view

    stack = read_stack({"generation": generation, "ledger": ledger, "auditor": auditor, "registry": registry})
    answer(json, lambda: stack_json(stack), lambda: stack_view(stack))
    if not stack.complete:
        raise typer.Exit(exits.UNAVAILABLE)
    raise typer.Exit(exits.VERIFICATION_FAILED if stack.broken else exits.OK)


def top(
    generation: options.Generation = options.GENERATION,
    ledger: options.Ledger = options.LEDGER,
    auditor: options.Auditor = options.AUDITOR,
    registry: options.Registry = options.REGISTRY,
    every: Annotated[float, typer.Option(min=0.1, max=3600.0, help="Seconds between two looks.")] = 2.0,
    count: Annotated[int | None, typer.Option(min=1, help="Looks before it ends. Default: until Ctrl-C.")] = None,
    json: options.Json = False,
) -> None:
    """Show, live, what the stack does a second: tokens, latencies, drafts, receipts, verdicts. In a pipe a line each
    look, with --json an object.
    """
    from services.cli.jobs.running.rates import rates
    from services.cli.jobs.running.watching import looks
    from services.cli.views.services.stack_watch import shown

    addresses = {"generation": generation, "ledger": ledger, "auditor": auditor, "registry": registry}
    with shown(as_json=json) as show:
        for before, after in looks(addresses, every, count):
            show(after, rates(before, after))
