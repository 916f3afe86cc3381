"""How every command ends: errors become readable lines on stderr and an exit code."""

from __future__ import annotations

import sys
from typing import Any

import typer
from typer.core import TyperGroup

from services.cli import exits


class KolmGroup(TyperGroup):
    """The outermost group. Imports what explains an error only once there is one."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(exits.INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output has closed it
            _discard_stdout()
            raise typer.Exit(exits.OK) from None
        except Exception as error:
            from services.cli.failure import explain

            raise typer.Exit(explain(error)) from error


def _discard_stdout() -> None:
    """Stdout goes nowhere from here on, for the interpreter flushes it again at exit."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
