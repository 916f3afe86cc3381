"""Where a database is, as a person writes it."""

from __future__ import annotations

from pathlib import Path


def database_place(text: str) -> Path | str:
    """A file, or the URL of a database."""
    return text if "://" in text else Path(text)
