"""Text of token streams: whatever ids a model emits, decoding never fails."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models
from transformers import PreTrainedTokenizerFast

from services.generation.engine.text.tokenizer import Tokenizer

BEGIN, FIRST_BYTE, WORDS = 1, 3, ("▁", "a", "b", "▁the", "é", "漢")
A, THE = FIRST_BYTE + 256 + WORDS.index("a"), FIRST_BYTE + 256 + WORDS.index("▁the")


def byte_fallback() -> FastTokenizer:
    """Built as those of Llama 2 and Mistral 7B are: words with a space mark, and a token for every byte."""
    tokens = ("<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS)
    fast = FastTokenizer(
        models.BPE(vocab={t: i for i, t in enumerate(tokens)}, merges=[], unk_token="<unk>", byte_fallback=True)
    )
    fast.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return fast


def saved(fast: FastTokenizer, directory: Path) -> Tokenizer:
    PreTrainedTokenizerFast(tokenizer_object=fast, bos_token="<s>", eos_token="</s>").save_pretrained(directory)
    return Tokenizer(directory)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return saved(byte_fallback(), tmp_path_factory.mktemp("bytes"))


def streamed(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None) -> str:
    stream = tokenizer.stream(prompt or [])
    return "".join(stream.feed(token) for token in ids) + stream.flush()


def test_a_character_of_several_byte_tokens_comes_out_whole(tokenizer: Tokenizer) -> None:
    assert streamed(tokenizer, [A, *(FIRST_BYTE + byte for byte in "漢".encode()), THE]) == "a漢 the"


def test_bytes_that_are_no_utf8_become_replacements_and_decoding_goes_on(tokenizer: Tokenizer) -> None:
    quote, lone = FIRST_BYTE + ord("'"), FIRST_BYTE + 0xA0
    assert streamed(tokenizer, [A, quote, lone, A]) == "a'\N{REPLACEMENT CHARACTER}a"


def test_the_space_that_begins_an_output_is_kept_where_a_prompt_stands_before_it(tokenizer: Tokenizer) -> None:
    assert streamed(tokenizer, [THE, A]) == "thea"
    assert streamed(tokenizer, [THE, A], prompt=[A, A]) == " thea"
    assert streamed(tokenizer, [THE, A], prompt=[BEGIN]) == "thea"


def test_the_space_after_bytes_that_are_no_utf8_is_kept(tokenizer: Tokenizer) -> None:
    quote, lone = FIRST_BYTE + ord("'"), FIRST_BYTE + 0xA0
    assert streamed(tokenizer, [A, quote, lone, THE]) == "a'\N{REPLACEMENT CHARACTER} the"


def test_a_prompt_that_ends_within_a_character_spoils_nothing(tokenizer: Tokenizer) -> None:
    first, *others = (FIRST_BYTE + byte for byte in "漢".encode())
    assert streamed(tokenizer, [*others, A], prompt=[A, first]).endswith("a")


ANY_IDS = st.lists(st.integers(0, FIRST_BYTE + 256 + len(WORDS) + 3), max_size=40)


@given(ANY_IDS, ANY_IDS)
@settings(deadline=None)
def test_no_stream_of_ids_raises(tokenizer: Tokenizer, ids: list[int], prompt: list[int]) -> None:
    streamed(tokenizer, ids, prompt)


def test_a_prompt_is_neither_cut_nor_padded_whatever_the_file_says(tmp_path: Path) -> None:
    cutting, padding = byte_fallback(), byte_fallback()
    cutting.enable_truncation(2)
    padding.enable_padding(length=9)
    assert saved(cutting, tmp_path / "cutting").encode("abab") == saved(padding, tmp_path / "padding").encode("abab")
