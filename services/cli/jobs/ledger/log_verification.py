"""The entries of a log, from a server or from its database, run through offline verification."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime

from ledger.audit.log_verification import Report, verify_log
from ledger.audit.obligation_fold import ObligationFold
from ledger.documents.signed_document import read_document
from ledger.errors import ChainError, LedgerError
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.store import EntryStore
from ledger.sql.store import SqlEntryStore
from ledger.tree.entry import Entry
from ledger.tree.merkle import leaf_hash
from services.cli.failures.exits import VerificationFailed
from services.cli.terminal.progress import verifying_entries
from services.cli.values.parsing import database_place
from services.client import LedgerClient
from services.client.errors import DataLoss

_PAGE = 512

Seen = Callable[[bytes], None]


def check_log(
    server: str, database: str | None, trusted: TrustedKeys, origin: str | None = None, seen: Seen | None = None
) -> Report:
    """Verify the log in a database (file or URL; its ledger may run), or without one the log that a server shows.

    The server is not trusted. `seen` gets every entry just before it is checked, so its results hold only if the report
    is good. Raises KolmError, NotFound, StoreError.
    """
    if database is None:
        with LedgerClient.connect(server) as ledger:
            return _check(_streamed(ledger), ledger.checkpoint().note, trusted, origin, seen)
    with closing(SqlEntryStore.open_for_reading(database_place(database))) as store:
        return _check(_stored(store), store.latest_checkpoint(), trusted, origin, seen)


def _check(
    entries: Iterator[bytes], checkpoint: bytes | None, trusted: TrustedKeys, origin: str | None, seen: Seen | None
) -> Report:
    with verifying_entries() as advance:

        def shown() -> Iterator[bytes]:
            for entry in entries:
                advance(1)
                if seen is not None:
                    seen(entry)
                yield entry

        return verify_log(shown(), checkpoint, trusted, origin, datetime.now(UTC))


def _streamed(ledger: LedgerClient) -> Iterator[bytes]:
    """An entry that the server itself cannot read is a fault of the log, not of the connection."""
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


def check_obligations(
    server: str, database: str | None, trusted: TrustedKeys, origin: str | None = None
) -> tuple[Report, ObligationFold]:
    """`check_log`, and the obligations of auditors, recomputed from the same entries. Raises VerificationFailed for a
    log that does not verify.
    """
    book = ObligationFold()

    def seen(data: bytes) -> None:
        try:
            envelope = Entry.from_bytes(data).envelope
            book.observe(leaf_hash(data), envelope, read_document(envelope))
        except LedgerError:
            return  # the verification, which follows, reports it

    report = check_log(server, database, trusted, origin, seen=seen)
    if not report.ok:
        raise VerificationFailed(f"the log does not verify: {report.problem}", "`kolm ledger verify` says more")
    return report, book
