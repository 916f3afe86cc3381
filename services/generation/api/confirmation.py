"""The confirmation that speculation changed an answer of another engine, before the receipt states it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from ledger.documents.audit import UNCHECKED, UNSTABLE
from ledger.documents.engine_profile import EngineProfile
from services.generation.engine.backend import Backend
from services.generation.engine.engine import Ticket
from services.generation.engine.events import Chunk, Event, Finished, Outcome, TokenLogprobs
from services.generation.engine.request import MAX_LOGPROBS, EngineError, EngineRequest
from services.generation.remote.difference import (
    COPIES,
    first_difference,
    incomparable,
    likely_at,
    may_be_rounding,
    unsteady,
)
from services.generation.requests.resolution import Resolved

_UNSTEADY = f"{UNSTABLE}: the engine gives two results without speculation"


async def off_outcome(
    engine: Backend, request: EngineRequest, is_cancelled: Callable[[], bool]
) -> tuple[Outcome, Ticket] | str:
    """The outcome of a request with speculation off, or the reason why it did not finish."""
    if is_cancelled():  # before the engine has it
        return "cancelled"
    try:
        off, ticket = await engine.complete(request)
    except EngineError as error:
        return str(error)
    return (off, ticket) if off.finish_reason in ("stop", "length") else off.error or off.finish_reason


async def unproven(engine: Backend, resolved: Resolved, request: EngineRequest, served: Outcome, plain: Outcome,
                   profile: EngineProfile, is_cancelled: Callable[[], bool]) -> str | None:  # fmt: skip
    """The reason why a difference from `plain`, the outcome of `request`, proves no fault of speculation: the engine
    differs from itself alone or under load, or rounding explains the difference. None if it is proven.
    """
    if resolved.decision.method == "off":
        return _UNSTEADY
    reason = incomparable(profile, request.sampling, served.metrics.cached_prompt_tokens)
    if reason is not None:
        return f"{UNSTABLE}: {reason}"
    alone = await off_outcome(engine, request, is_cancelled)
    beside = await asyncio.gather(*(off_outcome(engine, request, is_cancelled) for _ in range(COPIES)))
    found = [plain]
    for each in (alone, *beside):
        if isinstance(each, str):
            return f"{UNCHECKED}: it differs with speculation off, which could not be confirmed: {each}"
        found.append(each[0])
    position = first_difference(served.token_ids, plain.token_ids)
    if unsteady(profile, found, len(served.token_ids) - 1 if position is None else position):
        return _UNSTEADY
    if position is None or position >= min(len(served.token_ids), len(plain.token_ids)):
        return None
    likely = likely_at(await _logprobs(engine, request), position, plain.token_ids)
    if likely is None:
        return _UNSTEADY
    ours, theirs = (each.token_ids[position] for each in (served, plain))
    reason = may_be_rounding(profile, request.sampling, likely, ours, theirs)
    return None if reason is None else f"{UNSTABLE}: {reason}"


async def _logprobs(engine: Backend, request: EngineRequest) -> list[TokenLogprobs]:
    """The log-probabilities that the engine reports of its answer; fewer if it refuses or breaks off."""
    found: list[TokenLogprobs] = []
    ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def take(event: Event) -> None:
        if isinstance(event, Chunk):
            found.extend(event.logprobs)
        elif isinstance(event, Finished):
            ended.set_result(None)

    asked = replace(request, sampling=replace(request.sampling, logprobs=MAX_LOGPROBS))
    try:
        await engine.submit_all((asked,), take)
    except EngineError:
        return []
    await ended
    return found
