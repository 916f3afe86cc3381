"""The tokenizer loses nothing, and its chat template renders what training saw."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from demo.toy import tokenizer as bpe
from demo.toy.corpus import chat, passages, tools
from demo.toy.corpus.dialogue import SPECIAL_TOKENS, Message, render

pytestmark = pytest.mark.slow  # a tokenizer is trained


@pytest.fixture(scope="module")
def tokenizer(
    trained_tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory
) -> PreTrainedTokenizerFast:
    """The trained one, written and read again."""
    folder = tmp_path_factory.mktemp("tokenizer")
    trained_tokenizer.save_pretrained(folder)
    return bpe.load(folder)


@pytest.mark.parametrize(
    "text", ["def f(x):\n        return x\n\n\n", "naïve “quotes” 🙂\t\r\n", "  two  spaces  ", "\x00\x7f", "12.50"]
)
def test_any_text_comes_back_byte_for_byte(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_digits_are_tokens_of_their_own(tokenizer: PreTrainedTokenizerFast) -> None:
    assert len(tokenizer.encode("2069")) == 4


def test_special_tokens_have_the_lowest_ids_and_none_is_added_unasked(tokenizer: PreTrainedTokenizerFast) -> None:
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))
    assert not set(tokenizer.encode("plain text")) & set(range(len(SPECIAL_TOKENS)))


@pytest.mark.parametrize("documents", [tools.documents, passages.documents, chat.documents])
def test_the_chat_template_renders_what_training_saw(tokenizer: PreTrainedTokenizerFast, documents: object) -> None:
    assert callable(documents)
    for dialogue in documents("held_out", 20):
        messages = [{"role": m.role, "content": m.content} for m in dialogue]
        assert tokenizer.apply_chat_template(messages, tokenize=False) == render(dialogue)
        opened = tokenizer.apply_chat_template(messages[:-1], tokenize=False, add_generation_prompt=True)
        assert render(dialogue).startswith(str(opened))


def test_the_template_refuses_a_role_that_training_never_saw(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(Exception, match="unknown role: wizard"):
        tokenizer.apply_chat_template([{"role": "wizard", "content": "hello"}], tokenize=False)


def test_the_same_corpus_gives_the_same_tokenizer(trained_tokenizer: PreTrainedTokenizerFast) -> None:
    again = bpe.train(len(trained_tokenizer))
    assert json.loads(again.backend_tokenizer.to_str()) == json.loads(trained_tokenizer.backend_tokenizer.to_str())


def test_the_saved_tokenizer_is_one_that_autotokenizer_loads(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    tokenizer.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    text = render((Message("user", "Hi"),))
    assert loaded.encode(text, add_special_tokens=False) == tokenizer.encode(text, add_special_tokens=False)
