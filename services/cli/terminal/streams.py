"""Standard streams that a command can use, whatever it was started with."""

from __future__ import annotations

import io
import os
import sys


def make_usable() -> None:
    """A closed stream leads nowhere from here on, or else the next file or socket would have its number. What an
    encoding does not have is written as an escape.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115
        elif mode == "w" and isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_stdout() -> None:
    """Stdout goes nowhere from here on: the interpreter writes what is left of it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
