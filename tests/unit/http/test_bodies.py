"""Bodies from anybody: each is a request, or one error that names a field; none costs more than its own size."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from services.client.errors import InvalidArgument
from services.client.generation.request_wire import generate_request
from services.http.api_error import ApiError, of_body, of_kolm
from services.http.completions import ChatDialect, ChatFields, TextDialect, TextFields
from tests.examples import examples

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


@pytest.mark.parametrize(
    ("name", "constraint"), [("json", {"type": "string"}), ("regex", "a+"), ("choice", ["a"]), ("grammar", "start: A")]
)
def test_former_names_of_vllm_are_structured_outputs(name: str, constraint: Any) -> None:
    old = chat(json.dumps(MESSAGES | {f"guided_{name}": constraint}).encode())
    new = chat(json.dumps(MESSAGES | {"structured_outputs": {name: constraint}}).encode())
    assert old.fields.constraint() == new.fields.constraint() is not None
    assert chat(json.dumps(MESSAGES | {f"guided_{name}": None}).encode()).fields.constraint() is None
    both = MESSAGES | {f"guided_{name}": constraint, "structured_outputs": {"regex": "b"}}
    refused = refusal(chat, json.dumps(both).encode())
    assert refused is not None
    assert "send one of them" in refused.message


def test_usage_in_every_event_is_usage_asked_for() -> None:
    refused = refusal(chat, json.dumps(MESSAGES | {"stream_options": {"continuous_usage_stats": True}}).encode())
    assert refused is not None
    assert refused.param == "stream_options.continuous_usage_stats"
