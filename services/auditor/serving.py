"""The composition root of the auditor: builds its parts from its settings, audits until a stop, keeps its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from ledger.audit.obligation import OVERDUE, OWED, UNDRAWN, Obligation
from ledger.documents.audit import DECODE, OUTCOMES, PREFILL, ReferencePass, ReferenceThresholds
from ledger.documents.content import Content
from ledger.documents.receipt import Receipt
from ledger.encoding.text_forms import timestamp
from ledger.errors import LedgerError
from ledger.keys.signer import open_signer
from ledger.keys.trusted_keys import TrustedKeys
from services.auditor.appender import Announcement, Appender, Terms
from services.auditor.audit_error import AuditError, EngineFailed, FolderError, Interrupted, OutOfReach
from services.auditor.auditor import Auditor, Examined, origin_of
from services.auditor.backlog import Backlog
from services.auditor.examination import EnginePlan, Examiner, Replayed
from services.auditor.foreign_judge import ForeignJudge
from services.auditor.held_folder import HeldFolder
from services.client.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    KolmError,
    ResourceExhausted,
    Unavailable,
)
from services.client.ledger.ledger import LedgerClient, key_entries
from services.generation.target.without_torch import hide_torch
from services.runtime.metrics import Metrics, Reading
from services.runtime.process import CannotStart
from services.runtime.server import serve
from services.runtime.tracing import SendSpan, Span, sent_spans
from services.runtime.trusted_directory import TrustedDirectory

if TYPE_CHECKING:
    from services.auditor.own_engine import OwnEngine
    from services.auditor.settings import AuditorSettings  # which imports the readers of the model's files


_log = logging.getLogger(__name__)

_OTHERS_SECONDS = 300.0
"""The longest time that the auditor waits while servers load: enough for a model of some gigabytes. Servers may start
continually, so it is limited.
"""

NICENESS = 10
"""A tenth of a server's CPU weight on Linux; at 19 the auditor would hardly run on a busy machine."""

_WAITED_FOR = {
    "UNTRUSTED_SIGNATURE": "waiting until the ledger trusts this auditor's key (`kolm trust add`): %s",
    "CLOCK_AHEAD": "waiting until this auditor's clock and the ledger's agree; correct the wrong clock: %s",
}
"""Log messages for refusals of the ledger that only a person can end, by the error's reason."""

_POLL_SECONDS = 1.0  # poll interval; each poll costs two processes some milliseconds
_TRIES = 3  # attempts to announce before loading: a ledger that starts at the same time serves within two seconds
_AWAY = (Unavailable, ResourceExhausted, DeadlineExceeded, Cancelled, FolderError)


@contextmanager
def connected(
    settings: AuditorSettings, engine: LoadedWhenAsked, *, spot_checks: float = 0.0, announces: bool = True
) -> Iterator[Auditor]:
    """An auditor with its connections, which close at the end of the block, as do running calls. Its key is made at the
    first use.

    `spot_checks`: the share of receipts, 0 to 1, to examine beyond the owed ones. `announces`: publish its key in its
    folder and its terms in the log; if false, the log's terms hold. Raises KeyFileError, FolderError.
    """
    key = open_signer(settings.auditor_key, "auditor", settings.key_passphrase_file, create=True)
    if announces:
        key.publish(settings.public_directory)
    trusted = settings.trusted_directory
    trusted.mkdir(parents=True, exist_ok=True)
    trust = TrustedDirectory(trusted, own=key, key_entries=partial(key_entries, settings.ledger)).trusted()
    with (
        LedgerClient.connect(settings.ledger) as ledger,
        HeldFolder(settings.data_dir, settings.max_attempts) as folder,
    ):
        appender = Appender(ledger, key, lambda: datetime.now(UTC))
        backlog = kept_backlog(folder, ledger, trust, spot_checks)
        foreign = _foreign(settings, backlog, engine)
        examiner = Examiner(
            trust, lambda receipt_id: ledger.receipt(receipt_id, include_content=True).content, engine,
            settings.decode_share, foreign=foreign,
        )  # fmt: skip
        terms = _terms(settings) if announces else None
        announcement = Announcement(backlog, appender, folder, terms, settings.draw_seconds)
        yield Auditor(ledger, backlog, examiner, appender, folder, announcement, settings.auditor_share)


def _terms(settings: AuditorSettings) -> Terms:
    reference = settings.thresholds if settings.audits_another_engine else None
    return Terms(settings.rate, settings.within_seconds, reference, settings.halt_inconsistent)


def kept_backlog(folder: HeldFolder, ledger: LedgerClient, trust: TrustedKeys, spot_checks: float) -> Backlog:
    """The fold that the folder keeps; an empty one if it cannot be used, or the ledger is away."""
    kept = None
    try:
        if (document := folder.kept_fold()) is not None:
            kept = Backlog.from_document(document, origin_of(ledger.checkpoint().note), trust, spot_checks)
    except (KolmError, LedgerError, KeyError, TypeError, ValueError, AttributeError) as error:
        _log.warning("reading the log from its first entry on, since the kept fold cannot be used: %s", error)
    return Backlog(trust, spot_checks) if kept is None else kept


@dataclass
class LoadedWhenAsked:
    """The auditor's own engine, loaded at the first replay: an audit without replays loads no weights. Without a
    plan every receipt is out of reach.

    Calls may also raise EngineFailed. `stop` ends a replay; `on_load` is called before the engine's modules are
    imported, `step` with a description of each step of loading.
    """

    plan: EnginePlan | None
    stop: threading.Event
    on_load: Callable[[], None]
    step: Callable[[str], None] = _log.info
    ways: tuple[str, ...] = (PREFILL, DECODE)
    _used: bool = field(default=False, init=False)

    def load(self) -> None:
        """Load the engine now, if there is a plan. Raises EngineFailed."""
        if self.plan is not None:
            _ = self._engine

    @cached_property
    def _engine(self) -> OwnEngine:
        if self.plan is None:
            raise OutOfReach("this auditor has no weights: set --model")
        self.on_load()
        return _own_engine(self.plan, self.stop, self.step)

    def release_memory(self) -> None:
        """Release what the next replay can allocate again, if there was a replay since the last time."""
        if self._used:
            self._engine.release_memory()
            self._used = False

    def _in_use(self) -> OwnEngine:
        engine = self._engine  # which fails without weights: there is no memory to release then
        self._used = True
        return engine

    def replay(self, receipt: Receipt, content: Content, way: str = DECODE) -> Replayed:
        return self._in_use().replay(receipt, content, way)

    def refer(self, receipt: Receipt, content: Content) -> ReferencePass:
        return self._in_use().refer(receipt, content)

    def ends(self) -> Collection[int]:
        """The ids with which the model ends outputs."""
        return self._engine.ends

    def spelled(self, receipt: Receipt, content: Content) -> str | None:
        return self._engine.spelled(receipt, content)


def _foreign(settings: AuditorSettings, backlog: Backlog, engine: LoadedWhenAsked) -> ForeignJudge:
    reference = None if engine.plan is None else engine.refer

    def thresholds() -> ReferenceThresholds:
        return (backlog.policy and backlog.policy.reference) or settings.thresholds

    return ForeignJudge(
        backlog.profiles.get, settings.plain, reference, thresholds, backlog.drift,
        ends=engine.ends, spelled=engine.spelled, of_engines=settings.audits_another_engine,
    )  # fmt: skip


def _own_engine(engine: EnginePlan, stop: threading.Event, step: Callable[[str], None]) -> OwnEngine:
    try:
        from services.generation.state_folder import await_empty
        from services.generation.target.kernels.compilation import loading_folder

        others = loading_folder()
        if not await_empty(others, 0.0):
            step(f"waiting until servers on this machine have loaded, {_OTHERS_SECONDS:g} s at most")
            await_empty(others, _OTHERS_SECONDS, stop.wait)
        step("loading and probing the base")
        from services.auditor.own_engine import OwnEngine
    except ModuleNotFoundError as error:
        raise EngineFailed(f"the auditor's engine needs {error.name}, of the extra generation") from error
    return OwnEngine.load(engine, stop)


class AuditorMetrics:
    """Metrics that the auditor's thread writes and a scrape's thread reads. They exchange immutable values only."""

    def __init__(
        self,
        registry: CollectorRegistry,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`clock` counts seconds."""
        metrics = Metrics(registry)
        self._clock, self._now = clock, now
        self._verdicts = metrics.counter("kolm_auditor_verdicts")
        for outcome in OUTCOMES:  # from 0 on: no alert rule sees an increase of a series that begins at 1
            self._verdicts.labels(outcome)
        self._seconds = metrics.histogram("kolm_auditor_replay_seconds")
        self._entries = metrics.gauge("kolm_auditor_entries_read")
        self._waiting: tuple[Obligation, ...] = ()
        self._read_at = clock()
        metrics.read("kolm_auditor_obligations", self._by_state)
        metrics.read("kolm_auditor_last_pass_seconds", lambda: self._clock() - self._read_at)

    def examined(self, one: Examined) -> None:
        """Count an appended verdict."""
        self._verdicts.labels(one.finding.outcome).inc()
        self._seconds.observe(one.seconds)

    def read(self, backlog: Backlog) -> None:
        """Note the open work, once the log has been read to its end."""
        self._entries.set(backlog.position)
        self._waiting = backlog.waiting()
        self._read_at = self._clock()

    def _by_state(self) -> Reading:
        """Open receipts by state. The clock makes receipts overdue, even while the auditor is stuck."""
        now = timestamp(self._now())
        states = Counter(one.state(now) for one in self._waiting)
        return {(state.lower(),): float(states[state]) for state in (UNDRAWN, OWED, OVERDUE)}


def reported(metrics: AuditorMetrics, send: SendSpan | None) -> Callable[[Examined], None]:
    """A callback that counts an appended verdict and sends its span."""

    def report(one: Examined) -> None:
        metrics.examined(one)
        if send is not None:
            send(verdict_span(one))

    return report


def verdict_span(one: Examined) -> Span:
    """The span of an appended verdict, with the attributes of OpenTelemetry's `gen_ai.evaluation.result`, and kolm's as
    on the request's span.
    """
    receipt, finding, ended = one.receipt, one.finding, time.time_ns()
    attributes: dict[str, str | Sequence[str]] = {
        "gen_ai.evaluation.name": "audit",
        "gen_ai.evaluation.score.label": finding.outcome,
        "gen_ai.response.id": receipt.request_id,
        "kolm.receipt.ids": [receipt.receipt_id],
        "kolm.receipt.verdicts": [finding.outcome],
        "kolm.method": receipt.spec_decode.method,
    }
    if finding.reason is not None:
        attributes["gen_ai.evaluation.explanation"] = finding.reason
    return Span("audit", ended - round(one.seconds * 1e9), ended, attributes)


def yield_to_others() -> None:
    """Lower the priority of the calling thread, and of threads that it starts. Other threads, which serve health and
    stop the process, keep theirs.

    With sched_autogroup, Linux weighs sessions against each other, and a thread's priority counts within its session
    only. If this process leads its session, the priority of the session is lowered as well (sched(7)).
    """
    os.nice(NICENESS)
    if os.getsid(0) == os.getpid():
        with contextlib.suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(NICENESS), encoding="ascii")


def follow(
    auditor: Auditor,
    stop: threading.Event,
    poll_seconds: float,
    on_examined: Callable[[Examined], None],
    on_read: Callable[[Backlog], None] = lambda _: None,
    on_wait: Callable[[], None] = lambda: None,
) -> None:
    """Audit until `stop` is set. Waits while the ledger, an engine or the folder is unavailable, and after refusals
    that a person ends (`_WAITED_FOR`); raises every other error. `on_read` gets the open work after each reading of the
    log; `on_wait` is called before each wait.
    """
    cause: object = None  # of the wait, as it was logged
    while not stop.is_set():
        try:
            _pass(auditor, stop, on_examined, on_read)
            if cause is not None:
                _log.info("resuming the audit")
            cause = None
        except Interrupted:
            return
        except _AWAY as error:
            if not stop.is_set() and cause is not type(error):
                _log.warning("waiting for the ledger, an engine or the auditor's folder: %s", error)
            cause = type(error)
        except InvalidArgument as error:
            if error.reason not in _WAITED_FOR:
                raise
            if cause != error.reason:
                _log.warning(_WAITED_FOR[error.reason], error)
            cause = error.reason
        except Exception:
            if stop.is_set():  # the connection of a call was closed
                return
            raise
        on_wait()
        stop.wait(poll_seconds)


def _pass(
    auditor: Auditor, stop: threading.Event, on_examined: Callable[[Examined], None], on_read: Callable[[Backlog], None]
) -> None:
    for examined in auditor.run_pass():
        on_examined(examined)
        on_read(auditor.backlog)
        if stop.is_set():
            return
    on_read(auditor.backlog)


async def main(settings: AuditorSettings) -> None:
    """Audit on a thread of its own and serve health, until a signal or until one of the two fails."""
    stop = threading.Event()
    engine = LoadedWhenAsked(settings.own_engine, stop, hide_torch)
    try:
        with connected(settings, engine) as auditor, sent_spans("auditor") as send:
            auditing, serving = _start(auditor, engine, settings, stop, send)
            await asyncio.wait({auditing, serving}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():  # auditing has failed: health has nothing left to report
                serving.cancel()
            stop.set()
        # The connections are closed: a replay that was running has ended, without a verdict.
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await auditing
    except (LedgerError, OSError, AuditError, KolmError) as error:
        raise CannotStart(f"the auditor cannot continue: {error}") from error
    finally:
        stop.set()


def _start(
    auditor: Auditor, engine: LoadedWhenAsked, settings: AuditorSettings, stop: threading.Event, send: SendSpan | None
) -> tuple[asyncio.Future[None], asyncio.Future[None]]:
    """The tasks of auditing and serving. Auditing announces the terms, loads the engine, and audits; health is served
    once the engine is loaded.
    """
    registry = CollectorRegistry()
    metrics = AuditorMetrics(registry)
    loaded, loop = asyncio.Event(), asyncio.get_running_loop()

    def audit() -> None:
        yield_to_others()  # also to a server that is still loading
        for _ in range(_TRIES):
            with contextlib.suppress(*_AWAY, InvalidArgument):  # `follow` waits longer, and logs the reason
                auditor.announce()  # before loading, which takes seconds: the terms hold for receipts of that time
                break
            stop.wait(_POLL_SECONDS)
        if settings.rate > 0.0:  # else there may be nothing to replay, and the first replay loads it
            engine.load()
        loop.call_soon_threadsafe(loaded.set)
        follow(auditor, stop, _POLL_SECONDS, reported(metrics, send), metrics.read, engine.release_memory)

    async def serving() -> None:
        await loaded.wait()
        await serve("auditor", [], settings, registry=registry, on_drain=stop.set)

    return asyncio.ensure_future(asyncio.to_thread(audit)), asyncio.ensure_future(serving())
