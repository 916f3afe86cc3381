"""Runs requests on the engine; each choice ends with its signed receipt in the outbox."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from ledger.documents.audit import UNCHECKED
from ledger.documents.engine_profile import EngineProfile
from ledger.documents.halt import scopes_of
from ledger.errors import SignerUnavailable
from services.generation.api.confirmation import off_outcome, unproven
from services.generation.api.generation_metrics import GenerationMetrics, log_request
from services.generation.engine.backend import Backend
from services.generation.engine.engine import Ticket
from services.generation.engine.events import Chunk, Event, Finished, Outcome, Sink
from services.generation.engine.request import EngineError, EngineRequest, SpeculationAway
from services.generation.receipts.erasures import Erasures
from services.generation.receipts.issuer import (
    NOT_CHECKED,
    Checked,
    ReceiptIssuer,
    SignedPromise,
    SignedReceipt,
    replayed,
)
from services.generation.receipts.outbox import Outbox, ReceiptUnkept
from services.generation.requests.halts import HaltBoard
from services.generation.requests.policy import AWAY
from services.generation.requests.quotas import Grant, TenantQuotas
from services.generation.requests.resolution import Identity, Resolved, refusal
from services.generation.requests.served_heads import HeadBoard
from services.runtime.errors import DeadlineExceeded, KolmError, ResourceExhausted, Unavailable
from services.runtime.tracing import current_trace

_log = logging.getLogger(__name__)

_SIGNER_PAUSE = 0.5  # seconds between two attempts to sign a receipt
_SIGNER_AWAY = "the key that signs receipts cannot be reached; nothing is served without a receipt, send it again"


@dataclass(frozen=True, slots=True)
class Completed:
    """A finished choice with its receipt. `ledger_index` is None while the ledger has not confirmed it."""

    choice: int
    outcome: Outcome
    receipt: SignedReceipt
    ledger_index: int | None
    checked: Checked


@dataclass(slots=True, eq=False)
class Run:
    """Chunks and completed choices of one request, in the order in which they come. Read `events` once."""

    resolved: Resolved
    grant: Grant
    used_tokens: int = 0  # of prompt and outputs, after all choices have ended
    engine_id: str = field(default_factory=lambda: str(uuid.uuid4()))  # callers may use one request_id twice
    promise: SignedPromise | None = None  # set when the engine has accepted the run
    cancelled: bool = False
    ended: bool = False
    streamed: bool = False
    arrived: int = field(default_factory=time.time_ns)
    first_token: int | None = None  # when it came, as `arrived`
    trace: Mapping[str, str] = field(default_factory=current_trace.get)
    _queue: asyncio.Queue[Chunk | Completed | Exception | None] = field(default_factory=asyncio.Queue)

    @property
    def requests(self) -> list[EngineRequest]:
        """The engine requests of all choices."""
        return [self.resolved.engine_request(self.engine_id, choice) for choice in range(self.resolved.choices)]

    def post(self, event: Chunk | Completed) -> None:
        self._queue.put_nowait(event)

    def end(self, error: Exception | None = None) -> None:
        """End the events; `error` is raised in the reader."""
        self.ended = True
        self._queue.put_nowait(error)

    async def events(self) -> AsyncIterator[Chunk | Completed]:
        """Events until every choice has completed. Raises the error that ended the run."""
        while (event := await self._queue.get()) is not None:
            if isinstance(event, Exception):
                raise event
            yield event


@dataclass(frozen=True, slots=True)
class LedgerSide:
    """The connections of a server to the ledger: receipts on their way, and the halts, heads and erasures that it
    follows.
    """

    outbox: Outbox
    halts: HaltBoard
    heads: HeadBoard
    erasures: Erasures


class Generation:
    """Runs requests if the outbox has room for their receipts. Every choice gets a receipt, cancelled or not."""

    def __init__(
        self,
        engine: Backend,
        identity: Identity,
        issuer: ReceiptIssuer,
        ledger: LedgerSide,
        metrics: GenerationMetrics,
        quotas: TenantQuotas,
        *,
        append_seconds: float,
        on_ended: Callable[[Run, Sequence[Completed], Exception | None], None] | None = None,
    ) -> None:
        """`append_seconds`: how long a response waits for the ledger. `on_ended` gets each accepted run that has ended,
        its choices that have receipts, and the error that the caller gets instead.
        """
        self._engine, self._identity, self._issuer = engine, identity, issuer
        self._outbox, self._halts, self._erasures = ledger.outbox, ledger.halts, ledger.erasures
        self._metrics, self._quotas, self._append_seconds = metrics, quotas, append_seconds
        self._on_ended = on_ended
        self._runs: dict[Run, asyncio.Task[None]] = {}
        self._closing = asyncio.Event()

    @asynccontextmanager
    async def run(self, resolved: Resolved, *, streamed: bool = False) -> AsyncIterator[Run]:
        """A run that the engine has accepted. Leaving the context early cancels it; its receipts are still issued.

        Its promise is kept even if this process is killed. Raises Unavailable (LEDGER_UNAVAILABLE) if too many
        receipts wait for the ledger or the disk takes none, (SIGNER_AWAY) if the key does not sign, and (CLOCK_WRONG)
        if the ledger's clock differs; ResourceExhausted for a tenant's quota; EngineError.
        """
        run, taken = self._begun(resolved, streamed)
        try:
            with self.counting_refusals():
                await asyncio.shield(taken)
            yield run
        finally:
            self._cancel(run)

    def _begun(self, resolved: Resolved, streamed: bool) -> tuple[Run, asyncio.Future[None]]:
        """A run on its way to the engine, and a future that is done when the engine has accepted it."""
        with self.counting_refusals():
            self._reserve(resolved)
            try:
                grant = self._quotas.let_in(resolved.tenant, resolved.choices, resolved.most_tokens)
            except ResourceExhausted:
                self._outbox.release(resolved.choices)
                raise
        run, taken = Run(resolved, grant, streamed=streamed), asyncio.get_running_loop().create_future()
        self._runs[run] = task = asyncio.create_task(self._work(run, taken))
        task.add_done_callback(lambda _: self._ended(run))
        return run, taken

    def _ended(self, run: Run) -> None:
        del self._runs[run]
        run.grant.end(run.used_tokens)

    @contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Count a refusal that is raised inside by its reason."""
        try:
            yield
        except (KolmError, EngineError) as error:
            if (reason := refusal(error)) is not None:
                self._metrics.refused(reason)
            raise

    def _reserve(self, resolved: Resolved) -> None:
        """Reserve room for the receipts. Raises DeadlineExceeded, Unavailable."""
        if time.perf_counter() >= resolved.deadline:
            raise DeadlineExceeded("the call's deadline passed before it could begin")
        if (problem := self._halts.ledger_clock.problem) is not None:
            raise Unavailable(problem, retry_after=5.0, reason="CLOCK_WRONG")
        if not self._outbox.reserve(resolved.choices):
            raise Unavailable(
                f"{self._outbox.pending} receipts wait for the ledger, more than may be unconfirmed or kept on this "
                "server's disk; nothing is served without a receipt",
                retry_after=5.0,
                reason="LEDGER_UNAVAILABLE",
            )

    def _cancel(self, run: Run) -> None:
        if not run.ended:
            run.cancelled = True
            self._engine.cancel(run.engine_id)

    async def _work(self, run: Run, taken: asyncio.Future[None]) -> None:
        finished: asyncio.Queue[Finished] = asyncio.Queue()
        times, started = self._metrics.arrived(), time.perf_counter()

        def sink(event: Event) -> None:
            if isinstance(event, Chunk):
                times.observe(event)
                run.post(event)
                run.first_token = run.first_token or time.time_ns()
            else:
                finished.put_nowait(event)

        try:
            tickets = await self._submit(run, sink)
            run.promise = promise = await self._promise(run)
        except Exception as error:
            self._engine.cancel(run.engine_id)  # if it has accepted the run
            self._outbox.release(run.resolved.choices)
            run.ended = True
            _fail(taken, error)
            return
        if not taken.done():
            taken.set_result(None)
        completing: list[asyncio.Task[Completed]] = []
        outcomes: list[Outcome] = []
        for _ in tickets:
            event = await finished.get()
            times.observe(event)
            outcomes.append(event.outcome)
            promised = promise.unfinished[event.choice]
            work = self._complete(run, promised, event.choice, event.outcome, tickets[event.choice])
            completing.append(asyncio.create_task(work))
        run.used_tokens = len(run.resolved.prompt) + sum(len(outcome.token_ids) for outcome in outcomes)
        log_request(run.resolved, outcomes, time.perf_counter() - started)
        # If one choice fails to get its receipt, the others still get theirs.
        ended = await asyncio.gather(*completing, return_exceptions=True)
        failed = next((each for each in ended if isinstance(each, Exception)), None)
        if failed is not None:
            _log.error("issuing a receipt failed", exc_info=failed)
        elif run.resolved.engine is not None:
            failed = _nothing(outcomes)
        run.end(failed)
        if self._on_ended is not None:
            self._on_ended(run, [each for each in ended if isinstance(each, Completed)], failed)

    async def _submit(self, run: Run, sink: Sink) -> list[Ticket]:
        try:
            tickets = await self._engine.submit_all(run.requests, sink)
        except SpeculationAway:
            if run.resolved.speculation.method != "auto":
                raise
            run.resolved = run.resolved.without_drafts(AWAY)
            tickets = await self._engine.submit_all(run.requests, sink)
        if run.cancelled:  # the call ended before the engine had accepted all choices
            self._engine.cancel(run.engine_id)
        return tickets

    async def _promise(self, run: Run) -> SignedPromise:
        """Promise the receipts of an accepted run, on disk. Raises Unavailable."""
        try:
            promise = self._issuer.promise(run.resolved)
            await self._outbox.promise(promise.unfinished)
        except SignerUnavailable as error:
            _log.error("refusing a request: its receipts cannot be signed: %s", error)
            raise Unavailable(_SIGNER_AWAY, retry_after=5.0, reason="SIGNER_AWAY") from error
        except OSError as error:
            _log.critical("refusing a request: its promised receipts cannot be written to disk: %s", error)
            problem = "this server's disk takes no receipts; nothing is served without one"
            raise Unavailable(problem, retry_after=5.0, reason="LEDGER_UNAVAILABLE") from error
        return promise

    async def _complete(
        self, run: Run, promised: SignedReceipt, choice: int, outcome: Outcome, ticket: Ticket
    ) -> Completed:
        """Send the choice's receipt to the ledger, or the promised receipt if it cannot be issued."""
        resolved = run.resolved
        if outcome.error is not None:
            _log.error("request %s choice %d: %s", resolved.request_id, choice, outcome.error)
        try:
            try:
                checked = await self._checked(run, choice, outcome, ticket)
                issue = partial(self._issuer.issue, promised.receipt_id, resolved, choice, outcome, checked)
                receipt = await self._signed(run, partial(issue, alone=ticket.alone))
            except Exception:
                await self._deliver(promised)
                raise
            self._erasures.issued(receipt.receipt_id, resolved.tenant, (run.engine_id, choice))
            index = await self._deliver(receipt)
        finally:
            self._outbox.release(1)
        run.post(completed := Completed(choice, outcome, receipt, index, checked))
        return completed

    async def _signed(self, run: Run, issue: Callable[[], SignedReceipt]) -> SignedReceipt:
        """The receipt, as soon as its key signs. The caller waits for it as long as for the ledger.

        Raises Unavailable if the server stops before.
        """
        patient_until = time.perf_counter() + self._append_seconds
        while True:
            try:
                return issue()
            except SignerUnavailable as error:
                away = Unavailable(_SIGNER_AWAY, retry_after=5.0, reason="SIGNER_AWAY")
                if self._closing.is_set():
                    raise away from error
                if time.perf_counter() >= patient_until and not run.ended:
                    _log.error("retrying to sign the receipts of request %s: %s", run.resolved.request_id, error)
                    self._cancel(run)
                    run.end(away)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), _SIGNER_PAUSE)

    async def _checked(self, run: Run, choice: int, outcome: Outcome, ticket: Ticket) -> Checked:
        """The result of verification before signing."""
        if not run.resolved.verify_inline or run.cancelled or outcome.finish_reason not in ("stop", "length"):
            return NOT_CHECKED
        request = run.resolved.engine_request(run.engine_id, choice, off=True)  # the run's id, to be cancelled with it
        first = await off_outcome(self._engine, request, lambda: run.cancelled)
        if isinstance(first, str):
            return self._unanswered(run, f"{UNCHECKED}: {first}")
        off, off_ticket = first
        if _stream(off) == _stream(outcome):
            alone = ticket.alone and off_ticket.alone
            return Checked(True, replayed(off.metrics.decode_seconds, outcome.metrics) if alone else None)
        if run.resolved.engine is not None:
            profile = EngineProfile.from_document(self._identity.profile)
            why = await unproven(self._engine, run.resolved, request, outcome, off, profile, lambda: run.cancelled)
            if why is not None:
                return self._unanswered(run, why)
        await self._deviated(run.resolved, outcome)
        return Checked(False)

    def _unanswered(self, run: Run, why: str) -> Checked:
        _log.warning("verifying request %s failed: %s", run.resolved.request_id, why)
        return Checked(unverified=None if run.resolved.engine is None else why[:2048])

    async def _deviated(self, resolved: Resolved, outcome: Outcome) -> None:
        decision, moved = resolved.decision, outcome.metrics.passes_by_method
        if decision.method == "off":
            _log.critical("comparing request %s: decoding without speculation gave two results", resolved.request_id)
            return
        for scope in scopes_of(self._identity.base_cid, decision.method, decision.head_cid, dict(moved)):
            await self._halts.deviated(scope)

    async def _deliver(self, receipt: SignedReceipt) -> int | None:
        """Put the receipt into the outbox; returns its index, or None if the ledger has not confirmed it in time.

        Raises Unavailable if a crash could still lose it.
        """
        try:
            return await self._outbox.put(receipt.receipt_id, receipt.append, self._append_seconds)
        except ReceiptUnkept as error:
            problem = "neither this server's disk nor the ledger takes the receipt of the answer; ask again"
            raise Unavailable(problem, retry_after=5.0, reason="LEDGER_UNAVAILABLE") from error

    def interrupt(self) -> None:
        """End all runs: callers get UNAVAILABLE, reason SERVER_STOPPING; receipts are still issued."""
        stopping = (
            "this server is stopping; ask another one, or again when it is back. The output so far has its receipt"
        )
        for run in self._runs:
            self._cancel(run)
            run.end(Unavailable(stopping, reason="SERVER_STOPPING"))

    async def close(self) -> None:
        """Cancel all runs; returns when all receipts are in the outbox."""
        self._closing.set()
        for run in self._runs:
            self._cancel(run)
        await asyncio.gather(*self._runs.values())


def _nothing(outcomes: list[Outcome]) -> Unavailable | None:
    """The error for a request whose outputs all failed before the first token; None if one did not."""
    errors = [each.error for each in outcomes if each.error is not None and not each.token_ids]
    return Unavailable(errors[0], reason="ENGINE_STOPPED") if len(errors) == len(outcomes) else None


def _stream(outcome: Outcome) -> tuple[object, ...]:
    return outcome.token_ids, outcome.stream_digest, outcome.finish_reason


def _fail(taken: asyncio.Future[None], error: Exception) -> None:
    if not taken.done():
        taken.set_exception(error)
        taken.exception()  # marks it as retrieved: the call may have ended
