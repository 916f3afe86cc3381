"""A ledger service in a process of its own, and a way to fill its log faster than over the wire."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

from benchmarks.ledger.receipts import signed_receipts
from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.keys.ed25519 import SigningKey
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.admission import Admitted
from ledger.log.recovery import recover
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from services.runtime.access.credentials import Credential, write_principals

ORIGIN = "benchmark.local/ledger"

_START_SECONDS = 120.0
_FILL = 1000  # entries of one transaction while filling


@dataclass(frozen=True, slots=True)
class LedgerLocation:
    """The folder of one ledger, and the URL of its database where that is not a file in the folder."""

    folder: Path
    url: str | None = None

    @property
    def database(self) -> Path | str:
        return self.url or self.folder / "ledger.sqlite3"

    def key(self, role: str) -> SigningKey:
        """The key of a role, published to the service."""
        key = SigningKey.load_or_create(self.folder / "keys" / f"{role}.pem", role)
        (self.folder / "trusted").mkdir(parents=True, exist_ok=True)
        key.publish(self.folder / "trusted")
        return key

    def trusted(self) -> TrustedKeys:
        return TrustedKeys.of(self.key("receipts"), self.key("log"))


@dataclass(frozen=True, slots=True)
class Service:
    """A running one."""

    address: str
    process: int

    def processor_seconds(self) -> float:
        """Processor seconds so far, in user and system mode."""
        fields = Path(f"/proc/{self.process}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def running(location: LedgerLocation) -> Iterator[Service]:
    """The ledger service of a location, stopped at the end."""
    location.key("receipts")
    principals = location.folder / "principals.json"
    local = Credential(name="load", tenant=None, roles=("append", "read"), anybody=True, created_at=datetime.now(UTC))
    write_principals(principals, [local])
    ready = location.folder / "ready"
    ready.unlink(missing_ok=True)
    command = [
        sys.executable, "-m", "services.ledger", "--data-dir", str(location.folder), "--listen", "127.0.0.1:0",
        "--origin", ORIGIN, "--ready-file", str(ready), "--principals", str(principals), "--log-level", "warning",
    ]  # fmt: skip
    environment = {**os.environ, **({"KOLM_LEDGER_DATABASE_URL": location.url} if location.url else {})}
    process = subprocess.Popen(command, env=environment)
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not ready.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the ledger service did not start")
            time.sleep(0.05)
        yield Service(ready.read_text().strip(), process.pid)
    finally:
        process.terminate()
        process.wait(timeout=60)


def fill(location: LedgerLocation, size: int) -> float:
    """Bring a stopped ledger to `size` entries, signed and with content; returns the seconds that writing took."""
    receipts, log, seconds = signed_receipts(location.key("receipts")), location.key("log"), 0.0
    with (
        closing(SqlEntryStore.open(location.database, location.folder / "content-keys/keys.sqlite3")) as store,
        closing(SqlGuard.open(location.folder / "guard.sqlite3")) as guard,
    ):
        writer = recover(store, log, location.trusted(), ORIGIN, guard)
        while (missing := size - writer.head.size) > 0:
            batch = [_admitted(*made) for made in islice(receipts, min(missing, _FILL))]
            started = time.perf_counter()
            writer.write(batch)
            seconds += time.perf_counter() - started
    return seconds


def _admitted(document: Receipt, data: bytes, content: Content) -> Admitted:
    return Admitted(data, hashlib.sha256(data).digest(), document, content)
