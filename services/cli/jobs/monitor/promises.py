"""The promises that a monitor holds a log to: files, and folders of files that may change while it runs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from ledger.monitor.judgement import Promised
from services.cli.failures.exits import UsageError

_MOST_BYTES = 64 * 1024


def read_promises(places: Iterable[Path]) -> tuple[Promised, ...]:
    """The promises as they are by now; in a folder, its `*.json`. Raises UsageError for one that cannot be read.

    An empty one in a folder is still being written.
    """
    return tuple(_promises(places))


def _promises(places: Iterable[Path]) -> Iterator[Promised]:
    for place in places:
        if place.is_dir():
            yield from (promise for path in sorted(place.glob("*.json")) if (promise := _promise(path)).data)
        else:
            yield _promise(place)


def _promise(path: Path) -> Promised:
    try:
        with path.open("rb") as file:
            return Promised(str(path), file.read(_MOST_BYTES))
    except OSError as error:
        raise UsageError(f"--promise: cannot read {path}: {error.strerror}") from None
