"""The outside signers of a log: its witnesses and its timestamping authority, as the settings name them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry

from ledger.errors import LedgerError
from ledger.log.reader import LedgerReader
from ledger.witness.add_checkpoint import PATH
from ledger.witness.cosignature_store import CosignatureStore
from ledger.witness.tlog_policy import Policy
from services.ledger.checkpoints import Checkpoints
from services.ledger.cosignature_collector import CosignatureCollector
from services.ledger.ledger_metrics import watch_witnesses
from services.ledger.settings import LedgerSettings
from services.ledger.timestamp_collector import TimestampCollector
from services.runtime.http.http_call import post
from services.runtime.process import CannotStart


@dataclass(frozen=True, slots=True)
class OutsideSigners:
    """The outside signers of one log, and the store of their signatures; both may be missing."""

    settings: LedgerSettings
    policy: Policy | None
    notes: CosignatureStore | None

    @classmethod
    def of(cls, settings: LedgerSettings) -> OutsideSigners:
        """Raises CannotStart for a policy that cannot be read."""
        if settings.witness_policy is None and settings.timestamp_url is None:
            return cls(settings, None, None)
        try:
            path = settings.witness_policy
            policy = None if path is None else Policy.from_bytes(path.read_bytes())
            return cls(settings, policy, CosignatureStore(settings.witnessed))
        except (LedgerError, OSError) as error:
            raise CannotStart(f"--witness-policy: {error}") from None

    def checkpoints(self, reader: LedgerReader) -> Checkpoints:
        return Checkpoints(reader, self.policy, self.notes)

    @contextmanager
    def collecting(self, reader: LedgerReader, registry: CollectorRegistry) -> Iterator[None]:
        """Collects in the background while inside. On a running event loop."""
        tasks: list[asyncio.Future[None]] = []
        for work in self.work(reader):
            tasks.append(asyncio.ensure_future(work.run()))
            if isinstance(work, CosignatureCollector):
                watch_witnesses(registry, work)
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()

    def work(self, reader: LedgerReader) -> Iterator[CosignatureCollector | TimestampCollector]:
        """The tasks to run in the background."""
        settings = self.settings
        if self.notes is not None and self.policy is not None:
            send = partial(post_to_witness, seconds=settings.witness_timeout)
            yield CosignatureCollector(reader, self.policy, self.notes, send, settings.witness_seconds)
        if self.notes is not None and settings.timestamp_url is not None:
            send_to_authority = partial(post, settings.timestamp_url, seconds=settings.witness_timeout)
            yield TimestampCollector(reader, self.notes, send_to_authority, settings.timestamp_seconds)


def post_to_witness(prefix: str, body: bytes, seconds: float) -> tuple[int, bytes]:
    """(status, body) of add-checkpoint under a submission prefix. Raises OSError."""
    return post(f"{prefix.rstrip('/')}/{PATH}", body, "text/plain; charset=utf-8", seconds=seconds)
