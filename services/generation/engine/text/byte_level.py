"""Byte-level BPE, GPT-2's: bytes are spelled as 256 printable characters, and pairs are merged in a published order."""

from __future__ import annotations

from dataclasses import dataclass

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.generation.target.errors import ConfigInvalid
from services.generation.target.files.gguf_metadata import GgufMetadata

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _CONTRACTIONS
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Splitting:
    """`expressions` apply one after the other; each match is a word, and so is the text between two."""

    expressions: tuple[str, ...]
    whole_words: bool = False  # a word that is in the vocabulary is a token, whatever the merges would make of it
    composed: bool = False  # text is brought into Unicode's form NFC first
    begins: bool = False  # a prompt begins with BOS where the file does not say


_SMOLLM = Splitting((r"\p{N}", _GPT2))
_LLAMA_BPE = Splitting((_LLAMA3,), whole_words=True, begins=True)
_QWEN = Splitting((_QWEN2,), composed=True)

SPLITTINGS = {
    "gpt-2": Splitting((_GPT2,)),
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "qwen2": _QWEN,
    "deepseek-r1-qwen": Splitting((_QWEN2,)),
    "dbrx": Splitting((_LLAMA3,)),
    "gpt-4o": Splitting((_GPT4O,)),
    "tekken": Splitting((_TEKKEN,), whole_words=True, begins=True),
}
"""By `tokenizer.ggml.pre`."""


def splitting_of(metadata: GgufMetadata) -> Splitting:
    """Raises ConfigInvalid where the file does not name one that is supported."""
    name = metadata.text("tokenizer.ggml.pre", "")
    if name not in SPLITTINGS:
        raise ConfigInvalid(
            f"{metadata.path}: tokenizer.ggml.pre is {name[:80]!r}, which is not supported; supported: "
            f"{', '.join(SPLITTINGS)}; old converters left it out: use a newer file of the same model"
        )
    return SPLITTINGS[name]


def byte_level(metadata: GgufMetadata, vocabulary: dict[str, int]) -> Tokenizer:
    """Raises ConfigInvalid, and whatever the tokenizers library says of merges that do not fit the vocabulary."""
    splitting = splitting_of(metadata)
    merges = published_merges(metadata)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=splitting.whole_words))
    if splitting.composed:
        tokenizer.normalizer = normalizers.NFC()
    words = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in splitting.expressions]
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, spelled])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def published_merges(metadata: GgufMetadata) -> list[tuple[str, str]]:
    """In their order. Raises ConfigInvalid."""
    return [_pair(metadata, merge) for merge in metadata.texts("tokenizer.ggml.merges")]


def _pair(metadata: GgufMetadata, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ConfigInvalid(f"{metadata.path}: tokenizer.ggml.merges: {merge[:80]!r}; expected two tokens and a space")
    return left, right
