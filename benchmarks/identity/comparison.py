"""Answers of a speculating server beside those of the plain one, request by request."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

from benchmarks.identity.servers import Answer, Asked, Server, messages_of
from benchmarks.specbench.questions import Question

_NORMAL_95 = 1.96


@dataclass(frozen=True, slots=True)
class Compared:
    """One request's answers: plain, plain once more, and with speculation."""

    question: str
    kind: str
    turn: int
    plain: Answer
    again: Answer
    speculated: Answer


def compare(
    questions: Iterable[Question],
    plain: Server,
    speculating: Server,
    ask: Callable[[tuple[tuple[str, str], ...]], Asked],
) -> Iterable[Compared]:
    """Every turn of every question. All prompts go on from the plain answers, so that one difference makes no others.

    The plain server is asked twice: a server that does not repeat itself differs without speculation, too.
    Raises ServerFailed.
    """
    for question in questions:
        answers: list[str] = []
        for turn in range(len(question.turns)):
            asked = ask(messages_of(question.turns, answers))
            first, with_drafts, second = plain.answer(asked), speculating.answer(asked), plain.answer(asked)
            yield Compared(question.name, question.kind, turn, first, second, with_drafts)
            answers.append(first.text)


def report(compared: Sequence[Compared]) -> dict[str, Any]:
    """Shares of identical answers with 95 % intervals, in all and by kind, and where the others differ first."""
    kinds = dict.fromkeys(each.kind for each in compared)
    different = [each for each in compared if not same(each.plain, each.speculated)]
    return {
        "requests": len(compared),
        "compared by": "token ids" if all(_by_tokens(each) for each in compared) else "text",
        "speculation = plain": _share(compared, "speculated"),
        "plain = plain again": _share(compared, "again"),
        "kinds": {kind: _share([each for each in compared if each.kind == kind], "speculated") for kind in kinds},
        "different": [
            {
                "question": each.question,
                "turn": each.turn,
                "first difference": first_difference(each.plain, each.speculated),
                "plain repeats itself": same(each.plain, each.again),
            }
            for each in different
        ],
    }


def same(one: Answer, other: Answer) -> bool:
    """By token ids where both have them, else by text."""
    return first_difference(one, other) is None


def first_difference(one: Answer, other: Answer) -> int | None:
    """The first position, of tokens where both have ids and else of characters; None where there is no difference."""
    if one.token_ids is not None and other.token_ids is not None:
        left: Sequence[Any] = one.token_ids
        right: Sequence[Any] = other.token_ids
    else:
        left, right = one.text, other.text
    if left == right:
        return None
    return next(
        (at for at, pair in enumerate(zip(left, right, strict=False)) if pair[0] != pair[1]), min(len(left), len(right))
    )


def interval(successes: int, count: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a share (E. B. Wilson 1927), which is right at 0 and 1, too."""
    share, square = successes / count, _NORMAL_95**2
    middle = (share + square / (2 * count)) / (1 + square / count)
    half = _NORMAL_95 * sqrt(share * (1 - share) / count + square / (4 * count**2)) / (1 + square / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def _share(compared: Sequence[Compared], which: str) -> dict[str, Any]:
    identical = sum(same(each.plain, getattr(each, which)) for each in compared)
    low, high = interval(identical, len(compared))
    return {
        "identical": identical,
        "of": len(compared),
        "share": round(identical / len(compared), 4),
        "95 %": [round(low, 4), round(high, 4)],
    }


def _by_tokens(each: Compared) -> bool:
    return all(answer.token_ids is not None for answer in (each.plain, each.again, each.speculated))
