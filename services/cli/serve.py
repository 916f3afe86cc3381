"""`kolm serve <service>`: one service in the foreground, with the flags of its own."""

from __future__ import annotations

import enum
import runpy
import sys
from typing import Annotated

import typer

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


class Service(enum.StrEnum):
    """What can be served."""

    GENERATION = "generation"
    LEDGER = "ledger"
    AUDITOR = "auditor"


def serve(
    context: typer.Context,
    service: Annotated[Service, typer.Argument(help="What to serve; `kolm serve SERVICE --help` lists its flags.")],
) -> None:
    """Run one service in the foreground; every flag after its name is the service's own."""
    sys.argv = [f"kolm serve {service}", *context.args]
    runpy.run_module(f"services.{service}", run_name="__main__", alter_sys=True)
