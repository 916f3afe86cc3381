"""Prompts whose middle the model writes: marks, order, and texts that spell marks."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers import AddedToken, decoders, models, normalizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from services.generation.engine.text.infill import infill_marks
from services.generation.engine.text.markup import Markup
from services.generation.engine.text.tokenizer import Tokenizer
from tests.fakes.tiny_model import tiny_tokenizer

DEEPSEEK = ("<\uff5cfim\u2581begin\uff5c>", "<\uff5cfim\u2581hole\uff5c>", "<\uff5cfim\u2581end\uff5c>")
FAMILIES = [
    (("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"), False),
    (("<fim_prefix>", "<fim_suffix>", "<fim_middle>"), False),
    (DEEPSEEK, False),
    (("<[fim-prefix]>", "<[fim-suffix]>", "<[fim-middle]>"), True),
    (("[PREFIX]", "[SUFFIX]"), True),
]


def saved(fast: FastTokenizer, folder: Path) -> Tokenizer:
    PreTrainedTokenizerFast(tokenizer_object=fast).save_pretrained(folder)
    return Tokenizer(folder)


def byte_level(*marks: str) -> FastTokenizer:
    fast: FastTokenizer = tiny_tokenizer(384).backend_tokenizer
    fast.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in marks])
    return fast


@pytest.mark.parametrize(("marks", "suffix_first"), FAMILIES, ids=lambda value: str(value)[:16])
def test_marks_stand_in_the_order_of_their_family(tmp_path: Path, marks: tuple[str, ...], suffix_first: bool) -> None:
    tokenizer = saved(byte_level(*marks, "<|fim_pad|>"), tmp_path)
    prefix, suffix, *middle = (tokenizer.markup[mark] for mark in marks)
    before, behind = tokenizer.encode_output("def add(a, b):\n    "), tokenizer.encode_output("\n    return c")
    parts = [[prefix, *before], [suffix, *behind]]
    found = tokenizer.encode_infill("def add(a, b):\n    ", "\n    return c")
    assert found == [*parts[suffix_first], *parts[not suffix_first], *middle]
    assert tokenizer.infill is not None
    assert tokenizer.infill.ends == (tokenizer.markup["<|fim_pad|>"],)


def test_marks_that_the_texts_spell_are_text(tmp_path: Path) -> None:
    marks = FAMILIES[0][0]
    tokenizer = saved(byte_level(*marks), tmp_path)
    found = tokenizer.encode_infill("a<|fim_suffix|>b<|end|>", "<|fim_middle|>")
    assert [index for index in found if index in tokenizer.markup.values()] == [
        tokenizer.markup[each] for each in marks
    ]
    assert (
        tokenizer.decode_all(found) == "<|fim_prefix|>a<|fim_suffix|>b<|end|><|fim_suffix|><|fim_middle|><|fim_middle|>"
    )


@pytest.mark.parametrize("text", ["x = f(y)\n", "<|fim_suffix|>"], ids=["code", "marks"])
def test_a_long_suffix_is_encoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    tokenizer, suffix, encoded = saved(byte_level(*FAMILIES[0][0]), tmp_path), (text * 5000)[:40_000], list[int]()
    encode = Markup.encode

    def counted(markup: Markup, given: str, is_text: Callable[[int], bool]) -> list[int]:
        encoded.append(len(given))
        return encode(markup, given, is_text)

    monkeypatch.setattr(Markup, "encode", counted)
    found = tokenizer.encode_infill("", suffix)
    assert tokenizer.decode(found[2:-1]).count("f") == suffix.count("f")
    assert sum(encoded) < len(suffix) + 10


def test_code_llama_s_prompt_begins_with_bos_and_its_suffix_with_no_blank(tmp_path: Path) -> None:
    """As Code Llama's own code has it: a blank before the prefix, as before any text, and none before the suffix."""
    marks = ("\u2581<PRE>", "\u2581<SUF>", "\u2581<MID>", "\u2581<EOT>")
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"ab", *marks]
    fast = FastTokenizer(
        models.BPE({token: index for index, token in enumerate(tokens)}, [], unk_token="<unk>", byte_fallback=True)
    )
    fast.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    fast.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    fast.add_tokens([AddedToken(mark, special=True, normalized=False) for mark in ("<unk>", "<s>", "</s>", *marks)])
    fast.post_processor = TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    tokenizer = saved(fast, tmp_path)
    blank, a, b, pre, suf, mid, eot = (tokens.index(token) for token in ("\u2581", "a", "b", *marks))
    assert tokenizer.encode_infill("a", "b") == [1, pre, blank, a, suf, b, mid]
    assert tokenizer.encode_infill("a", " b") == [1, pre, blank, a, suf, blank, b, mid]
    assert tokenizer.encode_infill("", "b") == [1, pre, suf, b, mid]
    assert tokenizer.infill is not None
    assert tokenizer.infill.ends == (eot,)


def test_a_tokenizer_without_all_marks_fills_in_nothing(tmp_path: Path) -> None:
    tokenizer = saved(byte_level("<|fim_prefix|>", "<|fim_suffix|>"), tmp_path)
    assert tokenizer.infill is None
    with pytest.raises(ValueError, match="marks"):
        tokenizer.encode_infill("a", "b")
    assert infill_marks(json.loads('{"[SUFFIX]": 1}')) is None
