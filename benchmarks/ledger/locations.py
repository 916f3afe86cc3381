"""Where the logs of a measurement are: folders on SQLite, databases of one cluster on PostgreSQL."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg

from benchmarks.ledger.service import LedgerLocation
from tests.postgres import PostgresMissing, running_cluster, url_of

STORES = ("sqlite", "postgresql")


@dataclass(frozen=True, slots=True)
class LedgerLocations:
    """Logs by name, each in a folder of its own; with a cluster, in a database of it."""

    folder: Path
    cluster: Path | None = None
    keep: Path | None = None

    def location(self, name: str) -> LedgerLocation:
        """The log of that name, empty where it is new."""
        folder = self.folder / name
        if self.cluster is None:
            return LedgerLocation(folder)
        if not folder.exists():
            with psycopg.connect(f"host={self.cluster} user=kolm dbname=postgres", autocommit=True) as connection:
                connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return LedgerLocation(folder, url_of(self.cluster, name))

    def kept(self, name: str) -> LedgerLocation:
        """The same, for a log that takes long to fill: out of `keep`, where that is given."""
        return self.location(name) if self.keep is None else LedgerLocation(self.keep / name)


@contextmanager
def opened(store: str, keep: Path | None) -> Iterator[LedgerLocations]:
    """The locations of one of STORES; gone at the end, except those in the folder `keep` (SQLite)."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kolm-benchmark-")))
        if store == "sqlite":
            yield LedgerLocations(folder, keep=keep)
            return
        try:
            cluster = stack.enter_context(running_cluster(durable=True))
        except PostgresMissing as error:
            raise SystemExit(f"{error}; or leave it out: --only sqlite") from None
        yield LedgerLocations(folder, cluster)
