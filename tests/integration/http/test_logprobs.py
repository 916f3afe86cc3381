"""Log-probabilities of tokens that are parts of characters, by OpenAI's own client."""

from typing import Any

import openai
import pytest
from transformers import PreTrainedTokenizerFast

from tests.fakes.tampered_targets import Loader, ScriptedTarget
from tests.fakes.tiny_model import END
from tests.integration.generation.deployment import Deployment

pytestmark = pytest.mark.asyncio(loop_scope="module")

TARGET = ScriptedTarget
TEXT = "😀é\ufffd!!"
ASKED: dict[str, Any] = {"model": "tiny", "max_tokens": 40, "temperature": 0}
PROMPT = "Say: "


@pytest.fixture
def tokens(loader: Loader, deployment: Deployment) -> list[bytes]:
    """The bytes of the tokens of the text; the tiny model has one for each byte of a character that is not ASCII."""
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(deployment.model / "tokenizer.json"))
    target = loader.target
    assert isinstance(target, ScriptedTarget)
    target.prompt = len(tokenizer.encode(PROMPT))
    target.script = tokenizer.encode(TEXT + END, add_special_tokens=False)
    found = [bytes([byte]) for byte in TEXT.encode()]
    assert len(target.script) == len(found) + 1
    return found


def named(token: bytes) -> str:
    return token.decode() if token.isascii() else f"bytes:\\x{token.hex()}"


async def test_parts_of_characters_are_named_by_their_bytes_and_placed_in_the_text(
    client: openai.AsyncOpenAI, tokens: list[bytes]
) -> None:
    asked: dict[str, Any] = ASKED | {"prompt": PROMPT, "logprobs": 5}
    choice = (await client.completions.create(**asked)).choices[0]
    assert choice.text == TEXT
    logprobs: Any = choice.logprobs
    assert logprobs.tokens == [*map(named, tokens), END]
    places = [place for place, character in enumerate(TEXT) for _ in character.encode()]
    assert logprobs.text_offset == [*places, len(TEXT)]
    for name, logprob, best in zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs, strict=True):
        assert len(best) == 5
        assert best[name] == logprob
    chunks = [chunk.choices[0].logprobs async for chunk in await client.completions.create(**asked, stream=True)]
    for member in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        parts = [each for part in chunks if part is not None for each in getattr(part, member)]
        assert parts == getattr(logprobs, member)


async def test_tokens_of_a_stop_string_are_at_the_end_of_the_text(
    client: openai.AsyncOpenAI, tokens: list[bytes]
) -> None:
    asked: dict[str, Any] = ASKED | {"prompt": PROMPT, "logprobs": 0, "stop": "é"}
    choice = (await client.completions.create(**asked)).choices[0]
    assert (choice.text, choice.finish_reason) == ("😀", "stop")
    logprobs: Any = choice.logprobs
    assert logprobs.text_offset == [0, 0, 0, 0, 1, 1]
    chunks = [chunk.choices[0].logprobs async for chunk in await client.completions.create(**asked, stream=True)]
    assert [place for part in chunks if part for place in part.text_offset or ()] == logprobs.text_offset


async def test_chats_have_the_bytes(client: openai.AsyncOpenAI, loader: Loader, tokens: list[bytes]) -> None:
    asked: dict[str, Any] = ASKED | {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
    asked["top_logprobs"] = 5
    counted = await client.chat.completions.create(**asked | {"max_tokens": 1})
    assert isinstance(loader.target, ScriptedTarget)
    loader.target.prompt = counted.usage.prompt_tokens  # type: ignore[union-attr]
    choice = (await client.chat.completions.create(**asked)).choices[0]
    assert choice.message.content == TEXT
    positions: Any = choice.logprobs and choice.logprobs.content
    assert [(each.token, each.bytes) for each in positions] == [
        *((named(token), list(token)) for token in tokens),
        (END, None),
    ]
    assert {len({other.token for other in each.top_logprobs}) for each in positions} == {5}
