"""What a training says where there is no terminal: a line now and then, from the first answer on."""

from __future__ import annotations

import io
from itertools import count

from rich.console import Console
from rich.progress import Progress

from services.cli.jobs.heads.training_reporter import TerminalReporter


def test_answers_are_counted_in_a_line_every_few_seconds() -> None:
    written = io.StringIO()
    seconds = count(step=2.0)
    reporter = TerminalReporter(Progress(console=Console(file=written), disable=True), lambda: next(seconds))
    for done in range(1, 41):
        reporter.answered("chat", done, 40)
    lines = written.getvalue().splitlines()
    assert lines[0] == "answers chat 2%  1 of 40"
    assert 3 < len(lines) < 20
