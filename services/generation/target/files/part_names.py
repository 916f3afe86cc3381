"""Names of a GGUF model's files: of its parts, `NAME-00001-of-00003.gguf` and siblings, and of the sidecar with its MTP
block, `mtp-NAME.gguf`. Imports next to nothing.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
SIDECAR = "mtp-"
_QUANTISATION = re.compile(
    r"[-.](UD-)?(I?Q\d\w*|MXFP4\w*|BF16|F16|F32)(-\d{5}-of-\d{5})?\.gguf|\.gguf", re.ASCII | re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class PartName:
    """The name of a part, `number` from 1 to `count`. `stem` may hold folders."""

    stem: str
    number: int
    count: int

    @classmethod
    def of(cls, name: str) -> PartName | None:
        """The parts of a file's name, or None if it is not the name of a part."""
        found = _NAME.fullmatch(name)
        if found is None or not 1 <= int(found["number"]) <= int(found["count"]):
            return None
        return cls(found["stem"], int(found["number"]), int(found["count"]))

    def __str__(self) -> str:
        return f"{self.stem}-{self.number:05}-of-{self.count:05}.gguf"

    def siblings(self) -> list[str]:
        """The names of all parts, this one's included, in order."""
        return [str(replace(self, number=number)) for number in range(1, self.count + 1)]


def sidecar_of(file: str, files: Collection[str]) -> str | None:
    """The file of `files` with the MTP block of the model in `file`, in the same folder: in this quantisation, or the
    first in another; None if there is none. Names may hold folders.
    """
    folder, slash, name = file.rpartition("/")
    exact, start = f"{folder}{slash}{SIDECAR}{name}", f"{folder}{slash}{SIDECAR}{_QUANTISATION.sub('', name)}"
    others = (each for each in files if _QUANTISATION.sub("", each) == start)
    return exact if exact in files else min(others, default=None)


def sibling_paths(path: Path) -> list[Path]:
    """The paths of all parts of a model by the path of any part, or `path` alone if it is not in parts."""
    name = PartName.of(path.name)
    return [path.with_name(sibling) for sibling in name.siblings()] if name else [path]
