"""`python -m services.registry --data-dir DIR [--ledger HOST:PORT]`: the composition root of the registry service."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry
from sqlalchemy.exc import SQLAlchemyError

from kolm.registry.v1.registry_pb2_grpc import add_RegistryServiceServicer_to_server
from ledger.errors import LedgerError
from services.client.ledger.ledger import LedgerClient, key_entries
from services.registry.blobs import BlobStore
from services.registry.head_catalogue import Catalogue
from services.registry.publishing import LedgerLog, Publishing
from services.registry.servicer import SERVICE, RegistryServicer
from services.registry.settings import RegistrySettings
from services.registry.uploads import Uploads
from services.runtime.errors import KolmError
from services.runtime.process import CannotStart, Outage, reason, return_large_blocks, run_service
from services.runtime.server import Mount, serve
from services.runtime.trusted_directory import TrustedDirectory

_log = logging.getLogger(__name__)

_THREADS = 32
_FINISHING_SECONDS = 10.0
_FORGETTING_SECONDS = 3600.0


async def main(settings: RegistrySettings) -> None:
    """Open, serve until a signal, close."""
    return_large_blocks()
    registry = CollectorRegistry()
    # Threads wait for the bucket most of the time; with one for each core, other calls would wait too.
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(_THREADS, "registry"))
    with opened_servicer(settings) as opened:
        mount = Mount(SERVICE, lambda server: add_RegistryServiceServicer_to_server(opened.servicer, server))
        keeping = asyncio.gather(
            keep_finishing(opened.publishing), keep_forgetting(opened.uploads, settings.upload_days)
        )
        try:
            await serve("registry", [mount], settings, registry=registry)
        finally:
            keeping.cancel()
            with suppress(asyncio.CancelledError):
                await keeping


@dataclass(frozen=True, slots=True)
class Opened:
    """A servicer, and the parts of it that have work of their own in the background."""

    servicer: RegistryServicer
    publishing: Publishing
    uploads: Uploads


@contextmanager
def opened_servicer(settings: RegistrySettings) -> Iterator[Opened]:
    """A servicer over the catalogue and the blobs of `settings`. Raises CannotStart."""
    try:
        blobs = BlobStore.open(settings.blobs_location)
        uploads = Uploads(settings.uploads, settings.max_blob_bytes, settings.disk_reserve)
        settings.trusted_directory.mkdir(parents=True, exist_ok=True)
        trusted = TrustedDirectory(
            settings.trusted_directory, key_entries=partial(key_entries, settings.ledger)
        ).trusted()
        catalogue = Catalogue.open(settings.database_url)
    except (LedgerError, OSError, ValueError, SQLAlchemyError) as error:
        raise CannotStart(f"cannot open the registry in {settings.data_dir}: {reason(error)}") from error
    with closing(catalogue), LedgerClient.connect(settings.ledger) as ledger:
        publishing = Publishing(catalogue, blobs, LedgerLog(ledger, trusted), trusted)
        yield Opened(RegistryServicer(publishing, catalogue, blobs, uploads), publishing, uploads)


async def keep_finishing(publishing: Publishing) -> None:
    """Append unconfirmed proposals periodically, until cancelled."""
    while True:
        with suppress(KolmError):  # logged already
            await asyncio.to_thread(publishing.finish_proposals)
        await asyncio.sleep(_FINISHING_SECONDS)


async def keep_forgetting(uploads: Uploads, days: float) -> None:
    """Remove abandoned uploads periodically, until cancelled."""
    outage = Outage(_log, "look through the uploads", OSError)
    while True:
        with outage:
            await asyncio.to_thread(uploads.forget_older_than, days)
        await asyncio.sleep(_FORGETTING_SECONDS)


if __name__ == "__main__":
    sys.exit(run_service(RegistrySettings, main))
