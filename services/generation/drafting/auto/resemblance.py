"""What an undeclared request's prompt looks like: which workload it resembles, read off its text.

What pays is much the same in prompts that look alike. Being wrong costs speed, never a token.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

STRUCTURED, CODE, RAG, OTHER = "structured", "code", "rag", "other"  # the first three are declared workloads too
RESEMBLANCES = (STRUCTURED, CODE, RAG, OTHER)

_ENDS = 256  # tokens at either end of a prompt that are looked at
_MEMBER = re.compile(r'"[^"\n]{1,64}"\s*:')  # of a JSON object
_CODE_LINE = re.compile(r"(?: {2,}|\t)\s*\S|.*[{};:(\[,]\s*$|\s*(?:#include|import|from|def|class|return|func|fn)\b.*")
_LONG_LINE = 160  # characters: a paragraph of a document rather than a turn of a talk
_LEAST_MEMBERS, _LEAST_LINES = 4, 4
_CHARACTERS_A_MEMBER = 160  # at most, on average, where a prompt is mostly JSON
_HALF = 0.5


def resemblance(text: str) -> str:
    """One of RESEMBLANCES: the first of these that holds.

    structured: four members of JSON objects or more, one in every 160 characters at least (tools, schemas, records).
    code: four lines or more, half of them indented, ending as statements do, or imports and definitions.
    rag: half of the text stands in lines of 160 characters or more (passages, documents).
    """
    members = len(_MEMBER.findall(text))
    if members >= _LEAST_MEMBERS and members * _CHARACTERS_A_MEMBER >= len(text):
        return STRUCTURED
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) >= _LEAST_LINES and sum(_CODE_LINE.match(line) is not None for line in lines) >= _HALF * len(lines):
        return CODE
    if text and sum(len(line) for line in lines if len(line) >= _LONG_LINE) >= _HALF * len(text):
        return RAG
    return OTHER


def of_tokens(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> str:
    """That of a prompt by its first and its last 256 tokens."""
    seen = tokens if len(tokens) <= 2 * _ENDS else [*tokens[:_ENDS], *tokens[-_ENDS:]]
    return resemblance(decode(seen))
