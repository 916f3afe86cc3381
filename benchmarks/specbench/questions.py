"""Questions in Spec-Bench's format (question.jsonl: one object a line with question_id, category and turns)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("multi-turn", "translation", "summarization", "qa", "math_reasoning", "rag")
OWN = Path(__file__).parent / "questions.jsonl"
"""Twenty of each kind, written for this repository."""

_MULTI_TURN = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities", "mt_bench")
"""Categories of MT-Bench, which are Spec-Bench's multi-turn conversations."""


class QuestionsInvalid(Exception):
    """The message names the file, the line and what was expected."""


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation's questions, in order; all kinds but multi-turn have one turn."""

    name: str
    kind: str
    turns: tuple[str, ...]


def load_questions(path: Path) -> dict[str, list[Question]]:
    """By kind, in the order of KINDS, each as the file has them. Raises QuestionsInvalid."""
    found: dict[str, list[Question]] = {kind: [] for kind in KINDS}
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise QuestionsInvalid(f"{path}: cannot be read: {error}") from None
    for number, line in enumerate(lines, 1):
        if line.strip():
            question = _question(line, f"{path} line {number}")
            found[question.kind].append(question)
    if not any(found.values()):
        raise QuestionsInvalid(f"{path}: has no questions; expected one JSON object a line")
    return {kind: questions for kind, questions in found.items() if questions}


def first(questions: Mapping[str, Sequence[Question]], count: int) -> dict[str, list[Question]]:
    """The first `count` of each kind."""
    return {kind: list(each[:count]) for kind, each in questions.items()}


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
