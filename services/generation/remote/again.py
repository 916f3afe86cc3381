"""A request once more through the plain upstream: whether speculation changed what was served. For auditors."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Literal

from services.generation.engine.request import MAX_LOGPROBS, EngineRequest
from services.generation.remote.dialects import DIALECTS, About, Answer, checked
from services.generation.remote.upstream import Upstream


@dataclass(frozen=True, slots=True)
class Comparison:
    """SAME; UNSTABLE, where the plain engine gives two answers, so that a difference says nothing of speculation; or
    DEVIATION, with the first position that differs, both tokens (None: the output has ended) and the plain engine's
    log-probabilities of them (None: it does not say).
    """

    outcome: Literal["SAME", "DEVIATION", "UNSTABLE"]
    position: int | None = None
    served: int | None = None
    plain: int | None = None
    served_logprob: float | None = None
    plain_logprob: float | None = None


class PlainEngine:
    """An engine without speculation, asked from any thread; each call is one or two requests of its own.

    Methods raise UpstreamDown and UpstreamError where it gives no answer, EngineError where it refuses the request.
    """

    def __init__(self, engine: str, url: str, key: str | None = None, silence_seconds: float = 600.0) -> None:
        self._dialect, self._url, self._key, self._silence = DIALECTS[engine], url, key, silence_seconds

    def about(self) -> About:
        """What it says of itself."""

        async def ask() -> About:
            upstream = self._upstream()
            try:
                return await upstream.about()
            finally:
                await upstream.close()

        return asyncio.run(ask())

    def held_against(
        self,
        request: EngineRequest,
        served: Sequence[int],
        model: str,
        adapter: str | None = None,
        *,
        whole: bool = True,
    ) -> Comparison:
        """`request` as it was served, its seed and choice too; `whole` is False for an output that was cut short."""
        if not whole:
            request = replace(request, sampling=replace(request.sampling, max_tokens=max(1, len(served))))
        plain = self._answer(request, model, adapter).ids
        position = first_difference(served, plain if whole else plain[: len(served)])
        if position is None:
            return Comparison("SAME")
        asked = replace(request, sampling=replace(request.sampling, logprobs=MAX_LOGPROBS))
        again = self._answer(asked, model, adapter)
        if again.ids != plain:
            return Comparison("UNSTABLE", position)
        told = again.logprobs[position] if position < len(again.logprobs) else None
        ours, theirs = (ids[position] if position < len(ids) else None for ids in (served, plain))
        return Comparison(
            "DEVIATION",
            position,
            ours,
            theirs,
            None if told is None else dict(told.top).get(ours if ours is not None else -1),
            None if told is None else told.logprob,
        )

    def _upstream(self) -> Upstream:
        return Upstream(self._dialect, self._url, self._key, self._silence)

    def _answer(self, request: EngineRequest, model: str, adapter: str | None) -> Answer:
        request = replace(request, method="off", next_methods=(), k=None, reuse=False)
        checked(self._dialect, request)
        body = self._dialect.body(request, model, adapter, stream=False)

        async def ask() -> Answer:
            answer, upstream = Answer(), self._upstream()
            try:
                async with aclosing(upstream.events(body)) as events:
                    async for event in events:
                        if event is not None:
                            self._dialect.read(event, answer)
            finally:
                await upstream.close()
            return answer

        return asyncio.run(ask())


def first_difference(served: Sequence[int], plain: Sequence[int]) -> int | None:
    """The first position at which they differ, or one of them has ended; None where they are equal."""
    differing = (place for place, (one, other) in enumerate(zip(served, plain, strict=False)) if one != other)
    return next(differing, None if len(served) == len(plain) else min(len(served), len(plain)))
