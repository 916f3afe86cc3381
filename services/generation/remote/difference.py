"""The reasons why a difference between a served answer and the plain engine's proves nothing about speculation.

An engine whose sums depend on the batch changes logits in their last bits with load. Where two tokens nearly tie, that
changes the answer, and so may a pass over drafts, without any fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from ledger.documents.engine_profile import EngineProfile
from services.generation.engine.events import Outcome, TokenLogprobs
from services.generation.engine.request import EngineRequest, SamplingParams
from services.generation.remote.dialects import DIALECTS

COPIES = 4
"""Copies of a request that the plain engine is asked beside each other: its answers under load."""
NEAR_TIE = 0.5
"""Nats between two log-probabilities that rounding may reverse; 0.22 was the most in honest answers of llama-server."""
RARE = 16.0
"""Nats: above temperature 0 rounding may exchange any two tokens next to each other in the draw, whatever lies between
their probabilities. All tokens that are rarer than this are drawn less than once in a thousand exchanges.
"""


def first_difference(served: Sequence[int], plain: Sequence[int]) -> int | None:
    """The first position with different tokens, or after the end of one."""
    pairs = enumerate(zip_longest(served, plain))
    return next((position for position, (left, right) in pairs if left != right), None)


def goes_on(profile: EngineProfile, sampling: SamplingParams) -> bool:
    """Whether the rest of an answer has to be the plain engine's answer to a prompt that ends with the tokens before: a
    greedy one, without a constraint, string or penalty that looks at them.
    """
    looks_back = sampling.stop or sampling.structured_outputs is not None or changes_logits(sampling)
    return sampling.temperature == 0.0 and not looks_back and not profile.reuses_prefixes


def after(request: EngineRequest, ids: tuple[int, ...]) -> EngineRequest:
    """The request for the rest of an answer that begins with `ids`."""
    params, made = request.sampling, len(ids)
    most, least = params.max_tokens - made, max(0, params.min_tokens - made)
    return replace(request, prompt=request.prompt + ids, sampling=replace(params, max_tokens=most, min_tokens=least))


def unsteady(profile: EngineProfile, plain: Sequence[Outcome], position: int) -> bool:
    """Whether the plain engine's answers to one request differ from each other at a position of the served answer or
    before; of an engine that states that it is batch-invariant, anywhere. A long answer nearly always differs somewhere
    later, which would hide each fault before.
    """
    most = max(len(each.token_ids) for each in plain) if profile.batch_invariant else position + 1
    ends = {(each.token_ids[:most], each.finish_reason if len(each.token_ids) <= most else None) for each in plain}
    return len(ends) > 1


def likely_at(found: Sequence[TokenLogprobs], position: int, plain: Sequence[int]) -> dict[int, float] | None:
    """The log-probabilities by token at a position of the plain answer, empty if `found` ends before it. None if
    `found` is of another answer.
    """
    if any(each.token_id != token for each, token in zip(found, plain[: position + 1], strict=False)):
        return None
    return {**dict(found[position].top), found[position].token_id: found[position].logprob} if found[position:] else {}


def incomparable(profile: EngineProfile, sampling: SamplingParams, cached: int) -> str | None:
    """The reason why no difference of a served answer proves anything, whatever its tokens; None if one may. `cached`:
    tokens of its prompt that came from the engine's cache.
    """
    if profile.reuses_prefixes or cached:
        return "the engine reuses prefixes, and how a prompt is cut may change its answers"
    if sampling.temperature > 0.0 and not DIALECTS[profile.engine].draws_alike:
        return f"above temperature 0, {profile.engine} draws other random numbers for drafts than without them"
    return None


def may_be_rounding(
    profile: EngineProfile, sampling: SamplingParams, likely: Mapping[int, float], served: int, plain: int
) -> str | None:
    """The reason why rounding alone may have exchanged two tokens; None if it cannot, or if the engine states that it
    is batch-invariant. `likely`: the log-probabilities that the plain engine reports, of the likeliest tokens.
    """
    if profile.batch_invariant:
        return None
    if not likely:
        return "the engine reports no log-probabilities, which would exclude a near tie"
    if changes_logits(sampling):
        return "penalties or biases change the log-probabilities, and the engine reports them unchanged"
    at_most = min(likely.values())
    ours, theirs = (likely.get(token, at_most) for token in (served, plain))
    if sampling.temperature == 0.0:
        apart = abs(ours - theirs)
        return f"the two tokens are {apart:.3g} nats apart, a near tie" if apart <= NEAR_TIE else None
    drawn = min(ours, theirs) >= -RARE * max(1.0, sampling.temperature)
    return "both tokens may be drawn, and the engine does not state batch_invariant" if drawn else None


def changes_logits(sampling: SamplingParams) -> bool:
    """Whether penalties or biases change logits before a token is chosen."""
    added = sampling.presence_penalty or sampling.frequency_penalty or sampling.logit_bias
    return bool(added) or sampling.repetition_penalty != 1.0
