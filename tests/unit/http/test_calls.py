"""Calls to the front: the caller's token, and events of a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping, MutableMapping
from typing import Any

import pytest
from starlette.requests import Request

from services.http.api_error import ApiError
from services.http.calls import DONE, EventStream, event, token

TOKEN = "kolm_" + "x" * 43


def asking(headers: Mapping[str, str], host: str | None = "127.0.0.1") -> Request:
    sent = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    client = None if host is None else (host, 4711)
    return Request({"type": "http", "method": "POST", "path": "/", "headers": sent, "client": client})


@pytest.mark.parametrize("host", ["127.0.0.1", "10.0.0.7", "::1", None])
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_a_token_is_passed_on_from_everywhere(host: str | None, scheme: str) -> None:
    assert token(asking({"authorization": f"{scheme} {TOKEN}"}, host)) == TOKEN


@pytest.mark.parametrize("headers", [{}, {"authorization": "Bearer none"}, {"authorization": "Basic kolm_x"}])
def test_what_is_no_token_counts_as_none_wherever_it_comes_from(headers: dict[str, str]) -> None:
    for host in ("127.0.0.1", "::1", "10.0.0.7", None):
        assert token(asking(headers, host)) == ""
    assert token(asking(headers | {"x-forwarded-for": "127.0.0.1"})) == ""


def test_a_page_that_points_its_name_at_this_machine_has_no_say_here() -> None:
    for name in ("evil.example", "evil.example:50057", "127.0.0.1.evil.example", "EVIL.example.", "[evil.example"):
        with pytest.raises(ApiError) as caught:
            token(asking({"host": name}))
        assert (caught.value.status, caught.value.response().headers["www-authenticate"]) == (401, "Bearer")
        assert token(asking({"host": name, "authorization": f"Bearer {TOKEN}"})) == TOKEN
    for own in ("127.0.0.1:50057", "localhost:50057", "[::1]:50057", "kolm.localhost", "10.0.0.7", "box:80", ""):
        assert token(asking({"host": own})) == ""


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
