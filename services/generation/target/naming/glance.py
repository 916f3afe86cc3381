"""What the head of a model's files says at a glance: family, size and storage. For lists; nothing of it is believed."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO


@dataclass(frozen=True, slots=True)
class Glance:
    """`family` is empty where the files do not say it. `whole_numbers`: `--arithmetic int8` is defined on it."""

    family: str
    size: int
    whole_numbers: bool


def glance(path: Path) -> Glance:
    """Raises OSError."""
    if path.is_file():
        said = _first_fields(path)
        kept = said.get("general.file_type") not in (None, *_NOT_WHOLE)
        return Glance(str(said.get("general.architecture", "")), path.stat().st_size, kept)
    size = sum(file.stat().st_size for file in path.glob("*.safetensors"))
    try:
        family = json.loads((path / "config.json").read_bytes())["model_type"]
    except (ValueError, KeyError, TypeError, RecursionError):
        family = ""
    return Glance(str(family), size, False)


_NOT_WHOLE = (0, 1, 32, 38)  # file types of float32, float16, bfloat16 and MXFP4
_SCALARS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_TEXT, _LIST = 8, 9
_MANY = 256
_LONGEST = 1 << 16  # bytes of a text; a chat template is as long as that


def _first_fields(path: Path) -> dict[str, object]:
    """A GGUF file's fields up to the first long list: the vocabulary, behind what is general."""
    fields: dict[str, object] = {}
    with path.open("rb") as file:
        try:
            if file.read(4) != b"GGUF":
                return fields
            file.seek(24)  # behind version and counts
            while len(fields) < 64:
                name, kind = _text(file), _number(file, "<I")
                fields[name] = _value(file, kind)
        except (KeyError, ValueError, OverflowError, struct.error):
            pass
    return fields


def _value(file: BinaryIO, kind: int) -> object:
    if kind == _LIST:
        kind, count = _number(file, "<I"), _number(file, "<Q")
        if count > _MANY:
            raise ValueError("a list is too long")
        return [_value(file, kind) for _ in range(count)]
    return _text(file) if kind == _TEXT else _number(file, _SCALARS[kind])


def _number(file: BinaryIO, form: str) -> int:
    (value,) = struct.unpack(form, file.read(struct.calcsize(form)))
    return int(value)


def _text(file: BinaryIO) -> str:
    length = _number(file, "<Q")
    if length > _LONGEST:
        raise ValueError("a text is too long")
    return file.read(length).decode(errors="replace")
