"""Server-sent events: one JSON object each, `[DONE]` at the end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

DONE = "[DONE]"


def event(value: Any) -> bytes:
    """One event, named where it has a `type`; `DONE` is written as it is."""
    if value is DONE:
        return b"data: [DONE]\n\n"
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    name = f"event: {value['type']}\n" if "type" in value else ""
    return f"{name}data: {text}\n\n".encode()


class EventStream(StreamingResponse):
    """Sends events as they come, for at most `seconds`. Calls `close` at the end, also where the caller has left."""

    def __init__(self, events: AsyncGenerator[bytes], seconds: float, close: Callable[[], None]) -> None:
        super().__init__(events, headers={"cache-control": "no-store"}, media_type="text/event-stream")
        self._seconds = seconds
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            async with asyncio.timeout(self._seconds):  # a caller that reads slowly has no longer
                await super().__call__(scope, receive, send)
        finally:
            self._close()
