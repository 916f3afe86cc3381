"""`kolm serve <service>`: one service in the foreground, with the flags of its own."""

from __future__ import annotations

import runpy
import sys
from importlib.util import find_spec

import typer

from services.cli.group import GroupCommand

_SERVICES = {
    "generation": "The model: generates, signs receipts, replays for auditors.",
    "ledger": "The append-only log of receipts, verdicts, halts and resumes.",
    "auditor": "Samples receipts, has them replayed, appends verdicts and halts.",
    "registry": "Draft heads: manifests, blobs, and what publishers have signed about them.",
    "witness": "Cosigns checkpoints of logs that only ever grew (HTTP, C2SP tlog-witness); run it away from the log.",
    "http": "OpenAI's API over a generation server: chats and completions, streamed or whole.",
    "explorer": "Read-only web pages over a ledger; a receipt's proof is checked in the browser.",
}
_PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def group() -> typer.Typer:
    """One command for each service; typer leaves all flags to the service, --help too."""
    made = typer.Typer(
        cls=GroupCommand,
        no_args_is_help=True,
        add_completion=False,
        help="Run one service in the foreground, with all of its own flags.",
    )
    for service, summary in _SERVICES.items():
        made.command(service, help=summary, context_settings=_PASS_THROUGH, add_help_option=False)(_serve)
    return made


def _serve(context: typer.Context) -> None:
    """As `python -m services.<service>` would; the service exits with its own code."""
    service = context.info_name
    if find_spec(f"services.{service}.__main__") is None:  # kolm-verify has folders of services, without the services
        raise ModuleNotFoundError(f"No module named services.{service}.__main__", name=f"services.{service}.__main__")
    sys.argv = [f"kolm serve {service}", *context.args]
    runpy.run_module(f"services.{service}", run_name="__main__", alter_sys=True)
