"""Conversations with contenders, and their figures: speed, acceptance, speedup over plain decoding, identity."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, hypot, log, sqrt
from statistics import pvariance
from typing import Any, Protocol

from benchmarks.engines import Contender, Run
from benchmarks.specbench.questions import Question


class ChatTokenizer(Protocol):
    """The model's tokenizer."""

    def encode_chat(self, messages: Sequence[dict[str, str]]) -> list[int]: ...
    def decode(self, token_ids: Sequence[int]) -> str: ...


@dataclass(frozen=True, slots=True)
class ConversationRun:
    """The answers of one contender to a group of conversations that ran concurrently.

    `tokens` are the concatenated answers of each conversation, `digests` the stream digests of its answers, `passes`
    all passes of the target.
    """

    seconds: float
    tokens: tuple[tuple[int, ...], ...]
    passes: float
    digests: tuple[tuple[str, ...], ...] = ()


def converse(
    contender: Contender, questions: Sequence[Question], tokenizer: ChatTokenizer, temperature: float, max_tokens: int
) -> ConversationRun:
    """Run all conversations concurrently, turn by turn; a prompt contains the contender's own earlier answers."""
    histories: list[list[dict[str, str]]] = [[] for _ in questions]
    tokens: list[tuple[int, ...]] = [() for _ in questions]
    digests: list[tuple[str, ...]] = [() for _ in questions]
    seconds, passes = 0.0, 0.0
    for turn in range(max(len(question.turns) for question in questions)):
        active = [at for at, question in enumerate(questions) if turn < len(question.turns)]
        for at in active:
            histories[at].append({"role": "user", "content": questions[at].turns[turn]})
        run = contender.run([tokenizer.encode_chat(histories[at]) for at in active], temperature, max_tokens)
        for at, answer, digest in zip(active, run.tokens, run.digests, strict=True):
            tokens[at], digests[at] = tokens[at] + answer, (*digests[at], digest)
            histories[at].append({"role": "assistant", "content": tokenizer.decode(answer)})
        seconds += run.seconds
        passes += _passes(run)
    return ConversationRun(seconds, tuple(tokens), passes, tuple(digests))


def _passes(run: Run) -> float:
    return sum(map(len, run.tokens)) / run.mean_acceptance_length if run.mean_acceptance_length else 0.0


def run_all(
    contenders: Sequence[Contender],
    questions: Sequence[Question],
    tokenizer: ChatTokenizer,
    temperature: float,
    max_tokens: int,
    rng: random.Random,
) -> Mapping[str, ConversationRun]:
    """Run all contenders in random order, so that each is first equally often on average. Returns the runs by name."""
    order = rng.sample(contenders, len(contenders))
    return {each.name: converse(each, questions, tokenizer, temperature, max_tokens) for each in order}


RunsByKind = Mapping[str, Sequence[Mapping[str, ConversationRun]]]
"""For each kind of question a list of groups; a group maps the names of contenders to their answers."""


def summarise(runs: RunsByKind, plain: str) -> dict[str, Any]:
    """Figures by kind and over all kinds, for each contender of `runs`.

    `plain` names plain decoding. A kind's speedup is the ratio of tokens per second over all its groups; over all kinds
    it is the geometric mean. Its error is the standard error by the jackknife over groups (Efron 1982), None for a kind
    with one group. The acceptance length is the number of tokens a pass of the target.
    """
    names = sorted({name for groups in runs.values() for group in groups for name in group})
    return {name: _contender(runs, name, plain) for name in names}


def _contender(runs: RunsByKind, name: str, plain: str) -> dict[str, Any]:
    kinds = {kind: _kind(groups, name, plain) for kind, groups in runs.items() if any(name in g for g in groups)}
    speedups = [each["speedup"] for each in kinds.values() if each["speedup"]]
    errors = [each["error"] / each["speedup"] for each in kinds.values() if each["error"] is not None]
    mean = geometric_mean(speedups)
    own = [group[name] for groups in runs.values() for group in groups if name in group]
    pairs = [(g[name], g[plain]) for groups in runs.values() for g in groups if name in g and plain in g]
    return {
        "plain": plain,
        "kinds": kinds,
        "speedup": _rounded(mean),
        "error": _rounded(mean * hypot(*errors) / len(errors)) if mean and len(errors) == len(kinds) else None,
        "tokens_per_second": _rounded(_speed(own), 1),
        "acceptance length": _rounded(_length(own)),
        "identical to plain": _rounded(identical_share(pairs), 4),
    }


def _kind(groups: Sequence[Mapping[str, ConversationRun]], name: str, plain: str) -> dict[str, Any]:
    own = [group[name] for group in groups if name in group]
    pairs = [(group[name], group[plain]) for group in groups if name in group and plain in group]
    return {
        "requests": sum(len(each.tokens) for each in own),
        "tokens_per_second": _rounded(_speed(own), 1),
        "acceptance length": _rounded(_length(own)),
        "speedup": _rounded(_speedup(pairs)) if pairs else None,
        "error": _rounded(_error(pairs)),
        "identical to plain": _rounded(identical_share(pairs), 4),
    }


def _speedup(pairs: Sequence[tuple[ConversationRun, ConversationRun]]) -> float:
    return _speed([one for one, _ in pairs]) / _speed([other for _, other in pairs])


def _error(pairs: Sequence[tuple[ConversationRun, ConversationRun]]) -> float | None:
    """Standard error of the speedup."""
    count = len(pairs)
    if count < 2:
        return None
    without = [_speedup([*pairs[:each], *pairs[each + 1 :]]) for each in range(count)]
    return sqrt((count - 1) * pvariance(without))


def geometric_mean(ratios: Sequence[float]) -> float | None:
    """The geometric mean; None if there are no ratios."""
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else None


def identical_share(pairs: Sequence[tuple[ConversationRun, ConversationRun]]) -> float | None:
    """The share of conversations with equal tokens and stream digests; None if none were compared."""
    same = [
        one.tokens[at] == other.tokens[at] and one.digests[at : at + 1] == other.digests[at : at + 1]
        for one, other in pairs for at in range(len(one.tokens))
    ]  # fmt: skip
    return sum(same) / len(same) if same else None


def _speed(runs: Sequence[ConversationRun]) -> float:
    """Tokens per second, with the time of prompts included."""
    return sum(len(tokens) for each in runs for tokens in each.tokens) / sum(each.seconds for each in runs)


def _length(runs: Sequence[ConversationRun]) -> float | None:
    passes = sum(each.passes for each in runs)
    return sum(len(tokens) for each in runs for tokens in each.tokens) / passes if passes else None


def _rounded(value: float | None, digits: int = 3) -> float | None:
    return None if value is None else round(value, digits)
