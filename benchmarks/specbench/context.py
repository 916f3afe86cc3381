"""Prompts of a given length: a question after pages of this repository's documentation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.specbench.questions import Question

PAGES = Path(__file__).parents[2] / "docs"


def lengthened(
    question: Question, tokens: int, pages: Sequence[str], encode: Callable[[str], Sequence[int]]
) -> Question:
    """The question with its first turn behind as many words of `pages` as keep it to `tokens` tokens.

    A prompt repeats no page. Raises ValueError where the pages are too short.
    """
    words = " ".join(pages).split(" ")
    low, high = 0, len(words)
    if len(encode(_turn(words, question))) < tokens:
        raise ValueError(f"the pages have fewer than {tokens} tokens")
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if len(encode(_turn(words[:middle], question))) <= tokens else (low, middle - 1)
    return replace(question, turns=(_turn(words[:low], question), *question.turns[1:]))


def own_pages() -> list[str]:
    """The documentation's pages."""
    return [path.read_text("utf-8") for path in sorted(PAGES.glob("*.md"))]


def _turn(words: Sequence[str], question: Question) -> str:
    return f"{' '.join(words)}\n\n{question.turns[0]}" if words else question.turns[0]
