"""How many different operators have to sign a resume: `operator.threshold` beside the trusted keys.

    # two of our three operators, since the third one joined
    1
    2 from 5120

A line is a number, and the index that it holds from (0 where none is given): a resume under an older rule stays valid.
Without the file, one signature is enough.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ledger.errors import KeyFileError

FILE_NAME = "operator.threshold"

MOST_SIGNATURES = 16
"""As many as one envelope carries."""

_LINE = re.compile(r"([0-9]{1,2})(?: from ([0-9]{1,15}))?")


class Threshold(Protocol):
    """How many signatures are needed, index by index."""

    def at(self, index: int | None) -> int:
        """For the entry at `index`; for the next one to be written where that is None."""
        ...


@dataclass(frozen=True, slots=True)
class FixedThreshold:
    """`steps` are (index, signatures), by rising index, the first at 0."""

    steps: tuple[tuple[int, int], ...] = ((0, 1),)

    def at(self, index: int | None) -> int:
        """Keeps the contract of Threshold."""
        return next(needed for start, needed in reversed(self.steps) if index is None or start <= index)

    @classmethod
    def load(cls, directory: Path) -> FixedThreshold:
        """The threshold in the directory's file; one signature where there is no file. Raises KeyFileError."""
        path = directory / FILE_NAME
        try:
            text = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls()
        except (OSError, UnicodeDecodeError) as error:
            raise KeyFileError(f"cannot read {path}: {error}") from None
        lines = (line.partition("#")[0].strip() for line in text.splitlines())
        return cls(_steps([line for line in lines if line], path))


def _steps(lines: list[str], path: Path) -> tuple[tuple[int, int], ...]:
    steps = [_step(line, path) for line in lines]
    starts = [start for start, _ in steps]
    if not steps or starts[0] != 0 or sorted(set(starts)) != starts:
        raise KeyFileError(f"{path}: expected a line like '2', then lines like '3 from 5120' by rising index")
    return tuple(steps)


def _step(line: str, path: Path) -> tuple[int, int]:
    match = _LINE.fullmatch(line)
    if match is None or not 1 <= int(match[1]) <= MOST_SIGNATURES:
        raise KeyFileError(f"{path}: expected a number of operators from 1 to {MOST_SIGNATURES}, got {line!r}")
    return int(match[2] or 0), int(match[1])
