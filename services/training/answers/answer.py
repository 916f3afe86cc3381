"""The target's own answers, and its streams while it answered: a head reads the streams and learns the answers."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

Float32 = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Answer:
    """The target's answer to a prompt at a temperature. `id` is unique in a run."""

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


@dataclass(frozen=True, slots=True)
class Recording:
    """Streams of every token of an answer but its last, whose row foresees nothing that is known.

    `features` [tokens - 1, layers * hidden] are the head's; `finals` [said, hidden] the stream behind the last layer,
    from the prompt's last token on. Both in bfloat16, as uint16 bits.
    """

    features: NDArray[np.uint16]
    finals: NDArray[np.uint16]


@dataclass(frozen=True, slots=True)
class Streams:
    """Which streams a recording needs, and how it is made of them."""

    feature_layers: tuple[int, ...]
    hidden_size: int
    last_layer: int

    @property
    def layers(self) -> tuple[int, ...]:
        return (*self.feature_layers, self.last_layer)

    @property
    def width(self) -> int:
        """Values of a row of features."""
        return len(self.feature_layers) * self.hidden_size

    def recording(self, pieces: Sequence[Float32], prompt: int, said: int) -> Recording:
        """From rows [n, layers * hidden] in the order of positions, at least prompt + said - 1 of them."""
        rows = np.concatenate(pieces)[: prompt + said - 1]
        return Recording(_half(rows[:, : self.width]), _half(rows[prompt - 1 :, self.width :]))


def _half(streams: Float32) -> NDArray[np.uint16]:
    """bfloat16, rounded to nearest, as its bits."""
    return torch.from_numpy(np.ascontiguousarray(streams)).to(torch.bfloat16).view(torch.uint16).numpy()
