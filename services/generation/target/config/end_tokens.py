"""End-of-sequence tokens: by well-known names, and of a directory's tokenizer."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from services.generation.target.errors import ConfigInvalid

_END_TOKENS = frozenset(
    {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "</s>"}
    | {"<|return|>", "<|call|>"}  # gpt-oss
    | {"<eos>", "<turn|>", "<|tool_response>"}  # Gemma 4
)
_PIECE_TEXTS = {"bos": ("<s>", "<bos>"), "eos": ("</s>", "<eos>")}
_PIECE_IDS = {"bos": 1, "eos": 2, "unknown": 0}
"""llama.cpp's default ids."""
_INDEX = re.compile(r"[0-9]{1,9}")
_Document = TypeVar("_Document")


def usual_piece(role: str, tokens: Sequence[str]) -> int | None:
    """The id of a special token of a SentencePiece model whose file has none for the role. None for other roles."""
    known = (tokens.index(text) for text in _PIECE_TEXTS.get(role, ()) if text in tokens)
    return next(known, _PIECE_IDS.get(role))


def ends_by_name(special: Mapping[str, int]) -> set[int]:
    """Ids that end a sequence, as in llama.cpp. `special`: ids of special tokens by their texts."""
    ids = {special[name] for name in _END_TOKENS & special.keys()}
    return ids - ends_of_messages(special)


def ends_of_messages(special: Mapping[str, int]) -> set[int]:
    """The id that ends a message of an answer and not the sequence (gpt-oss)."""
    return {special["<|end|>"]} if {"<|return|>", "<|call|>", "<|end|>"} <= special.keys() else set()


class _Added(msgspec.Struct):
    id: int
    content: str


class _Model(msgspec.Struct):
    vocab: Any = None


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_Added] = []
    model: msgspec.Raw = msgspec.Raw(b"{}")  # large, and seldom needed


class _TokenizerConfig(msgspec.Struct):
    eos_token: Any = None
    added_tokens_decoder: dict[str, Any] = {}


class _SpecialTokens(msgspec.Struct):
    eos_token: Any = None


def ends_of_tokenizer(directory: Path) -> set[int]:
    """End ids of a directory's tokenizer: its own EOS, and added tokens with well-known names.

    Older folders name the EOS in special_tokens_map.json alone. It may be a token of the vocabulary that is not added.
    Raises ConfigInvalid for a malformed tokenizer.json, tokenizer_config.json or special_tokens_map.json.
    """
    config, place = _read(directory / "tokenizer_config.json", _TokenizerConfig), directory / "tokenizer.json"
    tokenizer = _read(place, _Tokenizer)
    added = {token.content: token.id for token in tokenizer.added_tokens}
    for index, token in config.added_tokens_decoder.items():
        if _INDEX.fullmatch(index) and isinstance(token, dict) and isinstance(token.get("content"), str):
            added.setdefault(token["content"], int(index))
    name = _text(config.eos_token) or _text(_read(directory / "special_tokens_map.json", _SpecialTokens).eos_token)
    if name is None:
        return ends_by_name(added)
    own = added[name] if name in added else _in_vocabulary(_decoded(place, tokenizer.model, _Model).vocab, name)
    return ends_by_name(added) | ({own} if type(own) is int else set())


def _text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _in_vocabulary(vocabulary: Any, name: str) -> Any:
    """The id of a token in a vocabulary of ids by text, or in Unigram's list of texts and scores."""
    if isinstance(vocabulary, dict):
        return vocabulary.get(name)
    pieces = vocabulary if isinstance(vocabulary, list) else []
    return next((index for index, piece in enumerate(pieces) if isinstance(piece, list) and piece[:1] == [name]), None)


def _read(path: Path, kind: type[_Document]) -> _Document:
    if not path.exists():
        return kind()
    try:
        return _decoded(path, path.read_bytes(), kind)
    except OSError as error:
        raise ConfigInvalid(f"{path}: {error}") from error


def _decoded(path: Path, data: bytes | msgspec.Raw, kind: type[_Document]) -> _Document:
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigInvalid(f"{path}: {error}") from error
