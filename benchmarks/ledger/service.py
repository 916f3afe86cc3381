"""A ledger service in a process of its own, the store of its log, and a fast way to fill the log with receipts."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path

import psycopg

from benchmarks.machine import Service, serving
from ledger.documents.content import Content
from ledger.documents.receipt import OutputPart, PromptPart, Receipt, Sampling, SpecDecode
from ledger.documents.signed_document import payload_type
from ledger.encoding.canonical import canonical
from ledger.encoding.commitment import OUTPUT_DOMAIN, PROMPT_DOMAIN, commit
from ledger.encoding.document import Seed
from ledger.encoding.stream_digest import StreamDigest
from ledger.encoding.text_forms import cid, new_receipt_id, timestamp
from ledger.keys.ed25519 import SigningKey
from ledger.keys.envelope import sign
from ledger.keys.trusted_keys import TrustedKeys
from ledger.log.admission import Admitted
from ledger.log.content_seal import packed
from ledger.log.recovery import recover
from ledger.sql.guard import SqlGuard
from ledger.sql.store import SqlEntryStore
from services.runtime.credentials import Credential, write_principals
from tests.postgres import PostgresMissing, running_cluster, url_of

PROMPT_TOKENS, OUTPUT_TOKENS = 212, 128

ORIGIN = "benchmark.local/ledger"
_FILL = 1000  # entries of one transaction while filling
STORES = ("sqlite", "postgresql")


def signed_receipts(key: SigningKey) -> Iterator[tuple[Receipt, bytes, Content]]:
    """Ever new receipts with their envelopes, and the content that they commit to."""
    prompt, output = tuple(range(PROMPT_TOKENS)), tuple(range(OUTPUT_TOKENS))
    stream = StreamDigest().hexdigest()
    number = 0
    while True:
        content = Content(os.urandom(32), prompt, os.urandom(32), output)
        receipt = _receipt(number, content, stream)
        # As `sign_document` does it, without reading the document back: a million of them are made.
        yield receipt, sign(canonical(receipt.to_document()), payload_type("receipt"), key).to_bytes(), content
        number += 1


def _receipt(number: int, content: Content, stream: str) -> Receipt:
    now = datetime.now(UTC)
    return Receipt(
        receipt_id=new_receipt_id(now, os.urandom(10)),
        issued_at=timestamp(now),
        tenant=f"tenant-{number % 7}",
        request_id=os.urandom(16).hex(),
        base_cid=cid(b"base"),
        tokenizer_cid=cid(b"tokenizer"),
        profile_cid=cid(b"profile"),
        halt_epoch=0,
        sampling=Sampling(temperature=0.7, seed=Seed(number)),
        prompt=PromptPart(PROMPT_TOKENS, commit(PROMPT_DOMAIN, content.prompt_salt, content.prompt_token_ids)),
        output=OutputPart(
            tokens=OUTPUT_TOKENS,
            commitment=commit(OUTPUT_DOMAIN, content.output_salt, content.output_token_ids),
            finish_reason="length",
            stream_digest=stream,
            min_margin=0.03125,
        ),
        spec_decode=SpecDecode(
            method="lookahead",
            requested_method="auto",
            tokens_proposed=120,
            tokens_accepted=90,
            target_passes=38,
            acceptance_rate=0.75,
            mean_acceptance_length=OUTPUT_TOKENS / 38,
        ),
    )


@dataclass(frozen=True, slots=True)
class LedgerLocation:
    """The folder of one ledger; the URL of its database, if that is elsewhere."""

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


@contextmanager
def running(location: LedgerLocation) -> Iterator[Service]:
    """The ledger service of a location, stopped at the end."""
    location.key("receipts")
    principals = location.folder / "principals.json"
    local = Credential(name="load", tenant=None, roles=("append", "read"), anybody=True, created_at=datetime.now(UTC))
    write_principals(principals, [local])
    ready = location.folder / "ready"
    command = [
        "services.ledger", "--data-dir", str(location.folder), "--listen", "127.0.0.1:0", "--origin", ORIGIN,
        "--ready-file", str(ready), "--principals", str(principals), "--log-level", "warning",
    ]  # fmt: skip
    with serving("ledger", command, ready, {"KOLM_LEDGER_DATABASE_URL": location.url} if location.url else {}) as found:
        yield found


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
    return Admitted(data, hashlib.sha256(data).digest(), document, packed(content))


@dataclass(frozen=True, slots=True)
class LedgerLocations:
    """Logs by name, each in a folder of its own; with a cluster, in a database of it."""

    folder: Path
    cluster: Path | None = None
    keep: Path | None = None

    def location(self, name: str) -> LedgerLocation:
        """The log of that name, empty if it is new."""
        folder = self.folder / name
        if self.cluster is None:
            return LedgerLocation(folder)
        if not folder.exists():
            with psycopg.connect(f"host={self.cluster} user=kolm dbname=postgres", autocommit=True) as connection:
                connection.execute(f'CREATE DATABASE "{name}"'.encode())
        return LedgerLocation(folder, url_of(self.cluster, name))

    def kept(self, name: str) -> LedgerLocation:
        """The log of that name, which takes long to fill: copied from `keep`, if it is given."""
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
