"""The bytes of a log, from a server or straight from its database, run through offline verification."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

from rich.progress import Progress, TextColumn

from ledger.audit.log_verification import Report, verify_log
from ledger.errors import ChainError
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.store import EntryStore
from ledger.sql.store import SqlEntryStore
from services.cli.output import talk
from services.client import LedgerClient
from services.client.errors import DataLoss

_PAGE = 512


Seen = Callable[[bytes], None]


def _ignore(entry: bytes) -> None:
    """Nobody else wants to see the entries."""


def from_server(target: str, trusted: TrustedKeys, origin: str | None, seen: Seen = _ignore) -> Report:
    """Verify what the ledger service shows; the server's word counts for nothing. Raises KolmError.

    `seen` gets every entry just before it is checked: what it makes of them holds only if the report is good.
    """
    with LedgerClient.connect(target) as ledger:
        checkpoint = ledger.checkpoint()
        return _verify(_streamed(ledger), checkpoint.note, checkpoint.tree_size, trusted, origin, seen)


def from_database(place: Path | str, trusted: TrustedKeys, origin: str | None, seen: Seen = _ignore) -> Report:
    """Verify a database (file or URL), beside a running ledger too; `seen` as above. Raises NotFound, StoreError."""
    store = SqlEntryStore.open_for_reading(place)
    try:
        return _verify(_stored(store), store.latest_checkpoint(), None, trusted, origin, seen)
    finally:
        store.close()


def _verify(
    entries: Iterator[bytes],
    checkpoint: bytes | None,
    size: int | None,
    trusted: TrustedKeys,
    origin: str | None,
    seen: Seen,
) -> Report:
    columns = (TextColumn("verifying entry {task.completed:.0f}"),)
    with Progress(*columns, console=talk(), transient=True, disable=not talk().is_terminal) as progress:
        task = progress.add_task("", total=size)
        return verify_log(_shown(entries, seen, lambda: progress.advance(task)), checkpoint, trusted, origin)


def _shown(entries: Iterator[bytes], seen: Seen, count: Callable[[], None]) -> Iterator[bytes]:
    for entry in entries:
        count()
        seen(entry)
        yield entry


def _streamed(ledger: LedgerClient) -> Iterator[bytes]:
    """An entry that the server itself can no longer read is the log's fault, not the connection's."""
    position = 0
    with ledger.watch(0) as entries:
        try:
            for entry in entries:
                yield entry.entry
                position += 1
        except DataLoss as error:
            raise ChainError(position, f"the ledger cannot read it: {error.message}") from error


def _stored(store: EntryStore) -> Iterator[bytes]:
    position = 0
    while page := store.entries(position, _PAGE):
        yield from page
        position += len(page)
