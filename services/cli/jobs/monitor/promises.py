"""The promises that a monitor holds a log to: files, and folders of files that may change while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ledger.monitor.judgement import Promised
from services.cli.exits import UsageError

_MOST_BYTES = 64 * 1024


def read_promises(places: Iterable[Path]) -> tuple[Promised, ...]:
    """The promises as they are by now; in a folder, its `*.json`. Raises UsageError for one that cannot be read.

    An empty one is still being written.
    """
    return tuple(promise for path in _files(places) if (promise := _promise(path)).data)


def _files(places: Iterable[Path]) -> Iterator[Path]:
    for place in places:
        if place.is_dir():
            yield from sorted(place.glob("*.json"))
        else:
            yield place


def _promise(path: Path) -> Promised:
    try:
        with path.open("rb") as file:
            return Promised(str(path), file.read(_MOST_BYTES))
    except OSError as error:
        raise UsageError(f"--promise: cannot read {path}: {error.strerror}") from None
