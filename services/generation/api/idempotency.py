"""Idempotency keys: one key, one generation, one response."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kolm.generation.v1 import generation_pb2 as pb
from services.runtime.errors import AlreadyExists

_OVERHEAD = 1024  # bytes of an entry beside the response: key, fingerprint, what Python needs for them


@dataclass(frozen=True, slots=True)
class _Entry:
    """A response under way, or a finished one. It is serialised, so that its bytes can be counted."""

    fingerprint: bytes
    response: asyncio.Task[pb.GenerateResponse] | bytes

    @property
    def size(self) -> int:
        return _OVERHEAD + len(self.response) if isinstance(self.response, bytes) else 0


class IdempotentResponses:
    """Responses by tenant and key, limited in number and bytes; the least recently used goes first. On one event loop.

    A call that comes while the first is under way waits for it. The generation outlives the call that began it, so a
    caller that lost its connection finds the answer when it tries again. A failure is not kept. A response under way is
    never dropped, and takes no bytes yet.
    """

    def __init__(self, entries: int, size: int) -> None:
        """`size`: bytes for all responses together; a larger one is not kept."""
        self._most, self._most_bytes = entries, size
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()
        self._bytes = 0

    async def once(
        self, request: pb.GenerateRequest, generate: Callable[[], Awaitable[pb.GenerateResponse]]
    ) -> pb.GenerateResponse:
        """The response to the first request with this key. Raises AlreadyExists if that was another request."""
        name, fingerprint = (request.tenant, request.idempotency_key), _fingerprint(request)
        entry = self._entries.get(name)
        if entry is None:
            entry = self._begin(name, fingerprint, generate)
        if entry.fingerprint != fingerprint:
            raise AlreadyExists(
                "idempotency_key",
                request.idempotency_key,
                "another request came with this idempotency key; use a fresh key for each request",
                reason="IDEMPOTENCY_CONFLICT",
            )
        self._entries.move_to_end(name)
        if isinstance(entry.response, bytes):
            return pb.GenerateResponse.FromString(entry.response)
        return await asyncio.shield(entry.response)

    def _begin(
        self, name: tuple[str, str], fingerprint: bytes, generate: Callable[[], Awaitable[pb.GenerateResponse]]
    ) -> _Entry:
        async def response() -> pb.GenerateResponse:
            return await generate()

        task = asyncio.create_task(response())
        entry = self._entries[name] = _Entry(fingerprint, task)
        task.add_done_callback(lambda ended: self._ended(name, ended))
        self._give_up()
        return entry

    def _ended(self, name: tuple[str, str], task: asyncio.Task[pb.GenerateResponse]) -> None:
        failed = task.cancelled() or task.exception() is not None
        kept = None if failed else _Entry(self._entries[name].fingerprint, task.result().SerializeToString())
        if kept is None or kept.size > self._most_bytes:
            del self._entries[name]
            return
        self._entries[name] = kept
        self._bytes += kept.size
        self._give_up()

    def _give_up(self) -> None:
        """Drop what is too much, the least recently used first."""
        for name, entry in list(self._entries.items()):
            if len(self._entries) <= self._most and self._bytes <= self._most_bytes:
                return
            if isinstance(entry.response, bytes):
                del self._entries[name]
                self._bytes -= entry.size


def _fingerprint(request: pb.GenerateRequest) -> bytes:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
