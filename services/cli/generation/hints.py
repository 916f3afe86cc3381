"""Hints about methods that a server lacks, each given once in a terminal's session."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

from ledger.durable_file import write_durably
from services.cli.frame.failures import explained

_LACKING = frozenset(("no_head", "no_datastore", "no_draft_model"))
_MOST = 64  # sessions that are kept


def hint(reason: str | None) -> str | None:
    """The line about a fallback, as from `explained`; None without one, and if this session has had it."""
    line = explained(reason)
    if line is None or reason not in _LACKING:
        return line
    return line if _record(reason) else None


def _record(reason: str) -> bool:
    """Whether this session has not had the hint yet, which is then recorded; True if it cannot be recorded."""
    try:
        session, file = str(os.getsid(0)), _file()
    except (OSError, RuntimeError, AttributeError):
        return True
    given = _given(file)
    before = given.pop(session, [])
    if reason in before:
        return False
    kept = dict([*given.items(), (session, [*before, reason])][-_MOST:])
    with suppress(OSError):
        write_durably(file, json.dumps(kept).encode())
    return True


def _file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "kolm" / "hints.json"


def _given(file: Path) -> dict[str, list[str]]:
    try:
        found = json.loads(file.read_bytes())
        return {str(session): list(reasons) for session, reasons in found.items()}
    except (OSError, ValueError, AttributeError, TypeError):
        return {}
