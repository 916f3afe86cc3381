"""The answer of another engine while it is received, and the checks of its values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from services.generation.engine.events import FinishReason, TokenLogprobs
from services.generation.engine.request import EngineRequest

_LARGEST = 3.4e38  # of a float32
_ROUNDING = 1e-3  # nats by which sums of probabilities may exceed 1


class UpstreamError(Exception):
    """An answer of an upstream cannot be used; the message names the expected form."""


@dataclass(frozen=True, slots=True)
class Drafted:
    """The engine's own counts of one sequence."""

    passes: int  # with at least one token
    proposed: int
    accepted: int
    drafts: int = 0  # 0 also if they are not reported
    accepted_per_pos: tuple[int, ...] = ()  # drafts whose i-th token was accepted; empty also if not reported

    @staticmethod
    def of_histogram(tokens: int, proposed: int, accepted: int, histogram: Sequence[object]) -> Drafted:
        """The counts of an answer of `tokens` tokens. `histogram`: drafts by the number of their accepted tokens, left
        out unless its sum is `accepted`. Raises UpstreamError.
        """
        drafts = [count_in(each) for each in histogram]
        if sum(place * count for place, count in enumerate(drafts)) != accepted:
            drafts = []
        reached = [*accumulate(reversed(drafts))][::-1]
        return Drafted(tokens - accepted, proposed, accepted, sum(drafts), tuple(reached[1:]))


@dataclass(frozen=True, slots=True)
class Refusal:
    """The reason why a request is refused, and its HTTP status."""

    status: int
    message: str


@dataclass(slots=True)
class Answer:
    """One sequence while it is received. `ids` and `text` only grow; the other members are set at the end."""

    ids: list[int] = field(default_factory=list)
    text: str = ""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: FinishReason | None = None
    stop_reason: str | int | None = None
    drafted: Drafted | None = None
    prompt: list[int] | None = None  # as the engine has read it, if it reports that
    cached_tokens: int = 0
    counted: int | None = None  # the engine's count of tokens: `ids` may lack some


def finish_of(word: object) -> FinishReason:
    """The finish reason for an engine's word. Raises UpstreamError for an unknown word."""
    reasons: dict[object, FinishReason] = {
        "stop": "stop", "eos": "stop", "word": "stop", "length": "length", "limit": "length", "abort": "cancelled",
        "error": "error",
    }  # fmt: skip
    if word not in reasons:
        raise UpstreamError(f"ended an output with {word!r}; expected one of {', '.join(map(str, reasons))}")
    return reasons[word]


def stop_of(answer: Answer, request: EngineRequest) -> str | int | None:
    """The stop reason in receipts: a requested string or token id, None for a token of the model."""
    reason, params = answer.stop_reason, request.sampling
    asked = params.stop if isinstance(reason, str) else params.stop_token_ids if type(reason) is int else ()
    return reason if reason in asked else None


def ids_in(value: object) -> list[int]:
    """The token ids. Raises UpstreamError for anything but a list of token ids."""
    if not isinstance(value, list) or not all(type(each) is int and 0 <= each < 2**32 for each in value):
        raise UpstreamError(f"gave {str(value)[:80]} for token ids; expected whole numbers")
    return value


def count_in(value: object) -> int:
    """The count. Raises UpstreamError for anything but a count of tokens."""
    if type(value) is not int or not 0 <= value < 2**31:
        raise UpstreamError(f"gave {str(value)[:80]} for a count of tokens; expected a whole number")
    return value


def logprob_in(token: object, logprob: object) -> tuple[int, float]:
    """A token id and its log-probability, at most 0 and finite as a float32. Raises UpstreamError for other values."""
    (known,) = ids_in([token])
    if type(logprob) not in (int, float) or not -_LARGEST < logprob <= _ROUNDING:  # type: ignore[operator]
        raise UpstreamError(f"gave {str(logprob)[:80]} for a log-probability; expected a number of 0 or less")
    return known, min(0.0, float(logprob))  # type: ignore[arg-type]  # checked in the line before


def checked_logprobs(answer: Answer, start: int, *, whole: bool) -> None:
    """Raises UpstreamError unless the log-probabilities from `start` on are those of the ids, and if the answer is
    `whole`, as many. llama-server leaves out the last ones of an answer that a stop string has ended.
    """
    given, ids = answer.logprobs, answer.ids
    if len(given) > len(ids) or (whole and len(given) < len(ids)):
        raise UpstreamError(f"gave {len(given)} log-probabilities for {len(ids)} tokens")
    pairs = zip(given[start:], ids[start:], strict=False)
    if wrong := next((each for each, token in pairs if each.token_id != token), None):
        raise UpstreamError(f"gave a log-probability of token {wrong.token_id}, which is not in its place")
