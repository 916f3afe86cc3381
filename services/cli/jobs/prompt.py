"""Texts of a request as the command line gives them: the prompt, an argument, a file or standard input, and the output
that is expected.
"""

from __future__ import annotations

import sys
from pathlib import Path

from services.cli.failures.exits import UsageError

MAX_PROMPT_BYTES = 4 * 1024 * 1024
"""The most that the generation service takes (`GenerateRequest.prompt`, `.prediction`)."""


_NO_PROMPT = UsageError(
    "expected a prompt: PROMPT, -f FILE or standard input", 'try: kolm generate --chat "What is gravity?"'
)


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
    name, raw = _read("-f", file)
    if piped and not raw:
        raise _NO_PROMPT
    if not raw:
        raise UsageError(f"prompt: {name} is empty")
    return _decoded("-f" if file else "prompt", name, raw)


def read_prediction(file: Path | None) -> str:
    """The output that is expected, none where no file is named. Raises UsageError."""
    return "" if file is None else _decoded("--prediction", *_read("--prediction", file))


def _decoded(flag: str, name: str, raw: bytes) -> str:
    if len(raw) > MAX_PROMPT_BYTES:
        raise UsageError(f"{flag}: {name} has more than the {MAX_PROMPT_BYTES:,} bytes that can be sent")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        at = f"byte 0x{raw[error.start]:02x} at offset {error.start}"
        raise UsageError(f"{flag}: {name} is not UTF-8: {at}") from None


def _read(flag: str, file: Path | None) -> tuple[str, bytes]:
    """A name for messages and the bytes, up to one more than may be sent, which shows that there are too many."""
    if file is None or str(file) == "-":
        return "standard input", sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    try:
        with file.open("rb") as opened:
            return str(file), opened.read(MAX_PROMPT_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{flag}: cannot read {file}: {error.strerror}") from None
