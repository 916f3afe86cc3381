"""The prompt as the command line gives it: an argument, a file, or standard input."""

from __future__ import annotations

import sys
from pathlib import Path

from services.cli.exits import UsageError

MAX_PROMPT_BYTES = 4 * 1024 * 1024
"""The most that the generation service takes (`GenerateRequest.prompt`)."""


_NO_PROMPT = UsageError("expected a prompt: PROMPT, -f FILE or standard input", 'try: kolm generate "def add(a, b):"')


def read_prompt(argument: str | None, file: Path | None) -> str:
    """The prompt from exactly one of both; "-" is standard input, and so is neither where that is no terminal.

    Raises UsageError, which names the source.
    """
    if argument is not None and file is not None:
        raise UsageError("expected one prompt: either PROMPT or -f FILE")
    if argument is not None and argument != "-":
        return argument
    piped = argument is None and file is None
    if piped and (sys.stdin is None or sys.stdin.isatty()):
        raise _NO_PROMPT
    name, raw = _read(file)
    if piped and not raw:
        raise _NO_PROMPT
    if len(raw) > MAX_PROMPT_BYTES:
        raise UsageError(f"prompt: {name} has more than the {MAX_PROMPT_BYTES:,} bytes that can be sent")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"prompt: {name} is not UTF-8: byte 0x{raw[error.start]:02x} at offset {error.start}"
        ) from None
    if not text:
        raise UsageError(f"prompt: {name} is empty")
    return text


def _read(file: Path | None) -> tuple[str, bytes]:
    """A name for messages and the bytes, up to one more than may be sent, which shows that there are too many."""
    if file is None or str(file) == "-":
        return "standard input", sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    try:
        with file.open("rb") as opened:
            return str(file), opened.read(MAX_PROMPT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"prompt: cannot read {file}: {error.strerror}") from None
