"""A sequence being generated: its tokens, its place in the cache, and what has to be known to end it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ledger.encoding.stream_digest import StreamDigest
from services.generation.engine.engine_error import UnusableLogits
from services.generation.engine.events import (
    Chunk,
    Counts,
    Finished,
    FinishReason,
    Outcome,
    Sink,
    TokenLogprobs,
    Tracker,
)
from services.generation.engine.request import EngineRequest
from services.generation.engine.sampling.processors import GrammarMask, end_ids
from services.generation.engine.sampling.race import Row
from services.generation.engine.sampling.sampler import Sampler, logprobs_of
from services.generation.engine.text.text_stream import Released, TextStream, TokenDecoder


class Sequence:
    """Tokens [0, cached) have keys and values in the cache blocks `table`; the rest are pending.

    One pending token is the normal state between passes: the root of the next tree. More are a prompt still to be
    computed, or everything after a preemption.
    """

    def __init__(
        self,
        request: EngineRequest,
        sink: Sink,
        decoder: TokenDecoder,
        eos_token_ids: tuple[int, ...],
        now: float,
        totals: Counts,
    ) -> None:
        """`totals`: the counters of all sequences."""
        params = request.sampling
        self.request = request
        self.tokens = list(request.prompt)
        self.cached = 0
        self.table: list[int] = []
        self.draft_begun = False
        self.finish_reason: FinishReason | None = None
        self.tracker = Tracker(len(request.prompt), now, totals)
        self._sink = sink
        self._stop_ids = frozenset(params.stop_token_ids)
        self.ends = end_ids(params, eos_token_ids)
        mask = None if request.grammar is None else GrammarMask(request.grammar, self.ends)
        self._sampler = Sampler(params, request.choice, request.prompt, self.ends, mask)
        self._text = TextStream(decoder, params.stop)
        self._digest = StreamDigest()
        self._margins: list[float] = []
        self._logprobs: list[TokenLogprobs] = []
        self._stop_reason: str | int | None = None
        self._error: str | None = None

    @property
    def prompt_length(self) -> int:
        return len(self.request.prompt)

    @property
    def output_length(self) -> int:
        return len(self.tokens) - self.prompt_length

    @property
    def pending(self) -> int:
        return len(self.tokens) - self.cached

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.request.sampling.max_tokens - self.output_length

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None

    def emit(self, logits: NDArray[np.float32]) -> int | None:
        """Sample the next token from its row and commit it; None if the sequence has ended.

        The token that ends it counts. A row that no token can be chosen by ends it with an error instead.
        """
        try:
            row = Row.of(logits)
            token = self._sampler.choose(row, len(self.tokens))
        except UnusableLogits as error:
            self.fail(str(error))
            return None
        self._commit(token)
        self._digest.update(token, row.best, row.second)
        self._margins.append(row.best - row.second)
        if self.request.sampling.logprobs is not None:
            self._logprobs.append(logprobs_of(row, token, self.request.sampling.logprobs))
        return None if self.finished else token

    def _commit(self, token: int) -> None:
        self.tokens.append(token)
        self._sampler.accept(token)
        ends = token in self.ends
        enough = self.output_length >= self.request.sampling.min_tokens
        matched = self._text.feed(token, visible=not ends, search=enough)
        if ends:
            self._end("stop", token if token in self._stop_ids else None)
        elif matched is not None:
            self._end("stop", matched)
        elif self.remaining == 0:
            self._end("length", None)

    def _end(self, reason: FinishReason, stop_reason: str | int | None) -> None:
        self.finish_reason, self._stop_reason = reason, stop_reason

    def cancel(self) -> None:
        if not self.finished:
            self._end("cancelled", None)

    def fail(self, error: str) -> None:
        """End with an error; tokens emitted so far stay."""
        self._end("error", None)
        self._error = error

    def preempt(self) -> None:
        """Forget the cache; all tokens are pending again and will be computed to the same bits."""
        self.cached = 0

    def stream(self) -> None:
        """Hand the sink what can be released."""
        if not self.finished:
            self._send(self._text.release())

    def finish(self, now: float) -> None:
        """Hand the sink the rest and the outcome. The last call on a sequence."""
        assert self.finish_reason is not None
        self._send(self._text.finish(matched=isinstance(self._stop_reason, str)))
        outcome = Outcome(
            token_ids=tuple(self.tokens[self.prompt_length :]),
            text=self._text.text,
            finish_reason=self.finish_reason,
            stop_reason=self._stop_reason,
            stream_digest=self._digest.hexdigest(),
            margins=tuple(self._margins),
            metrics=self.tracker.metrics(self.output_length, now),
            error=self._error,
        )
        self._sink(Finished(self.request.request_id, self.request.choice, outcome))

    def _send(self, released: Released) -> None:
        if released.token_ids or released.text:
            count = len(released.token_ids)
            logprobs, self._logprobs = tuple(self._logprobs[:count]), self._logprobs[count:]
            self._sink(Chunk(self.request.request_id, self.request.choice, released.token_ids, released.text, logprobs))
