"""Metadata of a GGUF file: fields by name, read with the type they should have."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from services.generation.target.errors import ConfigInvalid

Value = int | float | bool | str | list[str] | NDArray[np.generic]
"""An array of strings is a list, one of numbers a numpy array."""

_MOST = 2**53 - 1  # what JSON carries exactly
_LARGEST = float(np.finfo(np.float32).max)
_SHOWN = 80  # characters of a value in a message


@dataclass(frozen=True, slots=True, eq=False)
class GgufField:
    """A value, and its type and value as they are written in the file."""

    value: Value
    written: memoryview


class GgufMetadata(Mapping[str, Value]):
    """The fields of one file. The typed readers raise ConfigInvalid naming file and field."""

    def __init__(self, path: Path, fields: Mapping[str, GgufField]) -> None:
        self.path = path
        self._fields = fields

    def __getitem__(self, key: str) -> Value:
        return self._fields[key].value

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def digest(self, prefix: str) -> str:
        """`sha256:<hex>` over the names and written values of all fields whose names begin so, in order of names.

        Each name and each value stands behind its length, eight bytes, little endian.
        """
        sha256 = hashlib.sha256()
        for key in sorted(key for key in self._fields if key.startswith(prefix)):
            for part in (key.encode(), self._fields[key].written):
                sha256.update(len(part).to_bytes(8, "little"))
                sha256.update(part)
        return "sha256:" + sha256.hexdigest()

    def whole(self, key: str, default: int | None = None, *, least: int = 0) -> int:
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= _MOST:
            raise self.refused(key, f"a whole number of at least {least}")
        return value

    def real(self, key: str, default: float | None = None, *, above: float = -math.inf) -> float:
        """GGUF keeps float32; config.json would have the shortest decimal that rounds to it."""
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value or abs(value) > _LARGEST:
            raise self.refused(key, f"a number above {above}")
        return float(str(np.float32(value)))

    def truth(self, key: str, default: bool | None = None) -> bool:
        value = self._given(key, default)
        if not isinstance(value, bool):
            raise self.refused(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self._given(key, default)
        if not isinstance(value, str):
            raise self.refused(key, "text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._given(key, None)
        if not isinstance(value, list):
            raise self.refused(key, "a list of texts")
        return value

    def numbers(self, key: str) -> NDArray[np.generic]:
        value = self._given(key, None)
        if not isinstance(value, np.ndarray):
            raise self.refused(key, "a list of numbers")
        return value

    def _given(self, key: str, default: Value | None) -> Value:
        value = self.get(key, default)
        if value is None:
            raise ConfigInvalid(f"{self.path}: {key} is missing from the metadata; the file is not a whole model")
        return value

    def refused(self, key: str, expected: str) -> ConfigInvalid:
        """The error that says what is in a field, and what was expected there."""
        value = self.get(key)
        shown = f"a list of {len(value)}" if isinstance(value, list | np.ndarray) else repr(value)[:_SHOWN]
        return ConfigInvalid(f"{self.path}: {key} is {shown}; expected {expected}")


def gguf_sizes(metadata: GgufMetadata) -> dict[str, int]:
    """hidden_size, num_hidden_layers and vocab_size. Base identifiers rest on these names: never add one.

    Raises ConfigInvalid where the file does not say.
    """
    family = metadata.text("general.architecture")
    return {
        "hidden_size": metadata.whole(f"{family}.embedding_length", least=1),
        "num_hidden_layers": metadata.whole(f"{family}.block_count", least=1),
        "vocab_size": _vocabulary(metadata, family),
    }


def _vocabulary(metadata: GgufMetadata, family: str) -> int:
    """Not every converter writes the size beside the tokens."""
    key = f"{family}.vocab_size"
    return metadata.whole(key, least=1) if key in metadata else len(metadata.texts("tokenizer.ggml.tokens"))
