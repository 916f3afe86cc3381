"""Subjects of support chats; the text is in `products.toml`."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """`symptoms` as a customer tells them, one `question` an agent asks with its `answers`, and `steps` in order."""

    symptoms: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    steps: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Product:
    kind: str
    problems: tuple[Problem, ...]


@cache
def products() -> tuple[Product, ...]:
    document = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(Product(p["kind"], tuple(map(_problem, p["problem"]))) for p in document["product"])


def _problem(table: dict[str, Any]) -> Problem:
    return Problem(tuple(table["symptoms"]), table["question"], tuple(table["answers"]), tuple(table["steps"]))
