"""Outputs that the engine could not bring to their end: an error of the API that was called, with the receipt."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio

from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.integration.http.front import Front, claude_of, fronting
from tests.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

TURNS: Any = [{"role": "user", "content": "broken"}]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front() -> AsyncIterator[Front]:
    with serving(mount(ScriptedGeneration())) as served:
        async with fronting(served.address) as front:
            yield front


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])
async def test_a_failed_output_is_an_error_of_its_api_with_its_receipt(front: Front, path: str) -> None:
    prompts = {"/v1/completions": {"prompt": "broken"}, "/v1/responses": {"input": "broken"}}
    body = {"max_tokens": 9} if path == "/v1/messages" else {}
    body |= prompts.get(path, {"messages": TURNS})
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"http://127.0.0.1:{front.port}{path}", json=body)
        streamed = await http.post(f"http://127.0.0.1:{front.port}{path}", json=body | {"stream": True})
    told = answer.json()
    assert (answer.status_code, told["error"]["type"], told["error"]["code"]) == (500, "api_error", "generation_failed")
    assert told.get("type") == ("error" if path == "/v1/messages" else None)
    (receipt,) = told["kolm"]["receipts"]
    assert receipt["receipt_id"] == answer.headers["x-receipt-id"]
    events = [json.loads(line[6:]) for line in streamed.text.splitlines() if line.startswith("data: ")]
    assert streamed.status_code == 200
    last = events[-1]
    if path == "/v1/responses":
        assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
        assert last["response"]["error"]["code"] == "server_error"
        assert last["response"]["kolm"]["receipts"] == told["kolm"]["receipts"]
    else:
        assert last["error"] == told["error"]
        assert last["kolm"]["receipts"] == told["kolm"]["receipts"]


async def test_both_packages_raise_it(front: Front) -> None:
    import anthropic

    asked: Any = {"model": "scripted", "messages": TURNS}
    with pytest.raises(openai.InternalServerError):
        await front.client.chat.completions.create(**asked)
    with pytest.raises(openai.APIError):
        async for _ in await front.client.chat.completions.create(**asked, stream=True):
            pass
    with pytest.raises(openai.APIError):
        async for _ in await front.client.completions.create(model="scripted", prompt="broken", stream=True):
            pass
    events = [each async for each in await front.client.responses.create(model="scripted", input="broken", stream=True)]
    assert events[-1].type == "response.failed"
    async with claude_of(front) as claude:
        with pytest.raises(anthropic.InternalServerError):
            await claude.messages.create(**asked, max_tokens=9)
        with pytest.raises(anthropic.APIStatusError):
            async for _ in await claude.messages.create(**asked, max_tokens=9, stream=True):
                pass
