"""Refusals in OpenAI's shape, as OpenAI's client raises them."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.integration.http.front import Front
from tests.integration.http.test_chat import ASKED, streamed

pytestmark = pytest.mark.asyncio(loop_scope="module")

SCHEMA = {"name": "bad", "schema": {"type": "object", "properties": {"a": {"format": "ean"}}}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"functions": [{"name": "look_up"}]}, "functions", "unsupported_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_argument"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "invalid_value"),
        ({"response_format": {"type": "text", "json_schema": SCHEMA}}, "response_format.json_schema", "invalid_value"),
        (
            {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
            "response_format.json_schema.schema",
            "invalid_argument",
        ),
        ({"extra_body": {"structured_outputs": {"regex": "(a"}}}, "structured_outputs.regex", "invalid_argument"),
        ({"extra_body": {"structured_outputs": {}}}, "structured_outputs", "invalid_argument"),
        (
            {"response_format": {"type": "json_object"}, "extra_body": {"structured_outputs": {"regex": "a"}}},
            "response_format",
            "invalid_value",
        ),
        ({"prediction": {"type": "text", "content": "x"}}, "prediction.type", "invalid_value"),
        ({"prediction": {"type": "content", "content": 7}}, "prediction.content", "invalid_value"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "unsupported_value"),
        ({"extra_body": {"temprature": 1}}, "temprature", "unsupported_parameter"),
        ({"extra_body": {"kolm": {"metod": "off"}}}, "kolm.metod", "unsupported_parameter"),
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content", "invalid_value"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0].name", "unsupported_value"),
        ({"messages": []}, "messages", "invalid_argument"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_argument"),
        ({"top_p": 1.5}, "top_p", "invalid_argument"),
        ({"seed": -(2**63) - 1}, "seed", "invalid_argument"),
        ({"extra_body": {"top_k": -2}}, "top_k", "invalid_argument"),
        ({"stop": ["x", ""]}, "stop", "invalid_argument"),
        ({"tool_choice": {"type": "custom"}}, "tool_choice.type", "invalid_value"),
        ({"seed": True}, "seed", "invalid_value"),
        ({"n": 17}, "n", "invalid_argument"),
        ({"stop": ["x"] * 17}, "stop", "invalid_argument"),
        ({"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value"),
        ({"logit_bias": {"400": 1}}, "logit_bias", "invalid_argument"),
        ({"max_completion_tokens": 600}, "max_completion_tokens", "context_length_exceeded"),
        ({"messages": [{"role": "user", "content": "x " * 999}]}, "messages", "context_length_exceeded"),
        ({"max_tokens": 3}, "max_completion_tokens", "invalid_value"),
        ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "invalid_argument"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
        ({"extra_body": {"kolm": {"tenant": "x" * 129}}}, "kolm.tenant", "invalid_argument"),
        ({"extra_body": {"kolm": {"k": 99}}}, "kolm.k", "invalid_argument"),
        ({"extra_body": {"kolm": {"method": "magic"}}}, "kolm.method", "invalid_argument"),
        ({"extra_body": {"kolm": {"verify": "never"}}}, "kolm.verify", "invalid_argument"),
        ({"extra_body": {"kolm": {"request_id": "\n"}}}, "kolm.request_id", "invalid_argument"),
    ],
)
async def test_a_wrong_member_is_named(
    client: openai.AsyncOpenAI, members: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**ASKED | members)
    error = caught.value
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert error.body["message"].startswith(f"{param}: ")  # type: ignore[index]


async def test_another_model_or_adapter_is_not_found(client: openai.AsyncOpenAI) -> None:
    for members, param, code in (
        ({"model": "gpt-4o"}, "model", "model_not_found"),
        ({"extra_body": {"kolm": {"adapter": "french"}}}, "kolm.adapter", "adapter_not_found"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(**ASKED | members)
        assert (caught.value.param, caught.value.code) == (param, code)


async def test_a_stream_that_is_refused_has_the_status_of_its_refusal(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await streamed(client, **ASKED | {"top_p": 0})
    assert caught.value.param == "top_p"


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "invalid_json"),
        (b"{", 400, "invalid_json"),
        (b"[" * 5000, 400, "invalid_json"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', 400, "invalid_json"),
        (b'{"messages": [], "temperature": NaN}', 400, "invalid_value"),
        (b'{"messages": [], "seed": 1' + b"0" * 400 + b"}", 400, "invalid_argument"),
        (b"[]", 400, "invalid_value"),
        (b'{"messages": [{"role": "user", "content": "\xff"}]}', 400, "invalid_json"),
        (b'{"model": "tiny"}', 400, "missing_required_parameter"),
    ],
)
async def test_bytes_that_are_no_request_are_refused(front: Front, body: bytes, status: int, code: str) -> None:
    answered, error = await posted(front, body, "application/json")
    assert (answered, error["code"], set(error)) == (status, code, {"message", "type", "param", "code"})


async def test_a_browser_s_form_is_refused_for_another_page_may_have_sent_it(front: Front) -> None:
    answered, error = await posted(front, json.dumps(ASKED).encode(), "text/plain")
    assert (answered, error["code"]) == (415, "unsupported_media_type")


async def test_other_paths_and_methods_are_refused_in_the_same_shape(front: Front) -> None:
    for line, status, code, allowed in (
        ("GET /v1/embeddings HTTP/1.1", 404, "not_found", False),
        ("DELETE /v1/models HTTP/1.1", 405, "method_not_allowed", True),
    ):
        reader, writer = await front.raw(f"{line}\r\nconnection: close")
        answer = await reader.read()
        answered, error = _answer(answer)
        writer.close()
        assert (answered, error["code"], b"\r\nallow: " in answer) == (status, code, allowed)


async def posted(front: Front, body: bytes, content_type: str) -> tuple[int, dict[str, Any]]:
    """The status and the error of a body that is no request."""
    head = f"POST /v1/chat/completions HTTP/1.1\r\nconnection: close\r\ncontent-type: {content_type}"
    reader, writer = await front.raw(f"{head}\r\ncontent-length: {len(body)}", body)
    answer = await reader.read()
    writer.close()
    return _answer(answer)


def _answer(answer: bytes) -> tuple[int, dict[str, Any]]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]
