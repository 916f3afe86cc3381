"""Replay of a request through the plain upstream, to check a served answer. Token ids in, token ids out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar

from ledger.encoding.stream_digest import token_digest
from services.generation.engine.events import EMPTY_OUTCOME, Outcome, TokenLogprobs
from services.generation.engine.request import EngineRequest
from services.generation.remote.answer import Answer, UpstreamError, stop_of
from services.generation.remote.dialects import DIALECTS, About, checked, numbers_of, read_event
from services.generation.remote.upstream import Upstream, UpstreamDown

_T = TypeVar("_T")


class PlainEngine:
    """An engine without speculation, for use from any thread; each call has its own connection.

    Methods raise UpstreamDown if it does not answer, UpstreamError if its answer cannot be used; methods that generate
    tokens raise EngineError if it refuses the request.
    """

    def __init__(self, engine: str, url: str, key: str | None = None, silence_seconds: float = 600.0) -> None:
        """`silence_seconds` without a byte end a request; no answer is streamed."""
        self._dialect, self._url, self._key, self._silence = DIALECTS[engine], url, key, silence_seconds

    def about(self) -> About:
        """The engine's description of itself."""
        return self._asked(lambda upstream: upstream.about())

    def again(self, request: EngineRequest) -> Outcome:
        """The outcome without speculation, text and counts left empty. `request.reuse`: whether the engine may reuse
        cached prefixes, as when it served the answer.
        """
        return _outcome(self._asked(lambda upstream: self._sent(upstream, request)), request)

    def together(self, request: EngineRequest, copies: int) -> tuple[Outcome, ...]:
        """The outcomes of `copies` of the request, computed beside each other."""

        async def ask(upstream: Upstream) -> tuple[Outcome, ...]:
            asked = (self._sent(upstream, request) for _ in range(copies))
            return tuple(_outcome(answer, request) for answer in await asyncio.gather(*asked))

        return self._asked(ask)

    def logprobs(self, request: EngineRequest) -> tuple[TokenLogprobs, ...]:
        """The log-probabilities at each position of `again`, request.sampling.logprobs of them."""
        return tuple(self._asked(lambda upstream: self._sent(upstream, request)).logprobs)

    async def _sent(self, upstream: Upstream, request: EngineRequest) -> Answer:
        request = replace(request, method="off", next_methods=(), k=None)
        checked(self._dialect, request)
        answer, model = Answer(), (await upstream.about()).model
        body = self._dialect.body(request, model, None, stream=False)
        await upstream.answer(body, numbers_of(request), lambda event: read_event(self._dialect, event, answer))
        return answer

    def _asked(self, ask: Callable[[Upstream], Awaitable[_T]]) -> _T:
        async def connected() -> _T:
            upstream = Upstream(self._dialect, self._url, self._key, self._silence)
            try:
                async with asyncio.timeout(2 * self._silence):
                    return await ask(upstream)
            except TimeoutError as error:
                raise UpstreamDown(f"{self._url} has not answered in {2 * self._silence:g} s") from error
            finally:
                await upstream.close()

        return asyncio.run(connected())


def _outcome(answer: Answer, request: EngineRequest) -> Outcome:
    """Raises UpstreamError for an answer without an end."""
    if answer.finish is None:
        raise UpstreamError("ended an answer in the middle")
    return replace(
        EMPTY_OUTCOME,
        token_ids=tuple(answer.ids),
        finish_reason=answer.finish,
        stop_reason=stop_of(answer, request),
        stream_digest=token_digest(answer.ids),
    )
