"""Reads a promise that `kolm generate --promise` kept."""

from __future__ import annotations

from pathlib import Path

from ledger.documents.promise import read_promise
from ledger.errors import FormatError
from services.cli.failures.exits import UsageError


def read_promise_file(path: Path) -> bytes:
    """The signed bytes of a promise in form; nobody has checked its signature. Raises UsageError."""
    try:
        data = path.read_bytes()
        read_promise(data)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None
    except FormatError as error:
        raise UsageError(f"{path} is no promise: {error}", "`kolm generate --promise FILE` keeps one") from None
    return data
