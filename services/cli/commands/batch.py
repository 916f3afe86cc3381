"""`kolm batch`: the requests of a file, answered into another."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.failures import exits
from services.cli.failures.exits import Failed, UsageError
from services.cli.options import options

if TYPE_CHECKING:
    from services.cli.jobs.batch.results import Results
    from services.cli.jobs.batch.work import Progress, Terms


def batch(
    requests: Annotated[
        Path, typer.Argument(metavar="REQUESTS", help="A request in each line, in OpenAI's batch format.")
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="FILE", help="A result for each line; one that is there goes on.")
    ],
    concurrency: Annotated[
        int, typer.Option("--concurrency", min=1, max=1024, help="Requests under way at once.")
    ] = 16,
    retries: Annotated[
        int,
        typer.Option("--retries", min=0, max=100, help="Further tries where the server is busy or away."),
    ] = 8,
    timeout: Annotated[float, typer.Option("--timeout", help="Give a request up after this many seconds.")] = 600.0,
    receipt_files: Annotated[
        bool, typer.Option("--receipt-files", help="Each receipt also as a file for `kolm replay`, with its content.")
    ] = False,
    generation: options.Generation = options.GENERATION,
    json: options.Json = False,
) -> None:
    """Answer the requests of a file, each with its receipts. Run again, it goes on where it was."""
    from services.cli.jobs.batch.lines import count_lines
    from services.cli.jobs.batch.results import Results
    from services.cli.jobs.batch.work import Terms
    from services.cli.terminal.output import answer, counted
    from services.cli.views.generation.batch import batch_json, batch_text

    if not timeout > 0:
        raise UsageError(f"--timeout: is {timeout:g}; expected a number of seconds above 0")
    lines, started = count_lines(requests), time.monotonic()
    if out.exists() and out.samefile(requests):
        raise UsageError("--out: is the file of the requests; name another")
    with Results(out) as results:
        before = len(results.done)
        terms = Terms(concurrency, retries, timeout, receipt_files)
        try:
            progress = asyncio.run(_work(generation, requests, results, terms, lines))
        except KeyboardInterrupt:
            typer.echo("interrupted; the same command goes on with what is left", err=True)
            raise typer.Exit(exits.INTERRUPTED) from None
    seconds = time.monotonic() - started
    answer(
        json,
        lambda: batch_json(lines, before, progress, seconds),
        lambda: batch_text(lines, before, progress, seconds),
    )
    if progress.failed:
        hint = "the same command asks again for those that found the server busy or away"
        raise Failed(f"{counted(progress.failed, 'line')} failed; {out} says why", hint)


async def _work(generation: str, requests: Path, results: Results, terms: Terms, lines: int) -> Progress:
    from services.cli.jobs.batch.work import work
    from services.cli.terminal.progress import answers
    from services.client import AsyncRuntime

    with answers(lines, len(results.done)) as show:
        async with AsyncRuntime.connect(generation) as runtime:
            return await work(
                runtime, requests, results, terms, lambda done: show(len(results.done) + done.lines, done.failed)
            )
