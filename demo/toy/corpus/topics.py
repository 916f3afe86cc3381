"""Contents of invented passages; the text is in `topics.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Fact:
    """`about` completes "What does the passage say about ...?"; `sentences` are ways to state the fact."""

    about: str
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Topic:
    """`names` are format strings for the subject; its first fact always opens the passage."""

    names: tuple[str, ...]
    facts: tuple[Fact, ...]


@cache
def topics() -> tuple[Topic, ...]:
    document = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(
        Topic(tuple(t["names"]), tuple(Fact(f["about"], tuple(f["say"])) for f in t["fact"])) for t in document["topic"]
    )
