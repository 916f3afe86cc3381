"""Names of a model's files: of its parts, `NAME-00001-of-00003.gguf` (or .safetensors) and siblings, and of the sidecar
with its MTP block, `mtp-NAME.gguf`. Imports next to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<ending>(?i:\.gguf|\.safetensors))", re.ASCII)
SIDECAR = "mtp-"
_QUANTISATION = re.compile(r"[-.](UD-)?(I?Q\d\w*|MXFP4\w*|BF16|F16|F32)$", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class PartName:
    """The name of a part, `number` from 1 to `count`. `stem` may hold folders."""

    stem: str
    number: int
    count: int
    ending: str = ".gguf"

    @classmethod
    def of(cls, name: str) -> PartName | None:
        """The parts of a file's name, or None if it is not the name of a part."""
        found = _NAME.fullmatch(name)
        if found is None or not 1 <= int(found["number"]) <= int(found["count"]):
            return None
        return cls(found["stem"], int(found["number"]), int(found["count"]), found["ending"])

    def __str__(self) -> str:
        return f"{self.stem}-{self.number:05}-of-{self.count:05}{self.ending}"

    def siblings(self) -> Iterator[str]:
        """The names of all parts, this one's included, in order."""
        return (str(replace(self, number=number)) for number in range(1, self.count + 1))


def missing_part(files: Collection[str]) -> str | None:
    """The first part that is missing beside other parts of its model; None if every model is whole."""
    named = (part for file in files if (part := PartName.of(file)))
    first = {replace(part, number=1) for part in named}
    missing = (name for part in sorted(first, key=str) for name in part.siblings() if name not in files)
    return next(missing, None)


def sidecar_of(file: str, files: Collection[str]) -> str | None:
    """The file of `files` with the MTP block of the model in `file`, or the first part of it, in the same folder: in
    this quantisation, or the first in another; None if there is none. Names may hold folders.
    """
    folder, slash, name = file.rpartition("/")
    own, start = f"{folder}{slash}{SIDECAR}{_whole(name)}", f"{folder}{slash}{SIDECAR}{_model(name)}"
    found = sorted(each for each in files if each.lower().endswith(".gguf") and _model(each) == start)
    return next((each for each in found if _whole(each) == own), found[0] if found else None)


def _whole(file: str) -> str:
    """The name of a GGUF file without its ending and the number of a part."""
    part = PartName.of(file)
    return part.stem if part else re.sub(r"\.gguf$", "", file, flags=re.IGNORECASE)


def _model(file: str) -> str:
    """The same without the quantisation."""
    return _QUANTISATION.sub("", _whole(file))


def sidecar_path(path: Path) -> Path | None:
    """The path of the sidecar of the model in a GGUF file, or of its first part; None if there is none."""
    found = sidecar_of(path.name, {each.name for each in path.parent.glob("*.gguf")})
    return path.with_name(found) if found else None


def sibling_paths(path: Path) -> list[Path]:
    """The paths of all parts of a model by the path of any part, or `path` alone if it is not in parts."""
    name = PartName.of(path.name)
    return [path.with_name(sibling) for sibling in name.siblings()] if name else [path]
