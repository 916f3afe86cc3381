"""SentencePiece's BPE as Llama 2, Mistral 7B and Gemma use it: spaces are U+2581, and what is unknown falls back to
bytes.
"""

from __future__ import annotations

from tokenizers import Tokenizer, decoders, models, normalizers

from services.generation.engine.text.byte_level import published_merges
from services.generation.target.errors import ConfigInvalid
from services.generation.target.files.gguf_metadata import GgufMetadata

_SPACE = "\u2581"
_LONGEST = 256  # characters of a token that merges are looked for in; tokens in use have at most some dozens


def sentence_piece(metadata: GgufMetadata, vocabulary: dict[str, int]) -> Tokenizer:
    """Scores say the order of merges. Raises ConfigInvalid."""
    prefixed = metadata.truth("tokenizer.ggml.add_space_prefix", True)
    return _tokenizer(metadata, vocabulary, merges_of(metadata, vocabulary), prefixed=prefixed)


def gemma(metadata: GgufMetadata, vocabulary: dict[str, int]) -> Tokenizer:
    """Gemma 4's files name the merges. Raises ConfigInvalid."""
    return _tokenizer(metadata, vocabulary, published_merges(metadata), prefixed=False)


def _tokenizer(
    metadata: GgufMetadata, vocabulary: dict[str, int], merges: list[tuple[str, str]], *, prefixed: bool
) -> Tokenizer:
    unknown = metadata.texts("tokenizer.ggml.tokens")[_unknown(metadata)]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces: list[normalizers.Normalizer] = [normalizers.Replace(" ", _SPACE)]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), *spaces] if prefixed else spaces)
    steps = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    tokenizer.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if prefixed else steps)
    return tokenizer


def _unknown(metadata: GgufMetadata) -> int:
    found = metadata.whole("tokenizer.ggml.unknown_token_id", 0)
    if found >= len(metadata.texts("tokenizer.ggml.tokens")):
        raise metadata.refused("tokenizer.ggml.unknown_token_id", "an id of the vocabulary")
    return found


def merges_of(metadata: GgufMetadata, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    """Every way to put a token together from two others, the highest score first: what converters of SentencePiece's
    models write into tokenizer.json.
    """
    scores = metadata.numbers("tokenizer.ggml.scores").tolist()
    if len(scores) != len(vocabulary):
        raise ConfigInvalid(
            f"{metadata.path}: tokenizer.ggml.scores has {len(scores)} numbers for {len(vocabulary)} tokens"
        )
    found: list[tuple[float, str, str]] = []
    for token, score in zip(vocabulary, scores, strict=True):
        found.extend((score, left, right) for left, right in _halves(token, vocabulary))
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]


def _halves(token: str, vocabulary: dict[str, int]) -> list[tuple[str, str]]:
    if len(token) > _LONGEST:
        return []
    cuts = ((token[:cut], token[cut:]) for cut in range(1, len(token)))
    pairs = [(left, right) for left, right in cuts if left in vocabulary and right in vocabulary]
    return sorted(pairs, key=lambda pair: (vocabulary[pair[0]], vocabulary[pair[1]]))
