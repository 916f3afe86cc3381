"""Calls to the HTTP front: which are let in, and how their bodies are read."""

import asyncio
import importlib.metadata
import json
import re
from collections.abc import AsyncGenerator, Mapping, MutableMapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.routing import Route

from services.client.errors import InvalidArgument
from services.client.generation.request_wire import generate_request
from services.client.generation.runtime import AsyncRuntime
from services.http.api_error import ApiError, of_body, of_kolm
from services.http.app import PAGE_PATHS, http_app, openapi
from services.http.calls import DONE, EventStream, event, token
from services.http.completions import ChatDialect, ChatFields, TextDialect, TextFields
from services.http.settings import HttpSettings
from tests.examples import examples

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


def test_the_data_of_an_event_is_one_line_however_lines_are_split() -> None:
    text = "".join(map(chr, range(0x20))) + "\x7f\x85\xa0\u2028\u2029ä\U0001f600"
    named, data, *rest = event({"type": "x", text: [text]}).decode().splitlines()
    assert (named, rest) == ("event: x", [""])
    assert json.loads(data.removeprefix("data: ")) == {"type": "x", text: [text]}


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


MEMBERS = sorted({*ChatFields.model_fields, *TextFields.model_fields, "unknown"})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["role", "content", "type", "text", "k", "method", "1"]), inner, max_size=3)
    ),
    max_leaves=6,
)
BODIES = st.dictionaries(st.sampled_from(MEMBERS), JSON, max_size=5)


def refusal(read: Any, body: bytes) -> ApiError | None:
    """The endpoint's answer without asking the generation server."""
    try:
        dialect = read(body)
    except ValidationError as error:
        return of_body(error)
    try:
        generate_request(dialect.request(), dialect.fields.spec_decode())
    except InvalidArgument as error:
        return of_kolm(error, dialect.names)
    return None


def chat(body: bytes) -> ChatDialect:
    return ChatDialect(ChatFields.model_validate_json(body))


def text(body: bytes) -> TextDialect:
    return TextDialect(TextFields.model_validate_json(body))


@settings(max_examples=examples(300), deadline=None)
@given(BODIES, st.sampled_from([chat, text]))
def test_any_json_is_a_request_or_a_refusal_that_names_a_member(body: dict[str, Any], read: Any) -> None:
    refused = refusal(read, json.dumps(body).encode())
    if refused is not None:
        assert refused.status == 400
        assert json.loads(refused.response().body)["error"]["message"] == refused.message
        assert refused.code == "invalid_json" or (refused.param or "").split(".")[0].split("[")[0] in {*MEMBERS}


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_are_refused_as_a_body(body: bytes) -> None:
    refused = refusal(chat, body)
    assert refused is not None
    assert refused.status == 400


@pytest.mark.parametrize(
    "body",
    [
        {f"member {number}": 1 for number in range(1000)},
        {"messages": [{}] * 1000},
        {"messages": [{"role": "user", "content": "x", **{f"member {number}": 1 for number in range(1000)}}]},
        {"messages": [], "stop_token_ids": [""] * 1000},
        {"messages": [], "stop": [1] * 1000},
        {"messages": [], "logit_bias": dict.fromkeys(range(1000), "x")},
        {"messages": [], "kolm": {"parameters": dict.fromkeys(range(1000), "x")}},
    ],
    ids=lambda body: ",".join(list(body)[:2]),
)
def test_a_thousand_mistakes_are_not_a_thousand_errors(body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as caught:
        ChatFields.model_validate_json(json.dumps(body))
    assert caught.value.error_count() <= 3


def test_an_endless_name_is_cut() -> None:
    refused = refusal(chat, json.dumps({"messages": [], "x" * 100_000: 1, "seed": "y" * 100_000}).encode())
    assert refused is not None
    assert len(refused.message) < 1000


def test_a_priority_is_vllm_s() -> None:
    asked = text(b'{"model": "m", "prompt": "x", "priority": -3}').request()
    assert generate_request(asked, None).priority == -3


MESSAGES = {"messages": [{"role": "user", "content": "x"}]}


def test_usage_in_every_event_is_usage_asked_for() -> None:
    refused = refusal(chat, json.dumps(MESSAGES | {"stream_options": {"continuous_usage_stats": True}}).encode())
    assert refused is not None
    assert refused.param == "stream_options.continuous_usage_stats"


_OTHERS = {"/", "/page.json", "/openapi.json", "/metrics", "/v1/models/{model:path}"}


async def test_every_endpoint_is_described() -> None:
    async with AsyncRuntime.connect("127.0.0.1:1") as runtime:
        app: Any = http_app(runtime, HttpSettings())
    while not isinstance(app, Starlette):  # the middleware around it
        app = app._app
    routes = {route.path: route for route in app.routes if isinstance(route, Route)}
    described = openapi()["paths"]
    assert routes.keys() - _OTHERS == described.keys()
    assert all({each.lower() for each in routes[path].methods or ()} >= described[path].keys() for path in described)


def test_each_body_has_the_members_that_are_checked_and_every_reference_is_there() -> None:
    document = openapi()
    schemas = document["components"]["schemas"]
    assert schemas["ChatFields"]["properties"].keys() == ChatFields.model_fields.keys()
    assert schemas["ChatFields"]["additionalProperties"] is False
    named = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert named <= schemas.keys()


def test_a_checkout_that_was_never_installed_is_described(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", Mock(side_effect=importlib.metadata.PackageNotFoundError))
    assert openapi()["info"]["version"] == "unknown"


SERVICES = Path(__file__).parents[3] / "services"


def test_every_file_that_the_page_loads_is_open_to_every_caller() -> None:
    scripts = [*(SERVICES / "http" / "page").glob("*.js"), *(SERVICES / "runtime" / "http" / "browser").glob("*.js")]
    page = (SERVICES / "http" / "page" / "chat.html").read_text("utf-8")
    loaded = set(re.findall(r'(?:src|href)="(/page/[^"]+)"', page))
    for script in scripts:
        loaded |= {f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', script.read_text("utf-8"))}
    assert {"/page/chat.js", "/page/verify.js", "/page/commitments.js"} <= loaded <= set(PAGE_PATHS)
