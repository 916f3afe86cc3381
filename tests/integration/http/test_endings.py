"""Outputs that the engine could not bring to their end: an error of the API that was called, with the receipt."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio

from services.client.generation.runtime import AsyncRuntime
from services.http.__main__ import serving as fronted
from services.http.settings import HttpSettings
from tests.integration.cli.scripted import PROMISED, ScriptedGeneration, mount
from tests.integration.http.front import Front, fronting
from tests.serving import serving

pytestmark = pytest.mark.asyncio(loop_scope="module")

TURNS: Any = [{"role": "user", "content": "broken"}]


PATHS = pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"])


def asking(path: str, prompt: str) -> dict[str, Any]:
    """A body of the API with this path."""
    prompts = {"/v1/completions": {"prompt": prompt}, "/v1/responses": {"input": prompt}}
    body: dict[str, Any] = {"max_tokens": 9} if path == "/v1/messages" else {}
    return body | prompts.get(path, {"messages": [{"role": "user", "content": prompt}]})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def front() -> AsyncIterator[Front]:
    with serving(mount(ScriptedGeneration())) as served:
        async with fronting(served.address) as front:
            yield front


@PATHS
async def test_a_failed_output_is_an_error_of_its_api_with_its_receipt(front: Front, path: str) -> None:
    body = asking(path, "broken")
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


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_failed_answer_of_several_choices_has_the_receipts_of_all(front: Front, path: str) -> None:
    async with httpx2.AsyncClient(trust_env=False) as http:
        answer = await http.post(f"http://127.0.0.1:{front.port}{path}", json=asking(path, "broken") | {"n": 2})
    assert (answer.status_code, len(answer.json()["kolm"]["receipts"])) == (500, 2)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_stream_that_lacks_a_choice_ends_with_an_error(front: Front, path: str) -> None:
    body = asking(path, "hello") | {"n": 2, "stream": True}
    async with httpx2.AsyncClient(trust_env=False) as http:
        streamed = await http.post(f"http://127.0.0.1:{front.port}{path}", json=body)
    assert json.loads(streamed.text.strip().splitlines()[-1].removeprefix("data: "))["error"]["type"] == "api_error"


@PATHS
async def test_a_front_that_stops_ends_its_calls_with_an_error_of_their_api(path: str, tmp_path: Path) -> None:
    """A whole answer that is awaited, a stream that has begun, and a body that has not come."""
    generation = ScriptedGeneration()
    with serving(mount(generation)) as served:
        settings = HttpSettings(
            generation=served.address, listen="127.0.0.1:0", ready_file=tmp_path / "ready", grace_seconds=0.0
        )  # fmt: skip
        async with AsyncRuntime.connect(served.address) as runtime, httpx2.AsyncClient(trust_env=False) as http:
            async with fronted(settings, runtime):
                address = (tmp_path / "ready").read_text().strip()
                whole = asyncio.create_task(http.post(f"http://{address}{path}", json=asking(path, "forever")))
                assert await asyncio.to_thread(generation.running.wait, 30.0)
                asked = http.build_request(
                    "POST", f"http://{address}{path}", json=asking(path, "go on") | {"stream": True}
                )
                streamed = await http.send(asked, stream=True)
                lines = streamed.aiter_lines()
                assert await anext(lines)
                reader, writer = await asyncio.open_connection(*address.split(":"))
                head = f"POST {path} HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n"
                writer.write(f"{head}content-length: 99\r\n\r\n{{".encode())
                await writer.drain()
            answer, events = await whole, [json.loads(line[6:]) async for line in lines if line.startswith("data: {")]
            refused = await reader.read()
            writer.close()
    told = answer.json()["error"]
    assert (answer.status_code, told["code"], "retry-after" in answer.headers) == (503, "server_stopping", True)
    assert answer.json().get("type") == ("error" if path == "/v1/messages" else None)
    if path == "/v1/responses":
        assert (events[-1]["type"], events[-1]["response"]["error"]["code"]) == ("response.failed", "server_error")
        assert events[-1]["response"]["kolm"]["receipts"] == [{"receipt_id": PROMISED}]
    else:
        assert events[-1]["error"] == told
        assert events[-1]["kolm"]["receipts"] == [{"receipt_id": PROMISED}]
    assert refused.startswith(b"HTTP/1.1 503 ")


async def test_both_packages_raise_it(front: Front, claude: Any) -> None:
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
    with pytest.raises(anthropic.InternalServerError):
        await claude.messages.create(**asked, max_tokens=9)
    with pytest.raises(anthropic.APIStatusError):
        async for _ in await claude.messages.create(**asked, max_tokens=9, stream=True):
            pass
