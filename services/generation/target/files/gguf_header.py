"""The header of a GGUF file: metadata and tensors' places, checked against the file's size.

The format is https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, versions 2 and 3, little endian. The `gguf`
package's reader does not check counts and offsets, so it is not used on untrusted files.
"""

from __future__ import annotations

import hashlib
import math
import struct
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from services.generation.target.errors import ConfigInvalid, WeightsInvalid

Value = int | float | bool | str | list[str] | NDArray[np.generic]
"""An array of strings is a list, an array of numbers a numpy array."""

_MOST = 2**53 - 1  # integers up to this are exact in JSON
_LARGEST = float(np.finfo(np.float32).max)
_SHOWN_OF_VALUE = 80  # characters of a value in a message
_SHOWN = 100  # characters of a name in a message

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_ALIGNMENT = 32  # bytes, the default of general.alignment
_DIMENSIONS = 4  # ggml's most
_NUMBERS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _ARRAY = 8, 9

_NAMES_OF_OLLAMA = {
    "rope.global.freq_base": "rope.freq_base",
    "rope.local.freq_base": "rope.freq_base_swa",
    "rope.scaling.beta_fast": "rope.scaling.yarn_beta_fast",
    "rope.scaling.beta_slow": "rope.scaling.yarn_beta_slow",
    "rope.scaling.extrapolation_factor": "rope.scaling.yarn_ext_factor",
    "rope.scaling.mscale_all_dim": "rope.scaling.yarn_log_multiplier",
    "rope.scaling_beta": "attention.temperature_scale",
    "norm_top_k_prob": "expert_weights_norm",
}
"""Fields of an architecture under the names of Ollama's converters, and llama.cpp's names of them."""

_T = TypeVar("_T")


class GgufField:
    """A value, read at its first use, and the bytes of its type and value in the file."""

    def __init__(self, read: Callable[[], Value], written: memoryview) -> None:
        self._read, self.written = read, written

    @cached_property
    def value(self) -> Value:
        """Raises WeightsInvalid for a text that is not UTF-8, in an array."""
        return self._read()


class GgufMetadata(Mapping[str, Value]):
    """The fields of one file, under llama.cpp's names.

    All readers raise WeightsInvalid for an array with a text that is not UTF-8; the typed ones raise ConfigInvalid,
    which names the file and the field.
    """

    def __init__(self, path: Path, fields: Mapping[str, GgufField]) -> None:
        self.path = path
        self._fields = _renamed(fields)
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> Value:
        value = self._fields[key].value
        self._read.add(key)
        return value

    def unread(self, *prefixes: str) -> list[str]:
        """Sorted names with one of these prefixes that were never read."""
        return sorted(key for key in self._fields.keys() - self._read if key.startswith(prefixes))

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)

    def digest(self, prefix: str) -> str:
        """`sha256:<hex>` over the names and written values of all fields with this prefix, sorted by name.

        Each name and each value is preceded by its length: eight bytes, little endian.
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
        """A number as config.json has it: the shortest decimal that rounds to the file's float32."""
        value = self._given(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not above < value or abs(value) > _LARGEST:
            raise self.refused(key, f"a number above {above}")
        return float(str(np.float32(value)))

    def truth(self, key: str, default: bool | None = None) -> bool:
        return self._of(bool, key, default, "true or false")

    def text(self, key: str, default: str | None = None) -> str:
        return self._of(str, key, default, "text")

    def texts(self, key: str) -> list[str]:
        return self._of(list, key, None, "a list of texts")

    def per_layer(self, key: str, layers: int, default: int | None = None, *, least: int = 1) -> list[int]:
        """A field with one number for all layers, or a number for each."""
        if not isinstance(self.get(key, default), np.ndarray):
            return [self.whole(key, default, least=least)] * layers
        found = self.numbers(key).tolist()
        if len(found) < layers or not all(isinstance(each, int) and each >= least for each in found[:layers]):
            raise self.refused(key, f"a whole number of at least {least}, or one for each of {layers} layers")
        return list(map(int, found[:layers]))

    def same_for_all(self, key: str, layers: int, default: int | None = None, *, least: int = 1) -> int:
        """A field with one number for all layers, which some converters repeat for each layer."""
        if not isinstance(self.get(key, default), np.ndarray):
            return self.whole(key, default, least=least)
        found = set(self.per_layer(key, layers, default, least=least))
        if len(found) != 1:
            raise self.refused(key, f"one number for all {layers} layers")
        return found.pop()

    def numbers(self, key: str) -> NDArray[np.generic]:
        return self._of(np.ndarray, key, None, "a list of numbers")

    def _of(self, kind: type[_T], key: str, default: Value | None, expected: str) -> _T:
        value = self._given(key, default)
        if not isinstance(value, kind):
            raise self.refused(key, expected)
        return value

    def _given(self, key: str, default: Value | None) -> Value:
        value = self.get(key, default)
        if value is None:
            raise ConfigInvalid(f"{self.path}: {key} is missing from the metadata; the file is not a whole model")
        return value

    def refused(self, key: str, expected: str) -> ConfigInvalid:
        """The error for an invalid field, with its value."""
        value = self.get(key)
        shown = f"a list of {len(value)}" if isinstance(value, list | np.ndarray) else repr(value)[:_SHOWN_OF_VALUE]
        return ConfigInvalid(f"{self.path}: {key} is {shown}; expected {expected}")


def _renamed(fields: Mapping[str, GgufField]) -> dict[str, GgufField]:
    """Fields under llama.cpp's names. If a file has both names of a field, llama.cpp's wins."""
    own = fields.get("general.architecture")
    usual = {f"{own.value}.{theirs}": f"{own.value}.{ours}" for theirs, ours in _NAMES_OF_OLLAMA.items()} if own else {}
    moved = {key: usual[key] for key in fields if key in usual and usual[key] not in fields}
    return {moved.get(key, key): field for key, field in fields.items()}


def gguf_sizes(metadata: GgufMetadata) -> dict[str, int]:
    """hidden_size, num_hidden_layers and vocab_size. Base identifiers depend on these names: never add one.

    Raises ConfigInvalid if the file has no such field.
    """
    family = metadata.text("general.architecture")
    return {
        "hidden_size": metadata.whole(f"{family}.embedding_length", least=1),
        "num_hidden_layers": metadata.whole(f"{family}.block_count", least=1),
        "vocab_size": _vocabulary(metadata, family),
    }


def _vocabulary(metadata: GgufMetadata, family: str) -> int:
    """The size of the vocabulary; some converters write its tokens alone."""
    key = f"{family}.vocab_size"
    return metadata.whole(key, least=1) if key in metadata else len(metadata.texts("tokenizer.ggml.tokens"))


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor's shape, outermost dimension first, the number of its ggml type, and its offset in the file.

    `part` counts the files of a model in several parts, from 0.
    """

    shape: tuple[int, ...]
    ggml: int
    offset: int
    part: int = 0


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """Metadata, and tensors by the names in the file. The reader of tensors checks their extent."""

    metadata: GgufMetadata
    tensors: Mapping[str, TensorPlace]


def read_gguf_header(path: Path, data: memoryview) -> GgufHeader:
    """Read the header of the file whose bytes are `data`, in memory proportional to it. `path` is for messages.

    Raises:
        WeightsInvalid: it is not a GGUF file of a known version, ends early, or contradicts itself.
    """
    cursor = _Cursor(path, data)
    _check_version(cursor)
    tensors, fields = cursor.number("<Q"), cursor.number("<Q")
    metadata = GgufMetadata(path, _collected(cursor, fields, "metadata field", _field))
    places = _collected(cursor, tensors, "tensor", _place)
    alignment = _alignment(metadata)
    start = -(-cursor.position // alignment) * alignment
    for name, place in places.items():
        if place.offset % alignment:
            raise cursor.damaged(f"tensor {name} is not aligned to {alignment} bytes")
    moved = {name: TensorPlace(place.shape, place.ggml, start + place.offset) for name, place in places.items()}
    return GgufHeader(metadata, moved)


class _Cursor:
    """A position in the file. It checks that bytes exist before memory is allocated for them."""

    def __init__(self, path: Path, data: memoryview) -> None:
        self.path, self._data = path, data
        self.position = 0

    def take(self, size: int) -> memoryview:
        if size > len(self._data) - self.position:
            raise self.damaged(
                f"the file ends at byte {len(self._data)}, within its header: expected {size} more bytes after byte "
                f"{self.position}"
            )
        self.position += size
        return self._data[self.position - size : self.position]

    def since(self, start: int) -> memoryview:
        return self._data[start : self.position]

    def number(self, kind: str) -> Any:
        return struct.unpack(kind, self.take(struct.calcsize(kind)))[0]

    def text(self) -> str:
        start = self.position
        try:
            return str(self.take(self.number("<Q")), "utf-8")
        except UnicodeDecodeError as error:
            raise self.damaged(f"the text at byte {start} is not UTF-8") from error

    def texts(self, count: int) -> Callable[[], list[str]]:
        """A function that reads `count` texts, of which a vocabulary has some 300,000; moves behind them."""
        start = end = self.position
        size_of, ends = struct.Struct("<Q").unpack_from, array("Q")
        try:
            for _ in range(count):
                end += 8 + size_of(self._data, end)[0]
                ends.append(end)
        except (struct.error, OverflowError):
            end = len(self._data) + 1
        if end > len(self._data):
            self.position = next((each for each in reversed(ends) if each <= len(self._data)), start)
            self.text()  # raises for the text that does not fit
        self.position = end
        return partial(self._read_texts, start, ends)

    def _read_texts(self, start: int, ends: array[int]) -> list[str]:
        data, begins = self._data, [start, *ends]
        try:
            return [str(data[begin + 8 : end], "utf-8") for begin, end in zip(begins, ends, strict=False)]
        except UnicodeDecodeError as error:
            raise self.damaged(f"a text after byte {start} is not UTF-8") from error

    def damaged(self, found: str) -> WeightsInvalid:
        return WeightsInvalid(f"{self.path}: {found}; the file is truncated or damaged: download or copy it again")


def _check_version(cursor: _Cursor) -> None:
    magic = bytes(cursor.take(4))
    if magic != _MAGIC:
        raise cursor.damaged(f"not a GGUF file: it begins with {magic!r}, expected {_MAGIC!r}")
    version, known = cursor.number("<I"), " and ".join(map(str, _VERSIONS))
    if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
        raise WeightsInvalid(
            f"{cursor.path}: big endian; expected little endian: convert it with gguf-convert-endian of the package "
            "gguf, or use another file"
        )
    if version not in _VERSIONS:
        raise WeightsInvalid(
            f"{cursor.path}: GGUF version {version} is not supported; supported: {known}: convert the model with a "
            "recent llama.cpp, or use another file"
        )


def _collected(cursor: _Cursor, count: int, what: str, read: Callable[[_Cursor], _T]) -> dict[str, _T]:
    found: dict[str, _T] = {}
    for _ in range(count):
        name = cursor.text()
        if name in found:
            raise cursor.damaged(f"duplicate {what} {name[:_SHOWN]!r}")
        found[name] = read(cursor)
    return found


def _field(cursor: _Cursor) -> GgufField:
    start = cursor.position
    kind = cursor.number("<I")
    if kind == _ARRAY:
        return GgufField(_array(cursor), cursor.since(start))
    value = _scalar(cursor, kind)
    return GgufField(lambda: value, cursor.since(start))


def _scalar(cursor: _Cursor, kind: int) -> Value:
    if kind == _TEXT:
        return cursor.text()
    if kind not in _NUMBERS:
        raise cursor.damaged(f"the metadata before byte {cursor.position} is of the unknown type {kind}")
    value: Value = cursor.number(_NUMBERS[kind])
    return value


def _array(cursor: _Cursor) -> Callable[[], Value]:
    kind, count = cursor.number("<I"), cursor.number("<Q")
    if kind == _TEXT:
        return cursor.texts(count)
    if kind not in _NUMBERS:
        raise cursor.damaged(f"the array before byte {cursor.position} is of type {kind}; expected numbers or texts")
    dtype = np.dtype(_NUMBERS[kind])
    return partial(np.frombuffer, cursor.take(count * dtype.itemsize), dtype)


def _place(cursor: _Cursor) -> TensorPlace:
    dimensions = cursor.number("<I")
    if not 1 <= dimensions <= _DIMENSIONS:
        raise cursor.damaged(f"the tensor before byte {cursor.position} has {dimensions} dimensions")
    shape = tuple(cursor.number("<Q") for _ in range(dimensions))[::-1]  # ggml has the innermost first
    if 0 in shape:
        raise cursor.damaged(f"the tensor before byte {cursor.position} is empty: its shape is {list(shape)}")
    return TensorPlace(shape, cursor.number("<I"), cursor.number("<Q"))


def _alignment(metadata: GgufMetadata) -> int:
    found = metadata.whole("general.alignment", _ALIGNMENT)
    if found.bit_count() != 1:
        raise metadata.refused("general.alignment", "a power of two")
    return found
