"""The target's own answers, one JSON object a line: what a head is trained on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Answer:
    """What the target said to a prompt at a temperature. `id` is unique in a run."""

    id: str
    domain: str
    temperature: float
    prompt: tuple[int, ...]
    said: tuple[int, ...]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt + self.said


class AnswerFile:
    """Answers on disk, appended as they come. A line that a crash cut short is dropped when the file is opened."""

    def __init__(self, path: Path) -> None:
        self.path = path
        if path.exists():
            self._drop_partial_line()

    def __iter__(self) -> Iterator[Answer]:
        if self.path.exists():
            with self.path.open(encoding="utf-8") as lines:
                yield from map(_parse, lines)

    def append(self, answers: Iterable[Answer]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            for answer in answers:
                file.write(json.dumps(asdict(answer), separators=(",", ":")) + "\n")

    def _drop_partial_line(self) -> None:
        with self.path.open("rb+") as file:
            content = file.read()
            os.ftruncate(file.fileno(), content.rfind(b"\n") + 1)


def _parse(line: str) -> Answer:
    entry = json.loads(line)
    return Answer(entry["id"], entry["domain"], entry["temperature"], tuple(entry["prompt"]), tuple(entry["said"]))
