"""Another engine as a backend: requests go to the speculating upstream or to the plain upstream."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ledger.documents.receipt import ENGINE
from ledger.encoding.stream_digest import token_digest
from services.generation.engine.engine import Ticket
from services.generation.engine.events import (
    Chunk,
    Counts,
    Event,
    Finished,
    FinishReason,
    Load,
    Outcome,
    Sink,
    SpeculationMetrics,
    TokenLogprobs,
)
from services.generation.engine.request import EngineError, EngineFull, EngineRequest, EngineStopped, SpeculationAway
from services.generation.engine.text.tenant_threads import REMOTE_THREADS, TenantThreads
from services.generation.engine.text.tokenizer import TextCodec
from services.generation.remote.answer import Answer, UpstreamError, checked_logprobs, stop_of
from services.generation.remote.dialects import Dialect, checked, numbers_of, read_event
from services.generation.remote.ending import unended
from services.generation.remote.spelling import Spelling, missing
from services.generation.remote.upstream import Upstream, UpstreamDown

_log = logging.getLogger(__name__)

_PATIENCE = 10  # times `silence_seconds` without a token, while other bytes arrive
_PAUSES = (0.2, 1.0)  # seconds before a request that failed before its first token is sent again


@dataclass(slots=True, eq=False)
class _Sequence:
    """One sequence upstream, and how much of it has been released."""

    request: EngineRequest
    sink: Sink
    ticket: Ticket
    taken: asyncio.Future[None]
    started: float
    vocabulary: int
    answer: Answer = field(default_factory=Answer)
    spelling: Spelling | None = None  # None if the text of the ids is requested at the end
    released: int = 0  # ids
    released_text: int = 0
    first_token: float | None = None
    last_token: float = 0.0

    def begin(self, text: TextCodec) -> None:
        """Begin, or begin again: nothing has been released."""
        self.answer, decoder = Answer(), text.stream(self.request.prompt)
        self.spelling = None if decoder is None else Spelling(decoder)

    def accept(self) -> None:
        if not self.taken.done():
            self.taken.set_result(None)

    def refuse(self, error: EngineError) -> None:
        if not self.taken.done():
            self.taken.set_exception(error)

    def arrived(self, now: float) -> None:
        """Release received tokens and text, unless counted ids are missing. Raises UpstreamError."""
        answer = self.answer
        if answer.prompt is not None and tuple(answer.prompt) != self.request.prompt:
            raise UpstreamError("read other token ids than those it was sent as the prompt")
        if len(answer.ids) > self.request.sampling.max_tokens:
            raise UpstreamError(f"gave {len(answer.ids)} tokens where max_tokens is {self.request.sampling.max_tokens}")
        unknown = next((each for each in answer.ids[self.released :] if each >= self.vocabulary), None)
        if unknown is not None:
            raise UpstreamError(f"gave token id {unknown}, and the vocabulary has {self.vocabulary}")
        if answer.counted not in (None, len(answer.ids)):
            return
        ids, text = answer.ids[self.released :], answer.text[self.released_text :]
        if ids or text:
            if self.request.sampling.logprobs is not None:
                checked_logprobs(answer, self.released, whole=False)
            if self.spelling is not None:
                self.spelling.feed(ids, text)
            self.first_token, self.last_token = self.first_token or now, now
            self._send(ids, text)

    def _send(self, ids: list[int], text: str) -> None:
        most = self.request.sampling.logprobs
        logprobs = self.answer.logprobs[self.released : self.released + len(ids)] if most is not None else []
        self.released, self.released_text = self.released + len(ids), self.released_text + len(text)
        shown = tuple(replace(each, top=_best(each, most or 0)) for each in logprobs)
        self.sink(Chunk(self.request.request_id, self.request.choice, tuple(ids), text, shown))

    def tail(self, text: str) -> None:
        """Release text that the engine has left out."""
        self.answer.text += text
        self._send([], text)


def _method(request: EngineRequest) -> str:
    return "off" if request.method == "off" else ENGINE


def _best(position: TokenLogprobs, most: int) -> tuple[tuple[int, float], ...]:
    return tuple(sorted(position.top, key=lambda pair: -pair[1])[:most])


class RemoteEngine:
    """A `Backend` over HTTP. Each sequence is a request of its own, so that one that hangs delays no other."""

    def __init__(
        self,
        dialect: Dialect,
        upstreams: Mapping[str, Upstream],
        model: str,
        text: TextCodec,
        *,
        adapters: Mapping[str, str],
        most: int,
        vocabulary: int,
        ends: frozenset[int],
        reuse: bool,
        confirmed: Callable[[str], Awaitable[str]],
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """Make a backend.

        Args:
            upstreams: by method, `off` and perhaps ENGINE.
            model: the engine's name of the model.
            adapters: the engine's names of adapters, by identifier.
            most: open sequences at the same time.
            vocabulary: all ids are below it.
            ends: ids with which the model ends an output; empty if unknown.
            reuse: whether requests may reuse prefixes that others computed.
            confirmed: returns the profile of a method's upstream, refreshed if the upstream was unreachable; raises
                UpstreamDown, UpstreamError.
        """
        self._dialect, self._upstreams, self.model, self._text = dialect, upstreams, model, text
        self._adapters, self._most, self._confirmed, self._clock = adapters, most, confirmed, clock
        self._vocabulary, self._ends, self._reuse = vocabulary, ends, reuse
        self._open: dict[_Sequence, asyncio.Task[None]] = {}
        self._threads = TenantThreads(REMOTE_THREADS)
        self.alive, self.totals = True, Counts()
        self.broke_off: Callable[[str], None] = lambda method: None  # called if an upstream is down or broke off

    def load(self) -> Load:
        """Sequences of this server only; the engine's own metrics report its cache."""
        begun = sum(sequence.first_token is not None for sequence in self._open)
        return Load(begun, len(self._open) - begun, 0, 1, 0, 0)

    async def submit_all(self, requests: Sequence[EngineRequest], sink: Sink) -> list[Ticket]:
        requests = [replace(request, reuse=self._reuse) for request in requests]
        for request in requests:
            checked(self._dialect, request)
            self._body(request, stream=True)  # refuses an unsupported request
        if len(self._open) + len(requests) > self._most:
            raise EngineFull("request_id", f"{len(self._open)} sequences are at the engine, of at most {self._most}")
        alone, loop = not self._open and len(requests) == 1, asyncio.get_running_loop()
        for other in self._open:
            other.ticket.alone = False
        held = list[Event]()  # of accepted sequences, while others may be refused
        sequences = [
            _Sequence(request, held.append, Ticket(alone), loop.create_future(), self._clock(), self._vocabulary)
            for request in requests
        ]
        for sequence in sequences:
            self._open[sequence] = asyncio.create_task(self._run(sequence))
        answers = await asyncio.gather(*(sequence.taken for sequence in sequences), return_exceptions=True)
        refusal = next((each for each in answers if isinstance(each, BaseException)), None)
        if refusal is not None:
            for sequence in sequences:
                self._end(sequence)
            raise refusal
        for event in held:
            sink(event)
        for sequence in sequences:
            sequence.sink = sink
        return [sequence.ticket for sequence in sequences]

    async def complete(self, request: EngineRequest) -> tuple[Outcome, Ticket]:
        events: asyncio.Queue[Event] = asyncio.Queue()
        try:
            (ticket,) = await self.submit_all((request,), events.put_nowait)
            while not isinstance(event := await events.get(), Finished):
                pass
        except asyncio.CancelledError:
            self.cancel(request.request_id)
            raise
        return event.outcome, ticket

    def cancel(self, request_id: str) -> None:
        for sequence in self._open:
            if sequence.request.request_id == request_id:
                self._end(sequence)

    async def stop(self) -> None:
        running = list(self._open.values())
        for sequence in self._open:
            self._end(sequence)
        await asyncio.gather(*running, return_exceptions=True)

    def _end(self, sequence: _Sequence) -> None:
        """Cancel its task after the task's first step: a task that is cancelled before that runs no line of `_run`."""
        if (task := self._open.get(sequence)) is not None:
            asyncio.get_running_loop().call_soon(task.cancel)

    async def _run(self, sequence: _Sequence) -> None:
        """Run to a Finished event or, before the engine has accepted it, to its refusal, whatever happens."""
        error: str | None = None
        left = sequence.request.deadline - self._clock()
        try:
            async with asyncio.timeout(None if math.isinf(left) else max(0.0, left)):
                await self._answered(sequence)
            reason = sequence.answer.finish or "error"
        except (asyncio.CancelledError, TimeoutError):
            reason = "cancelled"
        except EngineError as refusal:
            sequence.refuse(refusal)
            reason, error = "error", str(refusal)
        except UpstreamDown as down:
            _log.warning("request %s: %s", sequence.request.request_id, down)
            reason, error = "error", "the engine cannot be reached; the log of this server has the cause"
            kind = EngineStopped if sequence.request.method == "off" else SpeculationAway
            sequence.refuse(kind("request_id", error))
        except Exception as wrong:  # neither a bug nor a malformed answer may leave a caller waiting
            if not isinstance(wrong, UpstreamError):
                _log.exception("reading an answer failed")
            reason, error = "error", f"{self._dialect.name}: {self._without_address(wrong)}"
            sequence.refuse(EngineStopped("request_id", f"the engine's answer cannot be used: {error}"))
        sequence.accept()
        del self._open[sequence]
        request = sequence.request
        sequence.sink(Finished(request.request_id, request.choice, self._outcome(sequence, reason, error)))

    def _without_address(self, error: Exception) -> str:
        """The message for callers, who need not know where the engine is."""
        text = str(error)
        for upstream in self._upstreams.values():
            text = text.replace(upstream.url, "")
        return text.lstrip()

    def _body(self, request: EngineRequest, *, stream: bool) -> dict[str, Any]:
        return self._dialect.body(request, self.model, self._adapters.get(request.adapter or ""), stream=stream)

    async def _answered(self, sequence: _Sequence) -> None:
        """Send, and send again while nothing was received. Raises EngineError, UpstreamDown, UpstreamError."""
        sent = 0
        while True:
            try:
                await self._ask(sequence, new_connection=sent > 0)
                return
            except UpstreamDown as down:
                self.broke_off(_method(sequence.request))
                sent += down.sent
                if sent > len(_PAUSES) or sequence.answer.ids or sequence.released_text:
                    raise
                _log.info("sending request %s again: %s", sequence.request.request_id, down)
                await asyncio.sleep(_PAUSES[sent - 1])

    async def _ask(self, sequence: _Sequence, *, new_connection: bool) -> None:
        request = sequence.request
        upstream = self._upstreams[_method(request)]
        profile_cid = await self._confirmed(_method(request))
        if request.profile_cid not in (None, profile_cid):
            raise EngineStopped("request_id", "the engine was updated after this request arrived; send it again")
        sequence.begin(self._text)
        limit, loop = upstream.silence_seconds * _PATIENCE, asyncio.get_running_loop()
        heard = loop.time()  # time of a token; the timer is set rarely, not for each token

        def read(event: Mapping[str, Any]) -> None:
            nonlocal heard
            before = len(sequence.answer.ids)
            read_event(self._dialect, event, sequence.answer)
            sequence.arrived(self._clock())
            now = loop.time()
            if len(sequence.answer.ids) != before and now - heard > upstream.silence_seconds:
                heard = now
                silence.reschedule(now + limit + upstream.silence_seconds)

        try:
            async with asyncio.timeout(limit) as silence:
                body, numbers = self._body(request, stream=True), numbers_of(request)
                by_event = _method(request) != "off"  # another engine answers if this one breaks off before
                await upstream.answer(
                    body, numbers, read, sequence.accept, new_connection=new_connection, by_event=by_event
                )
        except TimeoutError as error:
            raise UpstreamDown(f"{upstream.url} has sent no token for {limit:g} s") from error
        if sequence.answer.finish is not None and sequence.answer.counted not in (None, len(sequence.answer.ids)):
            await self._ask_whole(sequence, upstream)
        if sequence.answer.finish is None:
            raise UpstreamDown(f"{upstream.url} ended an answer in the middle")
        drafted = sequence.answer.drafted
        if drafted is not None and drafted.proposed and request.method == "off":
            raise UpstreamError("drafts, though it is the plain engine; answers cannot be compared with it")
        await self._checked_end(sequence)

    async def _ask_whole(self, sequence: _Sequence, upstream: Upstream) -> None:
        """Replace an answer whose stream left ids out by the answer to the same request without a stream.

        The caller has received the released part alone, so the rest may be another one, as under load. Raises
        UpstreamError if the beginning is another one.
        """
        request, whole = sequence.request, Answer()
        asked, numbers = self._body(request, stream=False), numbers_of(request)
        await upstream.answer(asked, numbers, lambda event: read_event(self._dialect, event, whole))
        if whole.counted not in (None, len(whole.ids)):
            raise UpstreamError(f"gave {len(whole.ids)} token ids, and counts {whole.counted}")
        ids, text, streamed = sequence.released, sequence.released_text, sequence.answer
        if (whole.ids[:ids], whole.text[:text]) != (streamed.ids[:ids], streamed.text[:text]):
            raise UpstreamError("left token ids out of its stream, and begins another answer without a stream")
        sequence.answer = whole
        sequence.arrived(self._clock())

    async def _checked_end(self, sequence: _Sequence) -> None:
        """Raises UpstreamError unless the ids spell the text and give the end."""
        answer = sequence.answer
        answer.stop_reason = stop_of(answer, sequence.request)
        stop = answer.stop_reason if isinstance(answer.stop_reason, str) else None
        problem = unended(answer.finish or "", stop, answer.ids, sequence.request.sampling, self._ends)
        if problem is not None:
            raise UpstreamError(problem)
        if sequence.request.sampling.logprobs is not None:
            checked_logprobs(answer, 0, whole=stop is None)
        by_token = answer.finish == "stop" and stop is None and self._ends_outputs(answer.ids, sequence.request)
        try:
            lacking = await self._lacking(sequence, stop, by_token=by_token)
        except UpstreamError:
            if not by_token or self._ends or sequence.request.sampling.structured_outputs is None:
                raise
            lacking = await self._lacking(sequence, stop, by_token=False)  # its constraint was complete without an end
        if lacking:
            sequence.tail(lacking)

    async def _lacking(self, sequence: _Sequence, stop: str | None, *, by_token: bool) -> str:
        """See `Spelling.end`."""
        if sequence.spelling is not None:
            return sequence.spelling.end(stop, by_token=by_token)
        ids = sequence.answer.ids
        spell = partial(self._text.decode, ids[:-1] if by_token else ids)
        spelled = await self._threads.run(spell, sequence.request.tenant or "")
        return missing(spelled, sequence.answer.text, stop)

    def _ends_outputs(self, ids: Sequence[int], request: EngineRequest) -> bool:
        """Whether the last token ends outputs and so has no text."""
        return bool(ids) and (not self._ends or ids[-1] in self._ends or ids[-1] in request.sampling.stop_token_ids)

    def _outcome(self, sequence: _Sequence, reason: FinishReason, error: str | None) -> Outcome:
        """The outcome of the released tokens."""
        answer, ids = sequence.answer, tuple(sequence.answer.ids[: sequence.released])
        first = sequence.first_token or sequence.started
        drafted = answer.drafted if reason in ("stop", "length") and ids else None
        if drafted is not None and not 0 <= drafted.accepted <= drafted.proposed:
            drafted = None  # impossible counts
        passes = max(1, drafted.passes) if drafted else 0
        method, ran = _method(sequence.request), passes if drafted else len(ids)
        self.totals.passes += ran
        self.totals.by_method[method] = self.totals.by_method.get(method, 0) + ran
        if drafted is not None:
            self.totals.drafts += drafted.drafts
            self.totals.draft_tokens += drafted.proposed
            self.totals.accepted_elsewhere += drafted.accepted
        return Outcome(
            token_ids=ids,
            text=answer.text[: sequence.released_text],
            finish_reason=reason,
            stop_reason=answer.stop_reason if reason == "stop" else None,
            stream_digest=token_digest(ids),
            margins=(),
            metrics=SpeculationMetrics(
                num_drafts=drafted.drafts if drafted else 0,
                num_draft_tokens=drafted.proposed if drafted else 0,
                num_accepted_tokens=drafted.accepted if drafted else 0,
                num_accepted_tokens_per_pos=drafted.accepted_per_pos if drafted else (),
                accepted_prediction_tokens=0,
                rejected_prediction_tokens=0,
                passes_by_method=(),
                target_passes=passes,
                prompt_tokens=len(sequence.request.prompt),
                cached_prompt_tokens=min(answer.cached_tokens, len(sequence.request.prompt)),
                output_tokens=len(ids),
                queue_seconds=0.0,
                prefill_seconds=first - sequence.started,
                decode_seconds=max(0.0, sequence.last_token - first),
                reported_by="engine" if drafted else "none",
            ),
            error=error,
        )
