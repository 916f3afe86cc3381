"""The tokenizer of a GGUF file: its splitting of a text into words, its merges, its special tokens."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from services.generation.target.config.end_tokens import usual_piece
from services.generation.target.errors import ConfigInvalid, TargetError
from services.generation.target.files.gguf_file import GgufFile
from services.generation.target.files.gguf_header import GgufMetadata

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace("{1,3}", "")
_QWEN35 = _QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}", r"[^\s\p{L}\p{M}")  # marks are letters
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_SEED = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" + _CONTRACTIONS
    + r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" + _CONTRACTIONS
    + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)  # fmt: skip
_DEFAULTS = {"llama4": "llama4"}
"""Names of splittings by architecture, for files in which Ollama's converter has written `default`."""
_SPACE = "\u2581"
_LONGEST = 256  # characters of a token whose merges are derived; tokens in use have at most some dozens
_UNKNOWN, _CONTROL, _USER_DEFINED = 2, 3, 4
"""Types of tokens that are matched by their text; the last type is visible in output."""
_TEMPLATE = "tokenizer.chat_template"
_ROLES = {"bos": "bos", "eos": "eos", "unknown": "unk", "padding": "pad"}
"""Names of special tokens in GGUF and in transformers."""


@dataclass(frozen=True, slots=True)
class Splitting:
    """A splitting into words. `expressions` apply one after another; matches and the texts between them are words."""

    expressions: tuple[str, ...]
    whole_words: bool = False  # a word of the vocabulary is a token, whatever its merges
    composed: bool = False  # text is normalised to NFC first
    begins: bool = False  # default of tokenizer.ggml.add_bos_token


_SMOLLM = Splitting((r"\p{N}", _GPT2))
_O200K = Splitting((_GPT4O,))
_LLAMA_BPE = Splitting((_LLAMA3,), whole_words=True, begins=True)
_QWEN = Splitting((_QWEN2,), composed=True)

SPLITTINGS = {
    "gpt-2": Splitting((_GPT2,)),
    "exaone4": Splitting((_GPT2,)),
    "granite-docling": Splitting((_GPT2,)),
    "superbpe": Splitting((r"\p{N}+", r"(?=(\d{3})+(?!\d))")),  # words may span blanks; digits by three from the right
    "seed-coder": Splitting((_SEED,)),
    "smollm": _SMOLLM,
    "llama-bpe": _LLAMA_BPE,
    "llama3": _LLAMA_BPE,
    "llama-v3": _LLAMA_BPE,
    "falcon3": _LLAMA_BPE,
    "lfm2": _LLAMA_BPE,
    "pixtral": _LLAMA_BPE,
    "smaug-bpe": Splitting((_LLAMA3,)),  # SmolLM3
    "refact": _SMOLLM,  # Granite
    "qwen2": _QWEN,
    "qwen35": Splitting((_QWEN35,), composed=True),
    "deepseek-r1-qwen": Splitting((_QWEN2,)),
    "dbrx": Splitting((_LLAMA3,)),
    "gpt-4o": _O200K,
    "llama4": _O200K,
    "tekken": Splitting((_TEKKEN,), whole_words=True, begins=True),
}
"""Splittings by `tokenizer.ggml.pre`."""


def splitting_of(metadata: GgufMetadata) -> Splitting:
    """The splitting of a file. Raises ConfigInvalid if it names none that is supported."""
    name = metadata.text("tokenizer.ggml.pre", "")
    if name == "default":
        name = _DEFAULTS.get(metadata.text("general.architecture", ""), name)
    if name not in SPLITTINGS:
        raise ConfigInvalid(
            f"{metadata.path}: tokenizer.ggml.pre is {name[:80]!r}, which is not supported; supported: "
            f"{', '.join(SPLITTINGS)}; old converters omit it: use a newer file of the same model"
        )
    return SPLITTINGS[name]


def byte_level(metadata: GgufMetadata, vocabulary: dict[str, int]) -> FastTokenizer:
    """The BPE model. Raises ConfigInvalid, and errors of the tokenizers library for merges outside the vocabulary."""
    splitting = splitting_of(metadata)
    merges = published_merges(metadata)
    tokenizer = FastTokenizer(models.BPE(vocab=vocabulary, merges=merges, ignore_merges=splitting.whole_words))
    if splitting.composed:
        tokenizer.normalizer = normalizers.NFC()
    words = [pre_tokenizers.Split(Regex(expression), "isolated") for expression in splitting.expressions]
    spelled = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*words, spelled])
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def published_merges(metadata: GgufMetadata) -> list[tuple[str, str]]:
    """The file's merges in their order. Raises ConfigInvalid."""
    merges = metadata.texts("tokenizer.ggml.merges")
    found = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    for merge, pair in zip(merges, found, strict=True):
        if not all(pair):
            shown = f"{merge[:80]!r}; expected two tokens and a space"
            raise ConfigInvalid(f"{metadata.path}: tokenizer.ggml.merges: {shown}")
    return found


def sentence_piece(metadata: GgufMetadata, vocabulary: dict[str, int]) -> FastTokenizer:
    """Derive merges in the order of the tokens' scores. Raises ConfigInvalid."""
    prefixed = metadata.truth("tokenizer.ggml.add_space_prefix", True)
    return _of_pieces(metadata, vocabulary, merges_of(metadata, vocabulary), prefixed=prefixed)


def gemma(metadata: GgufMetadata, vocabulary: dict[str, int]) -> FastTokenizer:
    """Read the merges, which Gemma 4's files contain. Raises ConfigInvalid."""
    return _of_pieces(metadata, vocabulary, published_merges(metadata), prefixed=False)


def _of_pieces(
    metadata: GgufMetadata, vocabulary: dict[str, int], merges: list[tuple[str, str]], *, prefixed: bool
) -> FastTokenizer:
    unknown = metadata.texts("tokenizer.ggml.tokens")[_unknown(metadata)]
    tokenizer = FastTokenizer(models.BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
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
    """All pairs of tokens that make a token, the highest score first, as converters of SentencePiece models write them
    into tokenizer.json.
    """
    scores = metadata.numbers("tokenizer.ggml.scores").tolist()
    if len(scores) != len(vocabulary):
        raise metadata.refused("tokenizer.ggml.scores", f"one for each of {len(vocabulary)} tokens")
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


_KINDS = {"gpt2": byte_level, "llama": sentence_piece, "gemma4": gemma}


def gguf_tokenizer(path: Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a GGUF file.

    Raises:
        ConfigInvalid: the file describes no tokenizer, or a kind that is not supported.
        TargetError: the file is missing or damaged.
    """
    metadata = GgufFile.open(path).metadata
    try:
        return _tokenizer(metadata)
    except TargetError:
        raise
    except Exception as error:  # the tokenizers library raises these for a vocabulary that contradicts itself
        raise ConfigInvalid(f"{path}: the tokenizer does not load: {error}") from error


def _tokenizer(metadata: GgufMetadata) -> PreTrainedTokenizerFast:
    kind = metadata.text("tokenizer.ggml.model")
    if kind not in _KINDS:
        raise metadata.refused("tokenizer.ggml.model", f"one of {', '.join(_KINDS)}")
    tokens = metadata.texts("tokenizer.ggml.tokens")
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise ConfigInvalid(f"{metadata.path}: tokenizer.ggml.tokens: a token occurs twice; expected different tokens")
    tokenizer = _KINDS[kind](metadata, vocabulary)
    _add_tokens(tokenizer, tokens, metadata)
    roles = _roles(metadata, tokens, usual_piece if kind == "llama" else lambda *_: None)
    begins = metadata.truth("tokenizer.ggml.add_bos_token", kind != "gpt2" or splitting_of(metadata).begins)
    _surround(tokenizer, metadata, roles, begins=begins or kind == "gemma4")  # as in llama.cpp, whatever the file has
    template = metadata.text(_TEMPLATE) if _TEMPLATE in metadata else None
    shared: Any = tokenizer
    shared.__deepcopy__ = lambda memo: tokenizer  # transformers copies it, which takes longer than all of the above
    try:
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, chat_template=template, **roles)
    finally:
        del shared.__deepcopy__


def _add_tokens(tokenizer: FastTokenizer, tokens: list[str], metadata: GgufMetadata) -> None:
    kinds = metadata.numbers("tokenizer.ggml.token_type").tolist()
    if len(kinds) != len(tokens):
        raise metadata.refused("tokenizer.ggml.token_type", f"one for each of {len(tokens)} tokens")
    takes_blanks = _blanks_behind(metadata)
    for kind, special in ((_UNKNOWN, True), (_CONTROL, True), (_USER_DEFINED, False)):
        chosen = [token for token, found in zip(tokens, kinds, strict=True) if found == kind]
        tokenizer.add_tokens(
            [AddedToken(token, normalized=False, special=special, rstrip=takes_blanks(token)) for token in chosen]
        )


def _blanks_behind(metadata: GgufMetadata) -> Callable[[str], bool]:
    """Whether an added token includes the blanks and newlines after it, which a GGUF file does not record.

    Tokens of Phi-3 and Phi-4-mini do, by their tokenizer.json. llama.cpp recognises Phi-3 by the model's name.
    """
    names = [metadata.text(f"general.{key}", "") for key in ("name", "basename")]
    named = any("phi3" in re.sub(r"[\s_.-]", "", name.lower()) for name in names)
    phi = metadata.text("general.architecture", "") == "phi3"
    if metadata.text("tokenizer.ggml.model") == "llama" and (phi or named):
        return lambda token: token not in ("<unk>", "<s>", "<|endoftext|>")
    if phi and metadata.text("tokenizer.ggml.pre", "") == "gpt-4o":
        return lambda token: token in ("<|system|>", "<|user|>", "<|assistant|>", "<|end|>")
    return lambda _: False


def _roles(
    metadata: GgufMetadata, tokens: list[str], usual: Callable[[str, Sequence[str]], int | None]
) -> dict[str, str]:
    """Special tokens by transformers' names. A role without an id of the vocabulary has its `usual` one, if any."""
    found = {}
    for role, name in _ROLES.items():
        index: int | None = metadata.whole(f"tokenizer.ggml.{role}_token_id", len(tokens))
        index = index if index is not None and index < len(tokens) else usual(role, tokens)
        if index is not None and index < len(tokens):
            found[f"{name}_token"] = tokens[index]
    return found


def _surround(tokenizer: FastTokenizer, metadata: GgufMetadata, roles: dict[str, str], *, begins: bool) -> None:
    """Let `encode` add the file's special tokens around a text."""
    wanted = {"bos_token": begins, "eos_token": metadata.truth("tokenizer.ggml.add_eos_token", False)}
    begin, end = ([roles[role]] if wanted[role] and role in roles else [] for role in wanted)
    if begin or end:
        special = [(token, tokenizer.token_to_id(token)) for token in {*begin, *end}]
        tokenizer.post_processor = TemplateProcessing(single=[*begin, "$A", *end], special_tokens=special)
