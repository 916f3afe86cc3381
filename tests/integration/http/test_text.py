"""`/v1/completions`, `/v1/models` and `/health` by OpenAI's own client."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from openai.types import Completion

from tests.integration.http.front import Front, fronting

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
        assert "".join(choice.logprobs.tokens or ()).startswith(choice.text[:4])
        assert {len(best) for best in choice.logprobs.top_logprobs or ()} <= {1, 2, 3}  # two tokens may have one text
    assert (chunks[-1].choices, chunks[-1].usage is not None) == ([], True)


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
