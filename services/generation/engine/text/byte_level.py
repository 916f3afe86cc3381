"""Byte-level BPE, GPT-2's: bytes are spelled as 256 printable characters, and pairs are merged in a published order."""

from __future__ import annotations

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from services.generation.engine.text.splits import SPLITTINGS, Splitting
from services.generation.target.errors import ConfigInvalid
from services.generation.target.weights.gguf_metadata import GgufMetadata


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
    merges = [_pair(metadata, merge) for merge in metadata.texts("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=splitting.whole_words))
    if splitting.composed:
        tokenizer.normalizer = normalizers.NFC()
    words = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in splitting.expressions]
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, spelled])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pair(metadata: GgufMetadata, merge: str) -> tuple[str, str]:
    left, space, right = merge.partition(" ")
    if not (left and space and right):
        raise ConfigInvalid(f"{metadata.path}: tokenizer.ggml.merges: {merge[:80]!r}; expected two tokens and a space")
    return left, right
