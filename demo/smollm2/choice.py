"""The words of a prompt, drawn from `words.toml`, from the training split or the held-out one."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Literal, TypeVar

Message = dict[str, str]
Split = Literal["train", "held_out"]
Item = TypeVar("Item")

_HELD_OUT = 10
"""One subject in so many is held out."""


@dataclass(frozen=True, slots=True)
class Choice:
    """Draws what one prompt is made of. A subject of the held-out split occurs in no prompt of the training split."""

    rng: Random
    split: Split

    def subject(self, subjects: Sequence[Item]) -> Item:
        """One of those that are of this split."""
        return self.rng.choice([each for each in subjects if is_held_out(each) == (self.split == "held_out")])

    def wording(self, wordings: Sequence[Item]) -> Item:
        """Any of them: how a thing is said is the same in both splits."""
        return self.rng.choice(wordings)


def is_held_out(subject: object) -> bool:
    return sha256(repr(subject).encode()).digest()[0] % _HELD_OUT == 0


@cache
def words(part: str) -> dict[str, Any]:
    """Lists of words and templates by name."""
    document = tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))
    return dict(document[part])


def asked(text: str) -> list[Message]:
    return [{"role": "user", "content": text}]


def system(text: str) -> Message:
    return {"role": "system", "content": text}


def said(text: str) -> Message:
    return {"role": "assistant", "content": text}
