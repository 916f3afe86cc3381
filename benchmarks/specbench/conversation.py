"""Conversations with a contender: every turn is a whole request, its prompt the conversation so far."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.engines import Contender, Run
from benchmarks.specbench.questions import Question


class ChatTokenizer(Protocol):
    """The model's tokenizer."""

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class Told:
    """A contender's answers in some conversations that ran at the same time.

    `tokens` are those of each conversation's answers, one after the other. `passes` of the target are None where the
    contender does not say.
    """

    seconds: float
    tokens: tuple[tuple[int, ...], ...]
    passes: float | None


def converse(
    contender: Contender,
    questions: Sequence[Question],
    tokenizer: ChatTokenizer,
    temperature: float,
    max_tokens: int,
) -> Told | None:
    """All at once, turn by turn, each with the contender's own answers; None if it takes no such batch."""
    said: list[list[dict[str, str]]] = [[] for _ in questions]
    tokens: list[tuple[int, ...]] = [() for _ in questions]
    seconds, passes = 0.0, 0.0
    counted = True
    for turn in range(max(len(question.turns) for question in questions)):
        open_ = [at for at, question in enumerate(questions) if turn < len(question.turns)]
        for at in open_:
            said[at].append({"role": "user", "content": questions[at].turns[turn]})
        run = contender.run([tokenizer.encode_chat(said[at]) for at in open_], temperature, max_tokens)
        if run is None:
            return None
        for at, answer in zip(open_, run.tokens, strict=True):
            tokens[at] += answer
            said[at].append({"role": "assistant", "content": tokenizer.decode(answer)})
        seconds += run.seconds
        passes += _passes(run)
        counted = counted and bool(run.digests)  # only kolm's runs say how many passes they took
    return Told(seconds, tuple(tokens), passes if counted else None)


def _passes(run: Run) -> float:
    return sum(map(len, run.tokens)) / run.mean_acceptance_length if run.mean_acceptance_length else 0.0


def told_by_all(
    contenders: Sequence[Contender],
    questions: Sequence[Question],
    tokenizer: ChatTokenizer,
    temperature: float,
    max_tokens: int,
    dice: random.Random,
) -> Mapping[str, Told]:
    """By name, in an order drawn with `dice`: over many groups nobody comes first more often than the others."""
    order = dice.sample(contenders, len(contenders))
    told = {each.name: converse(each, questions, tokenizer, temperature, max_tokens) for each in order}
    return {name: each for name, each in told.items() if each}
