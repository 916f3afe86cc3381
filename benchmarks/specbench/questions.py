"""Questions in Spec-Bench's format (question.jsonl: question_id, category and turns), and longer versions of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

KINDS = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag", "code_edit")
"""Spec-Bench's six kinds, and edits of a code file."""
OWN = Path(__file__).parent / "questions.jsonl"
"""Twenty of each of Spec-Bench's kinds, written for this repository."""

_MULTI_TURN = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities", "mt_bench")
"""Categories of MT-Bench, which are Spec-Bench's multi-turn conversations."""

PAGES = Path(__file__).parents[2] / "docs"


class QuestionsInvalid(Exception):
    """A file of questions is wrong; the message has the file, the line and the expected form."""


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation's questions, in order; all kinds but multi-turn have one turn."""

    name: str
    kind: str
    turns: tuple[str, ...]


def load_questions(path: Path) -> dict[str, list[Question]]:
    """Questions by kind, in the order of KINDS and within a kind of the file. Raises QuestionsInvalid."""
    found: dict[str, list[Question]] = {kind: [] for kind in KINDS}
    try:
        lines = path.read_text("utf-8").split("\n")  # a string may hold every other separator of lines
    except (OSError, UnicodeDecodeError) as error:
        raise QuestionsInvalid(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            question = _question(line, f"{path} line {number}")
            found[question.kind].append(question)
    if not any(found.values()):
        raise QuestionsInvalid(f"{path}: has no questions; expected one JSON object a line")
    return {kind: questions for kind, questions in found.items() if questions}


def _question(line: str, place: str) -> Question:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise QuestionsInvalid(f"{place}: is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise QuestionsInvalid(f"{place}: expected an object with question_id, category and turns")
    turns: Any = value.get("turns")
    if not isinstance(turns, list) or not turns or not all(isinstance(turn, str) and turn for turn in turns):
        raise QuestionsInvalid(f"{place}: turns: expected a list of texts, at least one")
    return Question(str(value.get("question_id", place)), _kind(value.get("category"), place), tuple(turns))


def _kind(category: object, place: str) -> str:
    kind = "multi-turn" if category in _MULTI_TURN else category
    if kind not in KINDS:
        raise QuestionsInvalid(f"{place}: category: expected one of {', '.join(KINDS)}, got {category!r}")
    return str(kind)


def lengthened(
    question: Question, tokens: int, pages: Sequence[str], encode: Callable[[str], Sequence[int]]
) -> Question:
    """The question with words of `pages` before its first turn, as many as fit into `tokens` tokens.

    A prompt repeats no page. Raises ValueError if the pages are too short.
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
