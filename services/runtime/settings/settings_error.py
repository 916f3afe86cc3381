"""Errors in settings, wherever they come from."""

from __future__ import annotations

from collections.abc import Iterable


class SettingsError(Exception):
    """Settings are wrong: one line for each problem, with the flag's name; a usage error (exit code 2)."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean listen?`, or nothing where no known name is close."""
    from difflib import get_close_matches

    close = get_close_matches(name, list(known), 1, 0.75)
    return f"; did you mean {close[0]}?" if close else ""
