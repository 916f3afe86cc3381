"""`suffix` of completions: a model with marks for it fills in the middle, others refuse."""

import json
from pathlib import Path
from typing import Any

import openai
import pytest

from ledger.bundle.receipt_file import ReceiptFile
from services.cli.verify.checks import compared_texts
from services.generation.engine.text.tokenizer import Tokenizer
from tests.fakes.tiny_model import make_tiny_model

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARKS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|fim_pad|>")
ASKED: dict[str, Any] = {
    "model": "tiny", "prompt": "def add(a, b):\n    ", "suffix": "\n    return c", "max_tokens": 12, "temperature": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_tiny_model(tmp_path_factory.mktemp("infill"), vocab=400)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    extra = [each for each in tokenizer["added_tokens"] if each["content"].startswith("<extra")]
    for token, content in zip(extra, MARKS, strict=False):
        token.update(content=content, special=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


async def test_the_middle_is_what_follows_the_marks(client: openai.AsyncOpenAI, base: Path) -> None:
    files = {"kolm": {"receipt_files": True}}
    answer = await client.completions.create(**ASKED, extra_body=files)
    prompt = "<|fim_prefix|>def add(a, b):\n    <|fim_suffix|>\n    return c<|fim_middle|>"
    raw = await client.completions.create(**ASKED | {"prompt": prompt, "suffix": None})
    assert answer.choices[0].text == raw.choices[0].text
    assert answer.usage == raw.usage
    chunks = [chunk async for chunk in await client.completions.create(**ASKED, stream=True)]
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
    file = ReceiptFile.from_bytes(answer.model_extra["kolm"]["receipts"][0]["file"].encode())  # type: ignore[index]
    assert file.sent == ({"role": "prompt", "content": ASKED["prompt"], "suffix": ASKED["suffix"]},)
    assert compared_texts(file.receipt(), file.content, file.sent, file.text, base).same is True
    other = [file.sent[0] | {"suffix": "x"}]
    assert compared_texts(file.receipt(), file.content, other, file.text, base).same is False


async def test_an_empty_prompt_may_have_a_suffix(client: openai.AsyncOpenAI) -> None:
    assert (await client.completions.create(**ASKED | {"prompt": ""})).choices[0].text


async def test_a_token_that_ends_a_middle_ends_the_answer(client: openai.AsyncOpenAI, base: Path) -> None:
    pad = Tokenizer(base).markup["<|fim_pad|>"]
    answer = await client.completions.create(
        **ASKED, logit_bias={str(pad): 100}, extra_body={"kolm": {"receipt_files": True}, "stop_token_ids": [7, 7]}
    )
    assert (answer.choices[0].text, answer.choices[0].finish_reason) == ("", "stop")
    file = ReceiptFile.from_bytes(answer.model_extra["kolm"]["receipts"][0]["file"].encode())  # type: ignore[index]
    assert file.receipt().sampling.stop_token_ids == (7, pad)


async def test_token_ids_have_no_suffix(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        await client.completions.create(**ASKED | {"prompt": [5, 6]})
    assert refused.value.param == "suffix"
