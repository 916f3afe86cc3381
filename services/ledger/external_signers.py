"""The external signers of a log: the witnesses in its settings."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from urllib.parse import urlencode

from prometheus_client import CollectorRegistry

from ledger.errors import LedgerError
from ledger.log.reader import LedgerReader
from ledger.witness.cosignature import MAX_REQUEST_BYTES, PATH, SEEN_PATH
from ledger.witness.cosignature_store import CosignatureStore
from ledger.witness.tlog_policy import Policy
from services.ledger.checkpoints import Checkpoints
from services.ledger.cosignature_collector import CosignatureCollector
from services.ledger.ledger_metrics import watch_witnesses
from services.ledger.settings import LedgerSettings
from services.runtime.http.http_call import get, post
from services.runtime.process import CannotStart


@dataclass(frozen=True, slots=True)
class ExternalSigners:
    """The witnesses of one log, by their policy, and the store of their cosignatures; both may be missing."""

    settings: LedgerSettings
    policy: Policy | None
    notes: CosignatureStore | None

    @classmethod
    def of(cls, settings: LedgerSettings) -> ExternalSigners:
        """Raises CannotStart for a policy that cannot be read."""
        if settings.witness_policy is None:
            return cls(settings, None, None)
        try:
            policy = Policy.from_bytes(settings.witness_policy.read_bytes())
            return cls(settings, policy, CosignatureStore(settings.witnessed, settings.origin))
        except (LedgerError, OSError) as error:
            raise CannotStart(f"--witness-policy: {error}") from None

    def checkpoints(self, reader: LedgerReader) -> Checkpoints:
        return Checkpoints(reader, self.policy, self.notes)

    @contextmanager
    def collecting(self, reader: LedgerReader, registry: CollectorRegistry) -> Iterator[None]:
        """Collect in the background within the block. On a running event loop."""
        if (collector := self.collector(reader)) is None:
            yield
            return
        watch_witnesses(registry, collector)
        task = asyncio.ensure_future(collector.run())
        try:
            yield
        finally:
            task.cancel()

    def collector(self, reader: LedgerReader) -> CosignatureCollector | None:
        if self.notes is None or self.policy is None:
            return None
        send = partial(post_to_witness, seconds=self.settings.witness_timeout)
        ask = partial(seen_by_witness, seconds=self.settings.witness_timeout)
        return CosignatureCollector(reader, self.policy, self.notes, send, self.settings.witness_seconds, ask)


def post_to_witness(prefix: str, body: bytes, seconds: float) -> tuple[int, bytes]:
    """(status, body) of add-checkpoint under a submission prefix. Raises OSError."""
    return post(f"{prefix.rstrip('/')}/{PATH}", body, "text/plain; charset=utf-8", seconds=seconds)


def seen_by_witness(prefix: str, origin: str, seconds: float) -> bytes:
    """The newest checkpoint of a log that a witness of kolm has cosigned. Raises OSError, also for witnesses of other
    software.
    """
    url = f"{prefix.rstrip('/')}/{SEEN_PATH}?{urlencode({'origin': origin})}"
    answer = get(url, seconds, MAX_REQUEST_BYTES)
    if answer.status != HTTPStatus.OK:
        raise OSError(f"{url} answers {answer.status}")
    return answer.body
