"""`python -m services.ledger --data-dir DIR [--listen HOST:PORT]`: the composition root of the ledger service."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from kolm.ledger.v1.ledger_pb2_grpc import add_LedgerServiceServicer_to_server
from ledger.documents.key_entry import KeyEntry
from ledger.documents.signed_document import read_document
from ledger.durable_file import keep_durably, make_folder
from ledger.errors import GuardMissing, LedgerError, LogOfAnotherKey, RolledBack
from ledger.keys.note import VerifierKey
from ledger.keys.signer import Signer, open_signer
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.continuity import check_continuity
from ledger.log.reader import LedgerReader
from ledger.log.sequencer import Sequencer
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from ledger.tree.entry import Entry
from ledger.tree.tile import TileHashes
from services.ledger.external_signers import ExternalSigners
from services.ledger.ledger_metrics import LedgerMetrics
from services.ledger.retention_sweeper import RetentionSweeper
from services.ledger.servicer import SERVICE, LedgerServicer
from services.ledger.settings import LedgerSettings
from services.runtime.process import CannotStart, reason, run_service
from services.runtime.server import Mount, serve
from services.runtime.trusted_directory import TrustedDirectory

_SWITCH_SECONDS = 0.001
"""The longest time that the event loop may hold the interpreter. Each statement and each hash of a batch releases the
interpreter and has to get it back; at Python's 5 ms, a busy loop makes a batch wait 100 ms.
"""


async def main(settings: LedgerSettings) -> None:
    """Open, serve until a signal, close."""
    sys.setswitchinterval(_SWITCH_SECONDS)
    registry = CollectorRegistry()
    outside = ExternalSigners.of(settings)
    with opened_servicer(settings, registry, outside) as servicer, outside.collecting(servicer.reader, registry):
        sweeper = RetentionSweeper(
            servicer.reader, servicer.append_own, lambda: datetime.now(UTC), settings.retention_seconds
        )
        sweeping = asyncio.ensure_future(sweeper.run())
        mount = Mount(SERVICE, lambda server: add_LedgerServiceServicer_to_server(servicer, server))
        await serve(
            "ledger", [mount], settings, registry=registry, on_drain=servicer.close, healthy=servicer.takes_entries
        )
        sweeping.cancel()


@contextmanager
def opened_servicer(
    settings: LedgerSettings, registry: CollectorRegistry, outside: ExternalSigners | None = None
) -> Iterator[LedgerServicer]:
    """A servicer over the ledger of `settings`: recovered, with its key made at first start and published in a separate
    folder. Queued entries are written before the end of the block. Raises CannotStart.
    """
    try:
        key = open_signer(settings.log_key, "log", settings.key_passphrase_file, create=True)
        make_folder(settings.data_dir)
        settings.trusted_directory.mkdir(parents=True, exist_ok=True)
        key.publish(settings.public_directory)
        for file in (settings.vkey_file, settings.public_directory / "log.vkey"):
            keep_durably(file, f"{VerifierKey(settings.origin, key.public).to_text()}\n".encode(), mode=0o644)
        trusted = TrustedDirectory(settings.trusted_directory, retired=False, own=key).trusted()
    except (LedgerError, OSError) as error:
        raise CannotStart(f"cannot open the ledger in {settings.data_dir}: {reason(error)}") from error
    metrics = LedgerMetrics(registry)
    with ExitStack() as opened:
        try:
            store = SqlEntryStore.open(settings.database, settings.content_keys, new_keys=settings.new_content_keys)
            opened.enter_context(closing(store))
            guard = opened.enter_context(closing(SqlGuard.open(settings.guard)))
        except LedgerError as error:
            raise CannotStart(f"cannot open the ledger: {error}") from error
        sequencer = opened.enter_context(closing(_sequencer(settings, store, guard, key, trusted, metrics)))
        reader = LedgerReader(store, sequencer.board)
        metrics.watch(sequencer, store)
        checkpoints = None if outside is None else outside.checkpoints(reader)
        yield LedgerServicer(sequencer, reader, TileHashes(store), trusted, key, checkpoints)


def _refuse_replaced(store: SqlEntryStore, key: Signer) -> None:
    """Raises CannotStart for a key that an entry has replaced: verifiers would refuse its checkpoints."""
    for index, data in store.entries_of(("key",)):
        document = read_document(Entry.from_bytes(data).envelope)
        if isinstance(document, KeyEntry) and (document.role, document.replaces) == ("log", key.key_id):
            raise CannotStart(
                f"entry {index} has replaced the log's key {key.key_id} by {document.public_key.key_id}; name the "
                "new key with --key-file"
            )


def _sequencer(
    settings: LedgerSettings, store: SqlEntryStore, guard: SqlGuard, key: Signer, trusted: TrustedKeys,
    metrics: LedgerMetrics,
) -> Sequencer:  # fmt: skip
    try:
        _refuse_replaced(store, key)
        every_key = TrustedDirectory(settings.trusted_directory, own=key).trusted()
        check_continuity(store, guard, every_key, settings.origin, settings.witnessed, new_guard=settings.new_guard)
        return Sequencer(
            store, key, trusted, settings.origin, guard=guard, queue_size=settings.queue_size,
            batch_size=settings.batch_size, on_written=metrics.written, ever_trusted=every_key,
        )  # fmt: skip
    except (RolledBack, GuardMissing) as error:
        raise CannotStart(f"the ledger will not be served: {error}") from error
    except LogOfAnotherKey as error:
        raise CannotStart(
            f"the database is of a log with another key: {error}. Name the key of this database with --key-file (its "
            "log.vkey begins with the same letters), or a database of its own for this key"
        ) from error
    except LedgerError as error:
        raise CannotStart(f"the ledger in {settings.data_dir} does not hold what it signed: {error}") from error


if __name__ == "__main__":
    sys.exit(run_service(LedgerSettings, main))
