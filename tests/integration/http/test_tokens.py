"""/tokenize and /detokenize say what a prompt is to the model, in vLLM's members."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest

from services.client import AsyncRuntime, Message, Request
from tests.integration.generation.deployment import Deployment
from tests.integration.http.front import Front

pytestmark = pytest.mark.asyncio(loop_scope="module")


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


async def test_tokens_of_messages_have_the_tools_that_the_model_is_told_of(
    front: Front, client: openai.AsyncOpenAI
) -> None:
    turns: Any = [{"role": "user", "content": "hello"}]
    tools: Any = [{"type": "function", "function": {"name": "clock", "parameters": {"type": "object"}}}]
    _, told = await post(front, "/tokenize", {"messages": turns, "tools": tools})
    answer = await client.chat.completions.create(model="tiny", messages=turns, tools=tools, max_completion_tokens=1)
    assert answer.usage is not None
    assert (
        told["count"] == answer.usage.prompt_tokens > (await post(front, "/tokenize", {"messages": turns}))[1]["count"]
    )
    status, refused = await post(front, "/tokenize", {"messages": turns, "tools": [*tools, *tools]})
    assert (status, refused["error"]["param"]) == (400, "tools[1].function.name")


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "tools": [{"type": "function", "function": {"name": "a"}}]}, "tools"),
        ("/tokenize", {"prompt": "x", "return_token_strs": True}, "return_token_strs"),
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


async def test_the_python_client_has_them_too(deployment: Deployment) -> None:
    async with AsyncRuntime.connect(deployment.generation_address) as runtime:
        tokens = await runtime.tokenize("hello")
        assert await runtime.detokenize(tokens.token_ids) == "hello"
        assert (await runtime.tokenize(Request(messages=[Message("user", "hello")]))).token_ids != tokens.token_ids
