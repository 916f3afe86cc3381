"""Tokenizers, of directories and of GGUF files: ids, chat templates, text token by token."""

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as FastTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast
from transformers.models.gemma.tokenization_gemma import GemmaTokenizer
from transformers.models.qwen3_5.tokenization_qwen3_5 import Qwen3_5Tokenizer
from transformers.tokenization_utils_base import generate_merges

from services.generation.engine.text.gguf_tokenizer import SPLITTINGS, gguf_tokenizer
from services.generation.engine.text.token_bytes import token_bytes
from services.generation.engine.text.tokenizer import StreamDecoder, Tokenizer
from services.generation.target.errors import ConfigInvalid, WeightsInvalid
from services.generation.target.families import FAMILIES
from services.generation.target.files.gguf_file import GgufFile
from tests.examples import examples
from tests.fakes.tiny_gguf import make_tiny_gguf, tokenizer_metadata, write_gguf
from tests.fakes.tiny_model import tiny_tokenizer
from tests.vectors.make_tokens import SPLITS, metadata_of, plain, sentence_piece_metadata

BEGIN, FIRST_BYTE, WORDS = 1, 3, ("▁", "a", "b", "▁the", "é", "漢")
A, THE = FIRST_BYTE + 256 + WORDS.index("a"), FIRST_BYTE + 256 + WORDS.index("▁the")


def byte_fallback() -> FastTokenizer:
    """Built like the tokenizers of Llama 2 and Mistral 7B: words with a space mark, and a token for every byte."""
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


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tiny")
    tiny_tokenizer(384).save_pretrained(folder)
    return Tokenizer(folder)


def streamed(tokenizer: Tokenizer, ids: list[int], prompt: list[int] | None = None) -> str:
    stream = tokenizer.stream(prompt or [])
    return "".join(stream.feed(token) for token in ids) + stream.flush()


@settings(max_examples=examples(100), deadline=None)
@given(text=st.text(max_size=12))
def test_the_bytes_of_tokens_are_those_of_their_text(tokenizer: Tokenizer, tiny: Tokenizer, text: str) -> None:
    ids = tiny.encode_output(text)
    assert b"".join(tiny.bytes_of(each) or b"" for each in ids) == tiny.decode(ids).encode()
    ids = [*(FIRST_BYTE + byte for byte in text.encode()), THE, A, FIRST_BYTE + 256]
    assert b"".join(tokenizer.bytes_of(each) or b"" for each in ids) == streamed(tokenizer, ids, [A]).encode()


def test_the_bytes_of_a_special_token_and_of_an_unknown_character(tokenizer: Tokenizer, tiny: Tokenizer) -> None:
    assert tokenizer.bytes_of(BEGIN) == b""
    (unknown,) = {tiny.decode([each]) for each in tiny.encode_output("\ufffd")}
    assert unknown == "\ufffd"
    assert token_bytes("<0xF0>", "\ufffd") == b"\xf0"
    assert token_bytes("\ufffd", "\ufffd") == "\ufffd".encode()
    assert token_bytes("odd", "\ufffd") is None


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


ANY_IDS = st.lists(st.integers(0, FIRST_BYTE + 256 + len(WORDS) + 3), max_size=40)


@given(ANY_IDS, ANY_IDS)
@settings(deadline=None)
def test_no_stream_of_ids_raises(tokenizer: Tokenizer, ids: list[int], prompt: list[int]) -> None:
    streamed(tokenizer, ids, prompt)


TINY_BYTES = (175, 127, 125, 166, 124, 99, 131, 106)  # U+FFFD, 漢 and é
RUNS = st.lists(
    st.sampled_from((0, BEGIN, A, THE, 400, *TINY_BYTES, *(FIRST_BYTE + byte for byte in "\ufffd漢é\n".encode())))
)


@given(runs=st.lists(st.tuples(RUNS, st.integers(1, 20)), max_size=6), prompt=ANY_IDS, which=st.booleans())
@settings(max_examples=examples(200), deadline=None)
def test_a_long_text_that_stays_open_is_streamed_as_the_library_does(
    tokenizer: Tokenizer, tiny: Tokenizer, runs: list[tuple[list[int], int]], prompt: list[int], which: bool
) -> None:
    short, long = ((tokenizer, tiny)[which].stream(prompt) for _ in range(2))
    ids = [token for run, times in runs for token in run * times]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamDecoder, "_stays_open", lambda *_: False)
        patch.setattr(StreamDecoder, "_is_textless", lambda *_: False)
        expected = [long.feed(token) for token in ids]
    assert [short.feed(token) for token in ids] == expected
    assert short.flush() == long.flush()


@pytest.mark.parametrize("token", [FIRST_BYTE + 0xAC, BEGIN, 9999])
def test_tokens_without_text_are_not_decoded_again_with_each_token(tokenizer: Tokenizer, token: int) -> None:
    stream = tokenizer.stream([A])
    stream._stream = library = Mock(step=Mock(return_value=None))
    text = "".join(stream.feed(token) for _ in range(200)) + stream.flush()
    assert library.step.call_count <= 20
    assert text in ("", "\N{REPLACEMENT CHARACTER}" * 200)


def test_a_prompt_is_neither_cut_nor_padded_whatever_the_file_says(tmp_path: Path) -> None:
    cutting, padding = byte_fallback(), byte_fallback()
    cutting.enable_truncation(2)
    padding.enable_padding(length=9)
    assert saved(cutting, tmp_path / "cutting").encode("abab") == saved(padding, tmp_path / "padding").encode("abab")


VECTORS = json.loads((Path(__file__).parents[4] / "vectors" / "tokens" / "llama_cpp.json").read_text("utf-8"))


def written(path: Path, metadata: dict[str, Any]) -> Path:
    write_gguf(path, "llama", metadata, {})
    return path


@pytest.mark.slow
@pytest.mark.parametrize("split", SPLITS)
def test_ids_are_those_of_llama_cpp(tmp_path: Path, smollm2: Path, split: str) -> None:
    path = smollm2 if split == "smollm" else written(tmp_path / "m.gguf", metadata_of(smollm2, split))
    fast = gguf_tokenizer(path).backend_tokenizer
    expected = VECTORS["byte_level"][split]
    assert len(expected) == SPLITS[split]
    found = {text: fast.encode(text, add_special_tokens=False).ids for text in VECTORS["texts"][: len(expected)]}
    assert found == dict(zip(found, expected, strict=True))


def test_smollm2_splits_digits_like_its_published_tokenizer(smollm2: Path) -> None:
    """tokenizer.json of SmolLM2: Digits(individual_digits), then ByteLevel."""
    metadata = GgufFile.open(smollm2).metadata
    tokens, merges = metadata.texts("tokenizer.ggml.tokens"), metadata.texts("tokenizer.ggml.merges")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    published = FastTokenizer(models.BPE({token: index for index, token in enumerate(tokens)}, pairs))
    published.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    published.decoder = decoders.ByteLevel()
    ours = gguf_tokenizer(smollm2).backend_tokenizer
    for text in (text for text in plain(VECTORS["texts"]) if "<repo_name>" not in text):
        assert ours.encode(text).ids == published.encode(text).ids
        assert ours.decode(ours.encode(text).ids) == text


def test_qwen3_5_splits_as_transformers_does(smollm2: Path, tmp_path: Path) -> None:
    """A mark belongs to the word of its letter, which Qwen2 ends before it."""
    metadata = GgufFile.open(smollm2).metadata
    tokens, merges = metadata.texts("tokenizer.ggml.tokens"), metadata.texts("tokenizer.ggml.merges")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    published = Qwen3_5Tokenizer(vocab={token: index for index, token in enumerate(tokens)}, merges=pairs)
    ours = gguf_tokenizer(written(tmp_path / "m.gguf", metadata_of(smollm2, "qwen35"))).backend_tokenizer
    for text in (text for text in plain(VECTORS["texts"]) if "<repo_name>" not in text):
        found = ours.encode(text, add_special_tokens=False).ids
        assert found == published.backend_tokenizer.encode(text, add_special_tokens=False).ids, text


@pytest.mark.parametrize(
    ("split", "words"),
    [
        ("gpt-4o", ["Hello", "World's", "ĠIT'LL", "Ġ", "123", "45", "Ġ//ĊĊ", "Ã©tÃ©"]),
        ("llama4", ["Hello", "World's", "ĠIT'LL", "Ġ", "123", "45", "Ġ//ĊĊ", "Ã©tÃ©"]),
        ("dbrx", ["HelloWorld", "'s", "ĠIT", "'LL", "Ġ", "123", "45", "Ġ//ĊĊ", "Ã©tÃ©"]),
        ("pixtral", ["HelloWorld", "'s", "ĠIT", "'LL", "Ġ", "123", "45", "Ġ//ĊĊ", "Ã©tÃ©"]),
        ("seed-coder", ["HelloWorld", "'s", "ĠIT", "'LL", "Ġ", *"12345", "Ġ//", "ĊĊ", "Ã©tÃ©"]),
        ("exaone4", ["HelloWorld", "'s", "ĠIT", "'", "LL", "Ġ12345", "Ġ//", "Ċ", "Ċ", "Ã©tÃ©"]),
        ("granite-docling", ["HelloWorld", "'s", "ĠIT", "'", "LL", "Ġ12345", "Ġ//", "Ċ", "Ċ", "Ã©tÃ©"]),
        ("superbpe", ["HelloWorld'sĠIT'LLĠ", "12", "345", "Ġ//ĊĊÃ©tÃ©"]),
    ],
)
def test_words_are_those_of_the_published_expressions(tmp_path: Path, split: str, words: list[str]) -> None:
    """The expressions of o200k_base (gpt-4o), cl100k_base (dbrx), Llama 3, Seed-Coder, GPT-2 and SuperBPE."""
    path = written(tmp_path / "m.gguf", tokenizer_metadata(384) | {"tokenizer.ggml.pre": split})
    splitter = gguf_tokenizer(path).backend_tokenizer.pre_tokenizer
    assert splitter is not None
    found = [word for word, _ in splitter.pre_tokenize_str("HelloWorld's IT'LL 12345 //\n\nété")]
    assert found == words


def test_sentence_piece_ids_are_those_of_llama_cpp(tmp_path: Path) -> None:
    path = written(tmp_path / "m.gguf", sentence_piece_metadata(VECTORS["pieces"]))
    fast = gguf_tokenizer(path).backend_tokenizer
    texts = plain(VECTORS["texts"])
    assert {text: fast.encode(text).ids for text in texts} == dict(zip(texts, VECTORS["sentence_piece"], strict=True))
    for text in texts:
        assert fast.decode(fast.encode(text).ids) == text


def test_gemma_s_ids_are_those_of_its_published_tokenizer(tmp_path: Path) -> None:
    metadata = gemma_metadata()
    fast = gguf_tokenizer(written(tmp_path / "m.gguf", metadata)).backend_tokenizer
    vocabulary = {token: index for index, token in enumerate(metadata["tokenizer.ggml.tokens"])}
    merges = [tuple(merge.split(" ")) for merge in metadata["tokenizer.ggml.merges"]]
    published = GemmaTokenizer(vocabulary, merges, bos_token="<s>", eos_token="</s>", pad_token="</s>", mask_token=None)
    for text in plain(VECTORS["texts"]):
        ids = fast.encode(text, add_special_tokens=False).ids
        assert ids == published.backend_tokenizer.encode(text, add_special_tokens=False).ids
        assert fast.decode(ids) == text


def test_a_prompt_of_gemma_begins_with_bos_whatever_the_file_says(tmp_path: Path) -> None:
    metadata = gemma_metadata() | {"tokenizer.ggml.add_bos_token": False}
    tokenizer = Tokenizer(written(tmp_path / "m.gguf", metadata))
    assert tokenizer.encode("a")[0] == metadata["tokenizer.ggml.bos_token_id"]


def gemma_metadata() -> dict[str, Any]:
    """SentencePiece's vocabulary with its merges named, as Gemma 4's files have them."""
    metadata = sentence_piece_metadata(VECTORS["pieces"])
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    merges = generate_merges(
        {token: index for index, token in enumerate(tokens)}, dict(zip(tokens, scores, strict=True))
    )
    return metadata | {
        "tokenizer.ggml.model": "gemma4",
        "tokenizer.ggml.merges": [f"{left} {right}" for left, right in merges],
    }


def test_it_reads_like_the_same_tokenizer_of_a_directory(tmp_path: Path) -> None:
    path = make_tiny_gguf(tmp_path / "m.gguf")
    tiny_tokenizer(384).save_pretrained(tmp_path / "directory")
    ours, theirs = Tokenizer(path), Tokenizer(tmp_path / "directory")
    messages = [{"role": "user", "content": "What is <extra 3> in the ledger?"}]
    assert ours.has_chat_template
    assert ours.encode_chat(messages) == theirs.encode_chat(messages)
    for text in ("The ledger <|end|>keeps 17 receipts.\n", "<extra 0><extra 1>", ""):
        ids = ours.encode(text)
        assert ids == theirs.encode(text)
        assert ours.decode(ids) == theirs.decode(ids)
    with pytest.raises(ValueError, match="unknown role"):
        ours.encode_chat([{"role": "stranger", "content": ""}])


@pytest.mark.parametrize(
    ("fields", "begins", "ends"),
    [
        ({}, False, False),
        ({"tokenizer.ggml.pre": "llama-bpe"}, True, False),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False, False),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.add_eos_token": True}, True, True),
        ({"tokenizer.ggml.add_bos_token": True, "tokenizer.ggml.bos_token_id": 384}, False, False),
    ],
)
def test_special_tokens_surround_a_text_as_the_file_asks(
    tmp_path: Path, fields: dict[str, Any], begins: bool, ends: bool
) -> None:
    metadata = tokenizer_metadata(384) | {"tokenizer.ggml.bos_token_id": 2} | fields
    tokenizer = Tokenizer(written(tmp_path / "m.gguf", metadata))
    assert tokenizer.encode("a") == [2] * begins + tokenizer.fast.encode("a", add_special_tokens=False).ids + [1] * ends


def test_whole_words_of_the_vocabulary_stay_whole_where_the_split_says_so(tmp_path: Path) -> None:
    metadata = tokenizer_metadata(384)
    metadata["tokenizer.ggml.tokens"][383], metadata["tokenizer.ggml.token_type"][383] = "zqzq", 1  # no merge makes it
    metadata["tokenizer.ggml.merges"] = metadata["tokenizer.ggml.merges"][:20]
    for split, whole in (("gpt-2", False), ("llama-bpe", True)):
        path = written(tmp_path / "m.gguf", metadata | {"tokenizer.ggml.pre": split})
        assert (Tokenizer(path).encode("zqzq") == [383]) is whole


def setting(key: str, value: Any) -> Callable[[dict[str, Any]], object]:
    return lambda metadata: metadata.update({f"tokenizer.ggml.{key}": value})


def repeat_a_token(metadata: dict[str, Any]) -> None:
    metadata["tokenizer.ggml.tokens"][9] = metadata["tokenizer.ggml.tokens"][8]


def use_sentence_piece(**fields: Any) -> Callable[[dict[str, Any]], object]:
    def change(metadata: dict[str, Any]) -> None:
        metadata |= sentence_piece_metadata(VECTORS["pieces"])
        metadata |= {f"tokenizer.ggml.{key}": value for key, value in fields.items()}

    return change


FAULTS: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no tokenizer": (lambda m: m.pop("tokenizer.ggml.model"), r"tokenizer\.ggml\.model is missing"),
    "an unknown kind": (setting("model", "bert"), "model is 'bert'; expected one of gpt2, llama"),
    "an unknown split": (setting("pre", "default"), "pre is 'default', .* supported: gpt-2, "),
    "no split": (lambda m: m.pop("tokenizer.ggml.pre"), "pre is '', which is not supported"),
    "no tokens": (lambda m: m.pop("tokenizer.ggml.tokens"), r"tokenizer\.ggml\.tokens is missing"),
    "tokens that are numbers": (setting("tokens", [1, 2]), "tokens is a list of 2; expected a list of texts"),
    "a token twice": (repeat_a_token, r"tokenizer\.ggml\.tokens: "),
    "types of fewer tokens": (setting("token_type", [1, 2]), "token_type is a list of 2; expected one for each of 384"),
    "a merge of one token": (setting("merges", ["ab"]), "merges: 'ab'; expected two tokens and a space"),
    "a merge of strangers": (setting("merges", ["zzz yyy"]), "the tokenizer does not load"),
    "a flag that is none": (setting("add_bos_token", 1), "add_bos_token is 1; expected true or false"),
    "scores of fewer tokens": (use_sentence_piece(scores=[0.5]), "scores is a list of 1"),
    "an unknown token outside": (use_sentence_piece(unknown_token_id=10**6), "expected an id of the vocabulary"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_tokenizer_that_cannot_be_built_says_why(tmp_path: Path, fault: str) -> None:
    change, words = FAULTS[fault]
    metadata = tokenizer_metadata(384)
    change(metadata)
    path = written(tmp_path / "m.gguf", metadata)
    with pytest.raises(ConfigInvalid, match=words) as refused:
        Tokenizer(path)
    assert str(path) in str(refused.value)


def test_a_file_that_is_none_is_refused_before_its_tokenizer_is(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"junk")
    with pytest.raises(WeightsInvalid, match="not a GGUF file"):
        Tokenizer(tmp_path / "m.gguf")


def folder(path: Path, fast: FastTokenizer, kind: str, **config: Any) -> Path:
    """A directory with this tokenizer.json, of a model of this kind; `config` goes into tokenizer_config.json."""
    PreTrainedTokenizerFast(tokenizer_object=fast).save_pretrained(path)
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    (path / "config.json").write_text(json.dumps({"model_type": kind}))
    return path


CLASSES = ("PreTrainedTokenizerFast", "LlamaTokenizerFast", "Qwen2Tokenizer", "GemmaTokenizerFast", None)


@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gemma3_text", "phi3"])
def test_tokenizer_json_decides_the_ids_whatever_class_the_model_names(tmp_path: Path, kind: str) -> None:
    """Accents stay apart and digits are split one by one: nothing that transformers puts in place does both."""
    fast: FastTokenizer = tiny_tokenizer(384).backend_tokenizer
    fast.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    fast.post_processor = processors.TemplateProcessing(single="<|user|> $A", special_tokens=[("<|user|>", 2)])
    text = "The ledger e\u0301 123 don't"
    for place, name in enumerate(CLASSES):
        config = {"bos_token": "<|user|>", "eos_token": "<|end|>"} | ({"tokenizer_class": name} if name else {})
        read = Tokenizer(folder(tmp_path / str(place), fast, kind, **config))
        assert read.encode(text) == fast.encode(text).ids
        assert read.encode(text)[0] == 2
        assert read.encode_output(text) == fast.encode(text, add_special_tokens=False).ids


def test_what_tokenizer_config_adds_is_there(tmp_path: Path) -> None:
    """Added tokens that tokenizer.json lacks, the template, and special tokens by which templates name them."""
    added = {"384": {"content": "<|more|>", "special": True, "lstrip": False, "rstrip": False, "normalized": False}}
    path = folder(
        tmp_path, tiny_tokenizer(384).backend_tokenizer, "qwen2", tokenizer_class="Qwen2Tokenizer",
        added_tokens_decoder=added, bos_token="<|pad|>",
        chat_template="{{ bos_token }}{{ messages[0].content }}<|more|>",
    )  # fmt: skip
    tokenizer = Tokenizer(path)
    assert tokenizer.markup["<|more|>"] == 384
    assert tokenizer.encode_chat([{"role": "user", "content": ""}]) == [0, 384]


def test_a_class_s_usual_special_tokens_are_the_template_s_where_the_vocabulary_has_them(tmp_path: Path) -> None:
    template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"
    path = folder(tmp_path, byte_fallback(), "llama", tokenizer_class="LlamaTokenizer", chat_template=template)
    assert Tokenizer(path).encode_chat([{"role": "user", "content": ""}]) == [1, 2]


def test_a_folder_and_a_gguf_file_of_one_model_give_the_same_ids(smollm2: Path, tmp_path: Path) -> None:
    """DeepSeek-R1-Distill-Qwen: a model of kind qwen2 whose tokenizer.json does not compose characters."""
    path = written(tmp_path / "m.gguf", metadata_of(smollm2, "deepseek-r1-qwen"))
    file = Tokenizer(path)
    config = {"tokenizer_class": "LlamaTokenizerFast", "bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    directory = Tokenizer(folder(tmp_path / "folder", file.fast, "qwen2", **config))
    for text in plain(VECTORS["texts"]):
        assert directory.encode(text) == file.encode(text)


CONVERTED = {
    "llama": {"llama-bpe", "smollm", "smaug-bpe", "tekken", "falcon3", "refact"},
    "qwen2": {"qwen2", "deepseek-r1-qwen"}, "qwen3": {"qwen2"}, "qwen3moe": {"qwen2"}, "qwen3vl": {"qwen2"},
    "qwen3next": {"qwen2"}, "qwen35": {"qwen35"}, "qwen35moe": {"qwen35"}, "smollm3": {"smaug-bpe"},
    "phi3": {"dbrx", "gpt-4o"}, "gpt-oss": {"gpt-4o"}, "llama4": {"llama4"}, "lfm2": {"lfm2"}, "lfm2moe": {"lfm2"},
    "granite": {"refact"}, "granitemoe": {"refact"}, "granitehybrid": {"refact", "dbrx", "granite-docling"},
    "olmo2": {"dbrx", "superbpe"}, "mistral3": {"tekken"}, "exaone4": {"exaone4"}, "seed_oss": {"seed-coder"},
    "ernie4_5": set(), "gemma2": set(), "gemma3": set(), "gemma4": set(),
}  # fmt: skip
"""`tokenizer.ggml.pre` by architecture, as llama.cpp's converter writes it; SentencePiece's models have none."""


def test_every_family_s_files_name_a_split_that_is_known() -> None:
    names = {family.gguf_name for family in FAMILIES} - {""}
    assert names == CONVERTED.keys()
    assert {name: splits - SPLITTINGS.keys() for name, splits in CONVERTED.items() if splits - SPLITTINGS.keys()} == {}


def test_ollama_s_default_is_the_split_of_the_architecture_where_that_is_known(tmp_path: Path) -> None:
    metadata = tokenizer_metadata(384) | {"tokenizer.ggml.pre": "default"}
    named = tokenizer_metadata(384) | {"tokenizer.ggml.pre": "llama4"}
    write_gguf(tmp_path / "default.gguf", "llama4", metadata, {})
    write_gguf(tmp_path / "named.gguf", "llama4", named, {})
    default, read = (gguf_tokenizer(tmp_path / name).backend_tokenizer for name in ("default.gguf", "named.gguf"))
    assert default.to_str() == read.to_str()
    with pytest.raises(ConfigInvalid, match=r"tokenizer.ggml.pre"):
        gguf_tokenizer(written(tmp_path / "other.gguf", metadata))


PHI = ("<|endoftext|>", "<|assistant|>", "<|system|>", "<|end|>", "<|user|>")


def phi_metadata(model: str) -> dict[str, Any]:
    """Phi-3's (`llama`) or Phi-4-mini's (`gpt2`) special tokens in a small vocabulary."""
    if model == "gpt2":
        metadata = tokenizer_metadata(384) | {"tokenizer.ggml.pre": "gpt-4o"}
        metadata["tokenizer.ggml.tokens"][:4] = [f"<|dummy_{number}|>" for number in range(4)]
        metadata["tokenizer.ggml.merges"] = metadata["tokenizer.ggml.merges"][:20]
    else:
        metadata = sentence_piece_metadata(VECTORS["pieces"])
    metadata["tokenizer.ggml.tokens"][-len(PHI) :] = PHI
    metadata["tokenizer.ggml.token_type"][-len(PHI) :] = [3] * len(PHI)
    metadata.pop("tokenizer.chat_template", None)
    return metadata


@pytest.mark.parametrize(
    ("model", "architecture", "name", "strips"),
    [
        ("llama", "phi3", None, True),
        ("llama", "llama", "Phi 3 Mini 4k Instruct", True),
        ("llama", "llama", "phi-3.5-mini", True),
        ("llama", "llama", "Llama 2", False),
        ("gpt2", "phi3", None, True),
        ("gpt2", "llama", None, False),
    ],
)
def test_phi_s_marks_take_the_blanks_behind_them_as_the_folder_s_do(
    tmp_path: Path, model: str, architecture: str, name: str | None, strips: bool
) -> None:
    """tokenizer.json has `rstrip` on them, which a GGUF file has no place for."""
    metadata = phi_metadata(model) | ({"general.name": name} if name else {})
    write_gguf(tmp_path / "m.gguf", architecture, metadata, {})
    file = Tokenizer(tmp_path / "m.gguf")
    document = json.loads(file.fast.to_str())
    for token in document["added_tokens"]:  # as the folder has them
        token["rstrip"] = strips and token["content"] in {*PHI[1:], *({"</s>"} if model == "llama" else ())}
    folder_s = FastTokenizer.from_str(json.dumps(document))
    text = "<|user|>\n Hi <|end|>\n<|assistant|>\n<|endoftext|> a</s> b"
    assert file.encode(text) == folder_s.encode(text).ids
    assert ("\n" in file.decode_all(file.encode(text))) is not strips


@pytest.mark.parametrize("outside", [None, 10**6])
@pytest.mark.parametrize("names", [("<unk>", "<s>", "</s>"), ("<pad>", "<eos>", "<bos>"), ("<x>", "<y>", "<z>")])
def test_a_sentence_piece_file_without_ids_of_special_tokens_has_the_usual_ones(
    tmp_path: Path, names: tuple[str, str, str], outside: int | None
) -> None:
    metadata = sentence_piece_metadata(VECTORS["pieces"])
    metadata["tokenizer.ggml.tokens"][:3] = names
    for role in ("bos", "eos", "unknown"):
        metadata.pop(f"tokenizer.ggml.{role}_token_id")
        if outside is not None and role != "unknown":  # as in llama.cpp, an id outside of the vocabulary is none
            metadata[f"tokenizer.ggml.{role}_token_id"] = outside
    read = gguf_tokenizer(written(tmp_path / "m.gguf", metadata))
    first, last = (2, 1) if "<bos>" in names else (1, 2)
    assert read.backend_tokenizer.encode("a").ids[0] == first
    assert (read.bos_token, read.eos_token, read.unk_token) == (names[first], names[last], names[0])


@pytest.mark.parametrize("work", ["encode", "encode_output", "encode_plain", "decode"])
def test_a_long_text_leaves_the_interpreter_to_other_threads(tiny: Tokenizer, work: str) -> None:
    text = "the ledger, é and <|end|> 7 漢 " * 30_000
    given: Any = tiny.encode(text[:9000]) * 300 if work == "decode" else text
    thread, turns = threading.Thread(target=getattr(tiny, work), args=(given,)), 0
    thread.start()
    while thread.is_alive():
        turns += 1
        time.sleep(0)
    assert turns > 100


@pytest.mark.parametrize("size", [4095, 4096, 9000])
def test_a_long_text_has_the_library_s_ids(tiny: Tokenizer, size: int) -> None:
    text = ("the ledger, é and <|end|> 7 漢 " * 400)[:size]
    ids = tiny.fast.encode(text, add_special_tokens=False).ids
    assert (tiny.encode(text), tiny.encode_output(text)) == (tiny.fast.encode(text).ids, ids)
    assert tiny.decode_all(ids * 3) == tiny.fast.decode(ids * 3, skip_special_tokens=False)
