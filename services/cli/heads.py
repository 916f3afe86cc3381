"""`kolm heads`: draft heads, from a folder to the registry and back; trained, measured, withdrawn."""

from __future__ import annotations

import typer

app = typer.Typer(no_args_is_help=True)
