"""Errors for the person who starts a service."""

from __future__ import annotations


def reason(error: Exception) -> str:
    """An error's message; of an OSError the file and the cause, without its number."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    return error.strerror if error.filename is None else f"{error.filename}: {error.strerror}"
