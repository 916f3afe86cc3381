"""`/v1/completions`, `/tokenize`, `/v1/models` and refusals, as OpenAI's client sees them."""

import codecs
import json
from typing import Any

import httpx2
import openai
import pytest
from openai.types import Completion

from tests.integration.http.front import Front, fronting
from tests.integration.http.test_chat import ASKED as CHAT
from tests.integration.http.test_chat import streamed

pytestmark = pytest.mark.asyncio(loop_scope="module")

ASKED: dict[str, Any] = {"model": "tiny", "prompt": "The ledger keeps", "max_tokens": 24, "seed": 7}


async def test_a_stream_adds_up_to_the_whole_answer_with_its_logprobs(client: openai.AsyncOpenAI) -> None:
    asked = {**ASKED, "n": 2, "logprobs": 2}
    whole = await client.completions.create(**asked)
    Completion.model_validate(whole.model_dump())
    chunks = [
        chunk
        async for chunk in await client.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    ]
    assert (whole.object, whole.id[:5], len(whole.choices)) == ("text_completion", "cmpl-", 2)
    for choice in whole.choices:
        mine = [each for chunk in chunks for each in chunk.choices if each.index == choice.index]
        assert "".join(each.text for each in mine) == choice.text
        assert choice.logprobs is not None
        for member in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            joined = [value for each in mine if each.logprobs for value in getattr(each.logprobs, member)]
            assert joined == getattr(choice.logprobs, member)
        assert len(choice.logprobs.tokens or ()) == 24
        for token, offset in zip(choice.logprobs.tokens or (), choice.logprobs.text_offset or (), strict=True):
            assert choice.text[offset:].startswith("\ufffd" if token.startswith("bytes:") else token)
        assert {len(best) for best in choice.logprobs.top_logprobs or ()} <= {2, 3}
    assert (chunks[-1].choices, chunks[-1].usage is not None) == ([], True)
    assert [(each.index, each.text) for chunk in chunks[:2] for each in chunk.choices] == [(0, ""), (1, "")]


async def test_every_event_of_a_stream_has_a_choice(client: openai.AsyncOpenAI) -> None:
    whole = await client.completions.create(**ASKED)
    texts = [chunk.choices[0].text async for chunk in await client.completions.create(**ASKED, stream=True)]
    assert (texts[0], "".join(texts)) == ("", whole.choices[0].text)


@pytest.mark.parametrize("sampling", [{"temperature": 1e-8}, {"temperature": 5e-324}, {"top_p": 0}])
async def test_what_other_servers_take_for_greedy_is_greedy(
    client: openai.AsyncOpenAI, sampling: dict[str, Any]
) -> None:
    greedy = await client.completions.create(**ASKED | {"temperature": 0})
    assert (await client.completions.create(**ASKED | sampling)).choices[0].text == greedy.choices[0].text


async def test_token_ids_are_a_prompt_and_one_prompt_may_stand_in_a_list(client: openai.AsyncOpenAI) -> None:
    text = (await client.completions.create(**ASKED)).choices[0].text
    assert (await client.completions.create(**ASKED | {"prompt": [ASKED["prompt"]]})).choices[0].text == text
    ids = [2, 75, 76, 1, 3]
    by_ids = [await client.completions.create(**ASKED | {"prompt": prompt}) for prompt in (ids, [ids])]
    assert by_ids[0].choices[0].text == by_ids[1].choices[0].text != text
    assert by_ids[0].usage is not None
    assert by_ids[0].usage.prompt_tokens == 5


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"prompt": ["one", "two"]}, "prompt"),
        ({"prompt": [9999]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"echo": True}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 21}, "logprobs"),
        ({"extra_body": {"messages": []}}, "messages"),
    ],
)
async def test_a_wrong_member_is_named(client: openai.AsyncOpenAI, members: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(**ASKED | members)
    assert caught.value.param == param


async def test_the_model_is_listed_and_found_by_its_name_only(client: openai.AsyncOpenAI) -> None:
    (model,) = [model async for model in client.models.list()]
    assert (model.id, model.object, model.owned_by) == ("tiny", "model", "kolm")
    extra: Any = model.model_extra
    assert extra["kolm"]["context_length"] == 512
    assert (await client.models.retrieve("tiny")).id == "tiny"
    assert (await client.models.retrieve(extra["kolm"]["base_cid"])).id == "tiny"
    with pytest.raises(openai.NotFoundError) as caught:
        await client.models.retrieve("gpt/4o")
    assert (caught.value.param, caught.value.code) == ("model", "model_not_found")


async def test_the_model_has_anthropic_s_members(claude: Any) -> None:
    page = await claude.models.list()
    (model,) = page.data
    assert (model.id, model.type, model.display_name, model.created_at.year) == ("tiny", "model", "tiny", 1970)
    assert (page.has_more, page.first_id, page.last_id) == (False, "tiny", "tiny")
    assert await claude.models.retrieve("tiny") == model


async def test_an_answer_names_the_served_model_however_it_was_asked_for(client: openai.AsyncOpenAI) -> None:
    (model,) = [model async for model in client.models.list()]
    extra: Any = model.model_extra
    for asked in ({"model": extra["kolm"]["base_cid"]}, {"model": None}):
        answer: Any = await client.completions.create(**ASKED | asked)
        assert (answer.model, answer.kolm["base_cid"]) == ("tiny", extra["kolm"]["base_cid"])


@pytest.mark.parametrize(("coding", "status"), [("", 200), ("identity", 200), ("gzip", 415), ("br", 415)])
async def test_a_body_may_begin_with_a_mark_and_not_be_compressed(front: Front, coding: str, status: int) -> None:
    body = codecs.BOM_UTF8 + json.dumps({"prompt": "x"}).encode()
    headers = {"content-type": "application/json", "content-encoding": coding}
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"http://127.0.0.1:{front.port}/tokenize", content=body, headers=headers)
    assert (answer.status_code, answer.json().get("count")) == (status, 1 if status == 200 else None)


async def test_health_is_the_generation_server_s(front: Front) -> None:
    assert await status_of(front, "/health") == 200
    async with fronting("127.0.0.1:1") as alone:
        assert await status_of(alone, "/health") == 503
        for call in (alone.client.models.list(), alone.client.completions.create(**ASKED)):
            with pytest.raises(openai.InternalServerError) as caught:
                await call
            assert (caught.value.status_code, caught.value.type) == (503, "api_error")
            assert int(caught.value.response.headers["retry-after"]) >= 1


async def status_of(front: Front, path: str) -> int:
    reader, writer = await front.raw(f"GET {path} HTTP/1.1\r\nconnection: close")
    answer = await reader.read()
    writer.close()
    return int(answer.split()[1])


async def post(front: Front, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"http://127.0.0.1:{front.port}{path}", json=body)
        return answer.status_code, answer.json()


async def test_tokens_are_those_that_are_counted_and_give_the_text_back(
    front: Front, client: openai.AsyncOpenAI
) -> None:
    turns: Any = [{"role": "user", "content": "hello world"}]
    _, chat = await post(front, "/tokenize", {"messages": turns})
    _, text = await post(front, "/tokenize", {"prompt": "hello world", "model": "tiny"})
    answers = (
        await client.chat.completions.create(model="tiny", messages=turns, max_completion_tokens=1),
        await client.completions.create(model="tiny", prompt="hello world", max_tokens=1),
    )
    for tokens, answer in zip((chat, text), answers, strict=True):
        assert answer.usage is not None
        assert tokens["count"] == len(tokens["tokens"]) == answer.usage.prompt_tokens
        assert tokens["max_model_len"] == 512
    assert (await post(front, "/detokenize", {"tokens": text["tokens"]})) == (200, {"prompt": "hello world"})
    status, laid_out = await post(front, "/detokenize", {"tokens": chat["tokens"]})
    assert (status, "hello world" in laid_out["prompt"]) == (200, True)
    assert len(laid_out["prompt"]) > len("hello world"), "the template's own tokens are shown"
    assert await post(front, "/tokenize", {"prompt": laid_out["prompt"], "add_special_tokens": False}) == (200, chat)
    assert (await post(front, "/tokenize", {"prompt": ""}))[1]["count"] == 0


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "tools": [{"type": "function", "function": {"name": "a"}}]}, "tools"),
        ("/tokenize", {"prompt": "x", "return_token_strs": True}, "return_token_strs"),
        ("/tokenize", {"prompt": "x", "continue_final_message": True}, "continue_final_message"),
        (
            "/tokenize",
            {"messages": [{"role": "user", "content": "x"}], "add_special_tokens": True},
            "add_special_tokens",
        ),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model"),
        ("/detokenize", {"tokens": [384]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens[0]"),
        ("/detokenize", {"tokens": [2**32]}, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
async def test_other_bodies_are_refused(front: Front, path: str, body: dict[str, Any], param: str) -> None:
    status, answer = await post(front, path, body)
    assert (status, answer["error"]["param"]) == (404 if param == "model" else 400, param)


SCHEMA = {"name": "bad", "schema": {"type": "object", "properties": {"a": {"format": "ean"}}}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.org/x.png"}}


@pytest.mark.parametrize(
    ("members", "param", "code"),
    [
        ({"functions": [{"name": "look_up"}]}, "functions", "unsupported_value"),
        ({"tool_choice": "required"}, "tool_choice", "invalid_argument"),
        ({"response_format": {"type": "yaml"}}, "response_format.type", "invalid_value"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "invalid_value"),
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
        ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages[0].content[0]", "invalid_value"),
        ({"messages": [{"role": "poet", "content": "x"}]}, "messages[0].role", "invalid_value"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages[0].name", "unsupported_value"),
        ({"messages": []}, "messages", "invalid_argument"),
        ({"temperature": "hot"}, "temperature", "invalid_value"),
        ({"temperature": -1}, "temperature", "invalid_argument"),
        ({"temperature": 2.1}, "temperature", "invalid_value"),
        ({"top_p": 1.5}, "top_p", "invalid_argument"),
        ({"top_p": -0.5}, "top_p", "invalid_argument"),
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
async def test_a_wrong_member_of_a_chat_is_named(
    client: openai.AsyncOpenAI, members: dict[str, Any], param: str, code: str
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.chat.completions.create(**CHAT | members)
    error = caught.value
    assert (error.param, error.code, error.type) == (param, code, "invalid_request_error")
    assert error.body["message"].startswith(f"{param}: ")  # type: ignore[index]


async def test_another_model_or_adapter_is_not_found(client: openai.AsyncOpenAI) -> None:
    for members, param, code in (
        ({"model": "gpt-4o"}, "model", "model_not_found"),
        ({"extra_body": {"kolm": {"adapter": "french"}}}, "kolm.adapter", "adapter_not_found"),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            await client.chat.completions.create(**CHAT | members)
        assert (caught.value.param, caught.value.code) == (param, code)


async def test_a_stream_that_is_refused_has_the_status_of_its_refusal(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await streamed(client, **CHAT | {"top_p": 1.0000001})
    assert caught.value.param == "top_p"
    assert "1.0000001" in caught.value.message


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
    answered, error = await posted(front, json.dumps(CHAT).encode(), "text/plain")
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
