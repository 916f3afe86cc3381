"""Timestamps: every so often the newest checkpoint goes to an RFC 3161 authority, and its answer is kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from ledger.errors import LedgerError
from ledger.keys.note import Note
from ledger.log.reader import LedgerReader
from ledger.witness.cosignature_store import CosignatureStore
from services.runtime.http.http_call import on_own_thread
from services.runtime.process import Outage

_log = logging.getLogger(__name__)

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
