"""End-of-sequence tokens: by well-known names, and of a directory's tokenizer."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from services.generation.target.errors import ConfigInvalid

_END_TOKENS = frozenset(
    {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>", "</s>"}
    | {"<|return|>", "<|call|>"}  # gpt-oss
    | {"<eos>", "<turn|>", "<|tool_response>"}  # Gemma 4
)
_Document = TypeVar("_Document")


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


class _Tokenizer(msgspec.Struct):
    added_tokens: list[_Added] = []


class _TokenizerConfig(msgspec.Struct):
    eos_token: Any = None
    added_tokens_decoder: dict[str, Any] = {}


def ends_of_tokenizer(directory: Path) -> set[int]:
    """End ids of a directory's tokenizer: its own EOS, and added tokens with well-known names.

    Raises ConfigInvalid for a malformed tokenizer.json or tokenizer_config.json.
    """
    config = _read(directory / "tokenizer_config.json", _TokenizerConfig)
    added = {token.content: token.id for token in _read(directory / "tokenizer.json", _Tokenizer).added_tokens}
    for index, token in config.added_tokens_decoder.items():
        if index.isdecimal() and isinstance(token, dict) and isinstance(token.get("content"), str):
            added.setdefault(token["content"], int(index))
    name = config.eos_token.get("content") if isinstance(config.eos_token, dict) else config.eos_token
    own = {added[name]} if isinstance(name, str) and name in added else set()
    return own | ends_by_name(added)


def _read(path: Path, kind: type[_Document]) -> _Document:
    if not path.exists():
        return kind()
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except (OSError, msgspec.MsgspecError) as error:
        raise ConfigInvalid(f"{path}: {error}") from error
