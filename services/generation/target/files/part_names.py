"""Names of the parts of a GGUF model: `NAME-00001-of-00003.gguf` and its siblings. Imports next to nothing."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

_NAME = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)


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


def sibling_paths(path: Path) -> list[Path]:
    """The paths of all parts of a model by the path of any part, or `path` alone if it is not in parts."""
    name = PartName.of(path.name)
    return [path.with_name(sibling) for sibling in name.siblings()] if name else [path]
