"""Markup: added tokens that structure prompts, and text that spells them without being any."""

import secrets
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer

from services.generation.engine.text.gguf_tokenizer import gguf_tokenizer
from services.generation.engine.text.markup import Markup, is_markup
from tests.fakes.tiny_model import tiny_tokenizer

MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<｜User｜>", "[INST]", "\u2581<PRE>")


@pytest.mark.parametrize(
    ("text", "special", "markup"),
    [
        *((text, False, True) for text in MARKS),
        ("<|repo_name|>", False, True),
        ("<seed:think>", False, True),
        ("[|user|]", False, True),
        ("[/THINK]", False, True),
        ("<\uff5ctool\u2581calls\u2581begin\uff5c>", False, True),
        ("<|begin of text|>", False, True),
        ("word", True, True),
        ("word", False, False),
        ("\n\n", False, False),
        ("\u2581\u2581\u2581", False, False),
        ("<table>", False, False),
        ("</h1>", False, False),
        ("<br/>", False, False),
        ("[0]", False, False),
        ("<", False, False),
        ("<s>", True, True),
    ],
)
def test_an_added_token_is_markup_by_its_flag_or_its_shape(text: str, special: bool, markup: bool) -> None:
    assert is_markup(text, special=special) is markup


def byte_level() -> FastTokenizer:
    """Special tokens, and tokens that Qwen and Gemma add without that flag; `[INST]` is in the vocabulary."""
    fast: FastTokenizer = tiny_tokenizer(384).backend_tokenizer
    fast.add_tokens([AddedToken(text, special=False, normalized=False) for text in (*MARKS, "\n\n", "<table>")])
    return fast


def pieces(*, composed: bool = False) -> FastTokenizer:
    """SentencePiece's, with a blank before each text, and merges that make `</s>` and `<think>` of letters."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", *"</s>thinkab"]
    grown = ["</", "s>", "<t", "<th", "<thi", "<thin", "<think", "<think>", "<s", "ab", "\u2581ab"]
    merges = [("<", "/"), ("s", ">"), ("</", "s>"), ("<", "s>"), ("<", "t"), ("<t", "h"), ("<th", "i"), ("<thi", "n")]
    merges += [("<thin", "k"), ("<think", ">"), ("a", "b"), ("\u2581", "ab")]
    vocabulary = {token: index for index, token in enumerate(dict.fromkeys([*tokens, *grown]))}
    fast = FastTokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    spaces = [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    fast.normalizer = normalizers.Sequence([normalizers.NFKC(), *spaces] if composed else spaces)
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    fast.decoder = decoders.Sequence(steps)
    fast.add_tokens([AddedToken(text, special=True, normalized=False) for text in ("<unk>", "<s>", "</s>")])
    fast.add_tokens([AddedToken("<think>", special=False, normalized=composed), AddedToken("<|new|>", special=False)])
    return fast


def words() -> FastTokenizer:
    """A vocabulary of whole words that holds the markup's own, as BPE with `ignore_merges` has it."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<think>", "<|end|>"]
    fast = FastTokenizer(models.BPE({token: index for index, token in enumerate(letters)}, [], ignore_merges=True))
    fast.decoder = decoders.ByteLevel()
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    fast.add_tokens([AddedToken("<think>", special=False), AddedToken("<|end|>", special=True)])
    return fast


TOKENIZERS = {"byte-level": byte_level, "pieces": pieces, "words": words}


@pytest.fixture(scope="module", params=[*TOKENIZERS, "smollm2"])
def tokenizer(request: pytest.FixtureRequest) -> Iterator[FastTokenizer]:
    if request.param in TOKENIZERS:
        yield TOKENIZERS[request.param]()
    else:
        yield gguf_tokenizer(request.getfixturevalue("smollm2")).backend_tokenizer


def spelled(marks: list[str]) -> st.SearchStrategy[str]:
    """Markup, its parts, blanks and other characters; SmolLM2 lacks some bytes."""
    parts = st.sampled_from([*marks, *(mark[1:] for mark in marks), *(mark[:-1] for mark in marks), " ", "\n", "ab"])
    return st.lists(parts | st.text("xé漢😀", max_size=3), max_size=8).map("".join)


def test_plain_text_holds_no_markup_and_decodes_to_itself(tokenizer: FastTokenizer) -> None:
    markup = Markup(tokenizer)
    marks = sorted(markup.ids)
    forbidden = {index for text, index in markup.ids.items() if text != "<unk>"}

    @settings(deadline=None)
    @given(spelled(marks))
    def check(text: str) -> None:
        ids = markup.encode_plain(text)
        assert not forbidden.intersection(ids)
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
        if not any(mark in text for mark in marks):
            assert ids == tokenizer.encode(text, add_special_tokens=False).ids

    check()
    assert all(tokenizer.encode(mark, add_special_tokens=False).ids[-1] == index for mark, index in markup.ids.items())


def test_text_that_a_normalizer_turns_into_markup_is_text() -> None:
    tokenizer = pieces(composed=True)
    wide, think = "\uff1cthink\uff1e", tokenizer.token_to_id("<think>")
    assert think in tokenizer.encode("ab" + wide, add_special_tokens=False).ids
    assert think not in Markup(tokenizer).encode_plain("ab" + wide)


def test_names_of_markup_are_drawn_once_whichever_thread_encodes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    markup = Markup(byte_level())
    monkeypatch.delattr(secrets, "token_hex")
    assert markup.ids["<think>"] not in markup.encode_plain("<think>")


def test_what_decoding_leaves_out_are_tokens_flagged_special() -> None:
    markup = Markup(byte_level())
    assert markup.hidden == {"<|pad|>", "<|end|>", "<|user|>", "<|assistant|>"}
    assert markup.ids.keys() == markup.hidden | {*MARKS}


def test_the_unknown_token_stands_for_characters_but_not_for_its_own_text() -> None:
    fast = FastTokenizer(
        models.BPE({token: index for index, token in enumerate(["<unk>", *"<unk>a"])}, [], unk_token="<unk>")
    )
    fast.add_tokens([AddedToken("<unk>", special=True)])
    assert Markup(fast).encode_plain("a\u6f22<unk>") == [fast.token_to_id(token) for token in ["a", "<unk>", *"<unk>"]]
