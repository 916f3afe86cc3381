"""How `kolm status --watch` shows one look after the other: a screen, lines in a pipe, or JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict

from rich.live import Live

from services.cli.jobs.running.rates import Rates
from services.cli.jobs.running.stack import Stack
from services.cli.terminal.output import data
from services.cli.views.services.stack import stack_json, top_line, top_view

Show = Callable[[Stack, Rates], None]


@contextmanager
def shown(*, as_json: bool) -> Iterator[Show]:
    """The function to call with each look. A terminal gets a screen of its own, which is left as it was."""
    if as_json:
        yield lambda stack, done: print(json.dumps(stack_json(stack) | {"rates": asdict(done)}), flush=True)
    elif not sys.stdout.isatty():
        yield lambda stack, done: print(top_line(stack, done), flush=True)
    else:
        with Live(console=data(), screen=True, auto_refresh=False) as live:
            yield lambda stack, done: live.update(top_view(stack, done), refresh=True)
