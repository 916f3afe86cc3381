"""Lines of a monitor: on stdout where nothing is wrong, findings on stderr; JSON where that was asked for."""

from __future__ import annotations

import sys
from typing import Any

from services.cli.failures.exits import CommandError
from services.cli.jobs.monitor.watching import Look
from services.cli.terminal.output import print_json
from services.cli.terminal.steering import printable


class LookReport:
    """Shows looks, each thing once. `goes_on` after a finding, because somebody else is told of it."""

    def __init__(self, place: str, *, as_json: bool, once: bool, goes_on: bool) -> None:
        self._place = place
        self._as_json = as_json
        self._once = once
        self._goes_on = goes_on
        self._size: int | None = None
        self.wrong = False
        """Whether the last look has found anything."""
        self.away: CommandError | None = None
        """Why the last look could not read the log."""

    def show(self, look: Look) -> bool:
        """Returns whether this was the last look."""
        if self._as_json:
            self._show_json(look)
        else:
            self._show_lines(look)
        self.wrong, self.away, self._size = bool(look.findings), look.away, look.size
        return self.wrong and not self._goes_on

    def _show_json(self, look: Look) -> None:
        if look.new or look.size != self._size or (look.away is None) != (self.away is None):
            print_json(look_json(look))
            sys.stdout.flush()

    def _show_lines(self, look: Look) -> None:
        for finding in look.new if self._goes_on else look.findings:
            _say(str(finding))
        if look.undelivered is not None:
            _say(f"--webhook did not take a finding and will be told again: {look.undelivered}")
        if look.away is not None and self.away is None and (look.findings or not self._once):
            _say(look.away.message)
        if look.away is None and not look.findings and look.size != self._size:
            print(printable(f"{self._place}: {look.size} entries checked, nothing is wrong"), flush=True)


def look_json(look: Look) -> dict[str, Any]:
    """All findings; `ok` where there is none and the log could be read."""
    return {
        "ok": not look.findings and look.away is None,
        "size": look.size,
        "away": None if look.away is None else look.away.message,
        "findings": [each.to_document() for each in look.findings],
    }


def _say(line: str) -> None:
    print(f"kolm: {printable(line)}", file=sys.stderr, flush=True)
