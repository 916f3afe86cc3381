"""The reasons why a difference between a served answer and the plain engine's proves nothing about speculation.

An engine whose sums depend on the batch changes logits in their last bits with load. Where two tokens nearly tie, that
changes the answer, and so may a pass over drafts, without any fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from ledger.documents.engine_profile import EngineProfile
from services.generation.engine.events import Outcome, TokenLogprobs
from services.generation.engine.request import SamplingParams

COPIES = 4
"""Copies of a request that the plain engine is asked beside each other: its answers under load."""
NEAR_TIE = 0.5
"""Nats between two log-probabilities that rounding may reverse; 0.22 was the most in honest answers of llama-server."""
RARE = 7.0
"""Nats: above temperature 0 rounding may exchange any two tokens next to each other in the draw, whatever lies between
their probabilities; but a token rarer than this is drawn in fewer than one of a thousand exchanges.
"""


def first_difference(served: Sequence[int], plain: Sequence[int]) -> int | None:
    """The first position with different tokens, or after the end of one."""
    pairs = enumerate(zip_longest(served, plain))
    return next((position for position, (left, right) in pairs if left != right), None)


def differ(outcomes: Sequence[Outcome]) -> bool:
    """Whether the answers of one engine to one request differ from each other."""
    return len({(each.token_ids, each.finish_reason) for each in outcomes}) > 1


def likely_at(found: Sequence[TokenLogprobs], position: int, plain: Sequence[int]) -> dict[int, float] | None:
    """The log-probabilities by token at a position of the plain answer, empty if `found` ends before it. None if
    `found` is of another answer.
    """
    if any(each.token_id != token for each, token in zip(found, plain[: position + 1], strict=False)):
        return None
    return {**dict(found[position].top), found[position].token_id: found[position].logprob} if found[position:] else {}


def may_be_rounding(
    profile: EngineProfile, sampling: SamplingParams, served: float | None, plain: float | None
) -> str | None:
    """The reason why rounding alone may have exchanged two tokens with these log-probabilities; None if it cannot, if
    the engine states that it is batch-invariant, or if one is unknown, as that of a token beyond the reported ones.
    """
    if profile.batch_invariant or served is None or plain is None:
        return None
    if sampling.temperature == 0.0:
        apart = abs(served - plain)
        return f"the two tokens are {apart:.3g} nats apart, a near tie" if apart <= NEAR_TIE else None
    likely = min(served, plain) >= -RARE
    return "both tokens may be drawn, and the engine does not state batch_invariant" if likely else None
