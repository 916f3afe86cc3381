"""A stream of events closes what it reads from, also where nobody ever reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, MutableMapping
from typing import Any

import pytest

from services.http.calls import DONE, EventStream, event

SCOPE = {"type": "http", "method": "POST", "asgi": {"spec_version": "2.3"}}


async def events() -> AsyncGenerator[bytes]:
    yield event({"text": "für"})
    yield event(DONE)


async def never() -> Any:
    await asyncio.Event().wait()


async def test_events_are_lines_of_json_and_done() -> None:
    sent: list[MutableMapping[str, Any]] = []
    closed: list[bool] = []

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    await EventStream(events(), 60.0, lambda: closed.append(True))(SCOPE, never, send)
    body = b"".join(message.get("body", b"") for message in sent)
    assert body.decode() == 'data: {"text":"für"}\n\ndata: [DONE]\n\n'
    assert closed == [True]


async def test_a_caller_that_has_left_before_the_first_event_closes_it() -> None:
    closed: list[bool] = []

    async def gone() -> MutableMapping[str, Any]:
        return {"type": "http.disconnect"}

    await EventStream(events(), 60.0, lambda: closed.append(True))(SCOPE, gone, lambda _: never())
    assert closed == [True]


async def test_a_caller_that_does_not_read_has_no_longer_than_the_request() -> None:
    closed: list[bool] = []
    with pytest.raises(TimeoutError):
        await EventStream(events(), 0.01, lambda: closed.append(True))(SCOPE, never, lambda _: never())
    assert closed == [True]
