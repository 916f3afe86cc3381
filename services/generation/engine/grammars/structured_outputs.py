"""A request's constraint on its output."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal, get_args

Kind = Literal["json", "json_object", "regex", "choice", "grammar"]
KINDS: tuple[Kind, ...] = get_args(Kind)

MAX_TEXT = 256 * 1024  # characters


def grammar_engine() -> str:
    """The library that decides which tokens may follow, with its version: another one may decide otherwise."""
    return f"llguidance/{version('llguidance')}"


@dataclass(frozen=True, slots=True)
class StructuredOutputs:
    """One constraint, under vLLM's names.

    `text` is a JSON schema (draft 2020-12) for `json`, a regular expression that the whole output matches for `regex`,
    a JSON array of texts for `choice`, a Lark or GBNF grammar for `grammar`, nothing for `json_object`.
    """

    kind: Kind
    text: str = ""
