"""The `kolm` command in this process: its exit code, stdout and stderr."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from typer.main import get_command
from typer.testing import CliRunner

from services.cli.main import app

CLOSED = "127.0.0.1:1"
"""An address without a server."""
FREE = tuple(f"--{name}-port=0" for name in ("generation", "ledger", "auditor", "registry", "explorer", "http"))
"""Flags of `kolm up`."""
_WIDE = {"COLUMNS": "300", "TERM": "dumb"}


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def shown(self) -> str:
        """Both streams."""
        return self.out + self.err

    @property
    def document(self) -> Any:
        """Its output with --json."""
        return json.loads(self.out)


def command_tree(group: Any = None, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command below `group`, by default of `kolm`, with its words."""
    for name, command in (group or get_command(app)).commands.items():
        if hasattr(command, "commands"):
            yield from command_tree(command, (*words, name))
        else:
            yield (*words, name), command


def kolm(*words: object, environment: Mapping[str, object] | None = None, given: str | bytes | None = None) -> Ended:
    """`environment` is added to this process's own; `given` comes by standard input."""
    variables = _WIDE | {name: str(value) for name, value in (environment or {}).items()}
    result = CliRunner(env=variables).invoke(app, list(map(str, words)), input=given)
    return Ended(result.exit_code, result.stdout, result.stderr)
