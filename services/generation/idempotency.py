"""Idempotency keys: one key, one generation, one response."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kolm.generation.v1 import generation_pb2 as pb
from services.runtime.errors import AlreadyExists


@dataclass(frozen=True, slots=True)
class _Entry:
    fingerprint: bytes
    response: asyncio.Task[pb.GenerateResponse]


class IdempotentResponses:
    """Responses by tenant and key, the longest unused out first. On one event loop.

    A call that comes while the first is under way waits for it. The generation does not end with the call that began
    it: the retry of a caller that lost its connection finds the answer. A failure is not kept.
    """

    def __init__(self, entries: int) -> None:
        self._most = entries
        self._entries: OrderedDict[tuple[str, str], _Entry] = OrderedDict()

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
        return await asyncio.shield(entry.response)

    def _begin(
        self, name: tuple[str, str], fingerprint: bytes, generate: Callable[[], Awaitable[pb.GenerateResponse]]
    ) -> _Entry:
        async def response() -> pb.GenerateResponse:
            return await generate()

        entry = self._entries[name] = _Entry(fingerprint, asyncio.create_task(response()))
        entry.response.add_done_callback(lambda task: self._ended(name, task))
        for old in [key for key, kept in self._entries.items() if kept.response.done()]:
            if len(self._entries) <= self._most:
                break
            del self._entries[old]
        return entry

    def _ended(self, name: tuple[str, str], task: asyncio.Task[pb.GenerateResponse]) -> None:
        if task.cancelled() or task.exception() is not None:
            self._entries.pop(name, None)


def _fingerprint(request: pb.GenerateRequest) -> bytes:
    return hashlib.sha256(request.SerializeToString(deterministic=True)).digest()
