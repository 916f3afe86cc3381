"""`kolm serve <service>`: one service in the foreground, with the flags of its own."""

from __future__ import annotations

import runpy
import sys

import typer

app = typer.Typer(no_args_is_help=True)

_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


@app.command("generation", context_settings=_PASS_THROUGH, add_help_option=False)
def generation(context: typer.Context) -> None:
    """The model: generates, signs receipts, replays for auditors."""
    _run("generation", context.args)


@app.command("ledger", context_settings=_PASS_THROUGH, add_help_option=False)
def ledger(context: typer.Context) -> None:
    """The append-only log of receipts, verdicts, halts and resumes."""
    _run("ledger", context.args)


@app.command("auditor", context_settings=_PASS_THROUGH, add_help_option=False)
def auditor(context: typer.Context) -> None:
    """Samples receipts, has them replayed, appends verdicts and halts."""
    _run("auditor", context.args)


@app.command("registry", context_settings=_PASS_THROUGH, add_help_option=False)
def registry(context: typer.Context) -> None:
    """Draft heads: manifests, blobs, and what publishers have signed about them."""
    _run("registry", context.args)


@app.command("witness", context_settings=_PASS_THROUGH, add_help_option=False)
def witness(context: typer.Context) -> None:
    """Cosigns the checkpoints of logs that only ever grew (HTTP, C2SP tlog-witness); run it away from the log."""
    _run("witness", context.args)


@app.command("explorer", context_settings=_PASS_THROUGH, add_help_option=False)
def explorer(context: typer.Context) -> None:
    """Read-only web pages over a ledger; a receipt's proof is checked in the browser."""
    _run("explorer", context.args)


def _run(service: str, flags: list[str]) -> None:
    """As `python -m services.<service>` would; the service exits with its own code."""
    sys.argv = [f"kolm serve {service}", *flags]
    runpy.run_module(f"services.{service}", run_name="__main__", alter_sys=True)
