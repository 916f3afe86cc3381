"""The outside signers of a log: its witnesses and its timestamping authority, as the settings name them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from prometheus_client import CollectorRegistry

from ledger.errors import LedgerError
from ledger.keys.note import Note
from ledger.log.reader import LedgerReader
from ledger.witness.cosignature import PATH
from ledger.witness.cosignature_store import CosignatureStore
from ledger.witness.tlog_policy import Policy
from services.ledger.checkpoints import Checkpoints
from services.ledger.cosignature_collector import CosignatureCollector
from services.ledger.ledger_metrics import watch_witnesses
from services.ledger.settings import LedgerSettings
from services.runtime.http.http_call import on_own_thread, post
from services.runtime.process import CannotStart, Outage

_log = logging.getLogger(__name__)

_STAMP_SECONDS = 3600.0  # between two timestamps

Post = Callable[[bytes, str], tuple[int, bytes]]
"""(body, content type) → (HTTP status, body). Blocking; raises OSError."""


class TimestampCollector:
    """Asks one authority. In the background: an authority that is away costs a log line, and one when it is back."""

    def __init__(self, reader: LedgerReader, notes: CosignatureStore, post: Post, interval: float) -> None:
        self._reader = reader
        self._notes = notes
        self._post = post
        self._interval = interval
        self._stamped = -1
        self._outage = Outage(_log, "have checkpoints timestamped", LedgerError, OSError, bugs=True)

    async def run(self) -> None:
        """Stamp for ever. Run as a task."""
        while True:
            await self.stamp()
            await asyncio.sleep(self._interval)

    async def stamp(self) -> None:
        """Stamp the newest checkpoint, if it has not been. A failure is logged; the next call tries again."""
        head = self._reader.head()
        if head.size == self._stamped:
            return
        with self._outage:
            note = Note.from_bytes(head.note)
            response = await asyncio.wrap_future(on_own_thread(partial(self._stamp, note)))
            await asyncio.to_thread(self._keep, head.size, note, response)
            self._stamped = head.size

    def _stamp(self, note: Note) -> bytes:
        """The authority's response. Raises OSError."""
        from ledger.witness.timestamp_token import CONTENT_TYPE, timestamp_request

        status, response = self._post(timestamp_request(note.text.encode()), CONTENT_TYPE)
        if status != 200:
            raise OSError(f"the authority answered HTTP {status}")
        return response

    def _keep(self, size: int, note: Note, response: bytes) -> None:
        """The response is kept as it is: its verifier brings the authority's certificate."""
        self._notes.record(size, note)
        self._notes.record_timestamp(size, response)


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
            yield TimestampCollector(reader, self.notes, send_to_authority, _STAMP_SECONDS)


def post_to_witness(prefix: str, body: bytes, seconds: float) -> tuple[int, bytes]:
    """(status, body) of add-checkpoint under a submission prefix. Raises OSError."""
    return post(f"{prefix.rstrip('/')}/{PATH}", body, "text/plain; charset=utf-8", seconds=seconds)
