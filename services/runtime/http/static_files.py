"""Files that browsers load: a server's own, and those by which pages check receipts (`browser/`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from starlette.staticfiles import StaticFiles

_SHARED = "browser"


def static_files(own: Path) -> StaticFiles:
    """In one folder, as the imports of scripts have it."""
    return StaticFiles(directory=own, packages=[("services.runtime.http", _SHARED)])


def file_names(own: Path) -> Iterator[str]:
    """Of what `static_files` serves."""
    for folder in (own, Path(__file__).parent / _SHARED):
        yield from (file.name for file in folder.iterdir())
