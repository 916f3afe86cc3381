"""The composition root of the auditor: put together from its plan, pass after pass until a stop, with its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
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
from services.auditor.audit_error import AuditError, EngineFailed, FolderError, Interrupted, OutOfReach
from services.auditor.auditor import Auditor, Examined, origin_of
from services.auditor.backlog import Backlog
from services.auditor.examination import ContentReader, EnginePlan, Examiner, OwnReplayer, Replayed
from services.auditor.foreign import HONEST, ForeignJudge, ForeignPlan, Reference
from services.auditor.held_folder import HeldFolder, Share
from services.auditor.journal import Announcement, Journal, Terms
from services.client.errors import (
    Cancelled,
    DeadlineExceeded,
    InvalidArgument,
    KolmError,
    ResourceExhausted,
    Unavailable,
)
from services.client.ledger.ledger import LedgerClient, key_entries
from services.generation.target.without_torch import spare_torch
from services.runtime.metrics import Metrics, Reading
from services.runtime.process import CannotStart
from services.runtime.server import serve
from services.runtime.trusted_directory import TrustedDirectory

if TYPE_CHECKING:
    from services.auditor.settings import AuditorSettings  # which imports what the model's files are read with


_log = logging.getLogger(__name__)

_OTHERS_SECONDS = 300.0
"""How long the auditor lets servers load first: by then a model of some gigabytes is there, and the auditor's turn must
come even where servers start all the time.
"""

NICENESS = 10
"""A tenth of the weight of a server beside it on Linux; at 19 a busy machine would hardly let it compute at all."""

_WAITED_FOR = {
    "UNTRUSTED_SIGNATURE": "waiting until the ledger trusts this auditor's key (`kolm trust add`): %s",
    "CLOCK_AHEAD": "waiting until this auditor's clock and the ledger's agree; set the one that is wrong: %s",
}
"""Answers of the ledger, by their reason, that a person's action ends, which may happen at any moment."""

_POLL_SECONDS = 1.0  # poll interval; each poll costs two processes some milliseconds
_TRIES = 3  # until the base is loaded in any case: a ledger that starts beside this auditor is there in two seconds
_AWAY = (Unavailable, ResourceExhausted, DeadlineExceeded, Cancelled, FolderError)


@dataclass(frozen=True, slots=True)
class AuditorPlan:
    """Everything an auditor needs to know, as in its settings; `folder` holds what it keeps between starts. `terms`
    are announced where they are new; None goes by what the log says. `spot_checks` is the share of receipts to examine
    beyond those that are owed.
    """

    ledger: str
    key_file: Path
    trusted_directory: Path
    folder: Path
    engine: EnginePlan | None
    share: Share = Share()  # noqa: RUF009 - a frozen value
    public_directory: Path | None = None
    decode_share: float = 0.0
    terms: Terms | None = None
    spot_checks: float = 0.0
    draw_seconds: float = 0.0
    max_attempts: int = 5
    key_passphrase_file: Path | None = None
    foreign: ForeignPlan | None = None


@contextmanager
def connected(plan: AuditorPlan, engine: LoadedWhenAsked) -> Iterator[Auditor]:
    """An auditor with its connections; they close, and running calls end, with the block.

    Its key is made at first use; the public half goes into the plan's folder for it. Raises KeyFileError, FolderError.
    """
    key = open_signer(plan.key_file, "auditor", plan.key_passphrase_file, create=True)
    if plan.public_directory is not None:
        key.publish(plan.public_directory)
    plan.trusted_directory.mkdir(parents=True, exist_ok=True)
    trust = TrustedDirectory(plan.trusted_directory, own=key, key_entries=partial(key_entries, plan.ledger)).trusted()
    with LedgerClient.connect(plan.ledger) as ledger, HeldFolder(plan.folder, plan.max_attempts) as folder:
        journal = Journal(ledger, key, lambda: datetime.now(UTC))
        backlog = kept_backlog(folder, ledger, trust, plan.spot_checks)
        foreign = _foreign(plan.foreign, backlog, None if plan.engine is None else engine.refer)
        examiner = Examiner(trust, _content_reader(ledger), engine, plan.decode_share, foreign=foreign)
        yield Auditor(
            ledger,
            backlog,
            examiner,
            journal,
            folder,
            Announcement(backlog, journal, folder, plan.terms, plan.draw_seconds),
            plan.share,
        )


def kept_backlog(folder: HeldFolder, ledger: LedgerClient, trust: TrustedKeys, spot_checks: float) -> Backlog:
    """The fold of the folder, to go on from; an empty one where that does not serve, or the ledger is away."""
    kept = None
    try:
        if (document := folder.kept_fold()) is not None:
            kept = Backlog.from_document(document, origin_of(ledger.checkpoint().note), trust, spot_checks)
    except (KolmError, LedgerError, KeyError, TypeError, ValueError, AttributeError) as error:
        _log.warning("the log is read from its first entry on: what was kept of it cannot be used: %s", error)
    return Backlog(trust, spot_checks) if kept is None else kept


@dataclass
class LoadedWhenAsked:
    """The auditor's own engine by its plan, loaded for the first replay: a pass with nothing to replay takes no
    weights. Its calls raise EngineFailed too. `stop` ends a replay; `on_load` is called before the engine's modules
    are imported, `step` is told what loading is at.
    """

    plan: EnginePlan | None
    stop: threading.Event
    on_load: Callable[[], None]
    step: Callable[[str], None] = _log.info
    ways: tuple[str, ...] = (PREFILL, DECODE)

    def load(self) -> None:
        """At once. Raises EngineFailed."""
        _ = self._engine

    @cached_property
    def _engine(self) -> OwnReplayer:
        self.on_load()
        return _own_engine(self.plan, self.stop, self.step)

    def replay(self, receipt: Receipt, content: Content, way: str = DECODE) -> Replayed:
        return self._engine.replay(receipt, content, way)

    def refer(self, receipt: Receipt, content: Content) -> ReferencePass:
        return self._engine.refer(receipt, content)


class NoEngine:
    """The engine of an auditor without weights: every receipt is out of its reach."""

    ways: tuple[str, ...] = (DECODE,)

    def replay(self, receipt: Receipt, content: Content, way: str = DECODE) -> Replayed:
        raise OutOfReach("this auditor has no weights, --model")

    def refer(self, receipt: Receipt, content: Content) -> ReferencePass:
        raise OutOfReach("this auditor has no weights, --model")


def _foreign(plan: ForeignPlan | None, backlog: Backlog, reference: Reference | None) -> ForeignJudge:
    def thresholds() -> ReferenceThresholds:
        announced = None if backlog.policy is None else backlog.policy.reference
        return announced or (HONEST if plan is None else plan.thresholds)

    plain = None if plan is None else plan.plain
    set_up = plan is not None
    return ForeignJudge(backlog.profiles.get, plain, reference, thresholds, backlog.drifts.get, of_engines=set_up)


def _own_engine(engine: EnginePlan | None, stop: threading.Event, step: Callable[[str], None]) -> OwnReplayer:
    if engine is None:
        return NoEngine()
    try:
        from services.generation.state_folder import await_empty
        from services.generation.target.kernels.compilation import loading_folder

        others = loading_folder()
        if not await_empty(others, 0.0):
            step(f"waits until servers beside it have loaded, {_OTHERS_SECONDS:g} s at most")
            await_empty(others, _OTHERS_SECONDS, stop.wait)
        step("loading and probing the base")
        from services.auditor.own_engine import OwnEngine
    except ModuleNotFoundError as error:
        raise EngineFailed(f"an engine of its own needs {error.name}, of the extra generation") from error
    return OwnEngine.load(engine, stop)


def _content_reader(ledger: LedgerClient) -> ContentReader:
    def read(receipt_id: str) -> Content | None:
        return ledger.receipt(receipt_id, include_content=True).content

    return read


class AuditorMetrics:
    """The auditor's thread writes them, that of a scrape reads them. They exchange immutable values only."""

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
        for outcome in OUTCOMES:  # from 0 on: of a series that begins at 1 no rule sees an increase
            self._verdicts.labels(outcome)
        self._seconds = metrics.histogram("kolm_auditor_replay_seconds")
        self._entries = metrics.gauge("kolm_auditor_entries_read")
        self._waiting: tuple[Obligation, ...] = ()
        self._read_at = clock()
        metrics.read("kolm_auditor_obligations", self._by_state)
        metrics.read("kolm_auditor_last_pass_seconds", lambda: self._clock() - self._read_at)

    def examined(self, one: Examined) -> None:
        """A verdict was appended."""
        self._verdicts.labels(one.finding.outcome).inc()
        self._seconds.observe(one.seconds)

    def read(self, backlog: Backlog) -> None:
        """The log has been read to its end."""
        self._entries.set(backlog.position)
        self._waiting = backlog.waiting()
        self._read_at = self._clock()

    def _by_state(self) -> Reading:
        """The clock makes receipts overdue, even while the auditor is stuck."""
        now = timestamp(self._now())
        states = Counter(one.state(now) for one in self._waiting)
        return {(state.lower(),): float(states[state]) for state in (UNDRAWN, OWED, OVERDUE)}


def yield_to_others() -> None:
    """Lower the priority of the calling thread, and of threads that it starts; the process answers and stops as before.

    Linux may weigh sessions against each other (sched_autogroup): there a priority counts within its own session only,
    and a session that this process leads has one too (sched(7)).
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
) -> None:
    """Audit until `stop` is set. A ledger that is away and a folder that fails are waited for; every other failure
    ends this with its error. `on_read` is told what is left to do each time that the log has been read to its end.
    """
    away = False
    while not stop.is_set():
        try:
            _pass(auditor, stop, on_examined, on_read)
            if away:
                _log.info("going on: nothing has to be waited for any more")
            away = False
        except Interrupted:
            return
        except _AWAY as error:
            if not stop.is_set() and not away:
                _log.warning("waiting for the ledger or the auditor's folder: %s", error)
            away = True
        except InvalidArgument as error:
            if error.reason not in _WAITED_FOR:
                raise
            if not away:
                _log.warning(_WAITED_FOR[error.reason], error)
            away = True
        except Exception:
            if stop.is_set():  # the connection of a call was closed
                return
            raise
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
    """Audit on a thread of its own and serve health beside it, until a signal or until one of the two fails."""
    stop, terms = threading.Event(), plan(settings)
    engine = LoadedWhenAsked(terms.engine, stop, spare_torch)
    try:
        with connected(terms, engine) as auditor:
            auditing, serving = _start(auditor, engine, settings, stop)
            await asyncio.wait({auditing, serving}, return_when=asyncio.FIRST_COMPLETED)
            if not stop.is_set():  # auditing has failed: there is nothing left to serve
                serving.cancel()
            stop.set()
        # The connections are closed: a replay that was running has ended, without a verdict.
        with contextlib.suppress(asyncio.CancelledError):
            await serving
        await auditing
    except (LedgerError, OSError, AuditError, KolmError) as error:
        raise CannotStart(f"the auditor cannot go on: {error}") from error
    finally:
        stop.set()


def plan(settings: AuditorSettings) -> AuditorPlan:
    """The plan of an auditor, from its settings."""
    foreign = settings.foreign
    return AuditorPlan(
        ledger=settings.ledger,
        engine=settings.own_engine,
        decode_share=settings.decode_share,
        key_file=settings.auditor_key,
        key_passphrase_file=settings.key_passphrase_file,
        trusted_directory=settings.trusted_directory,
        public_directory=settings.public_directory,
        folder=settings.data_dir,
        share=settings.auditor_share,
        terms=Terms(settings.rate, settings.within_seconds, foreign.thresholds if foreign else None),
        foreign=foreign,
        draw_seconds=settings.draw_seconds,
        max_attempts=settings.max_attempts,
    )


def _start(
    auditor: Auditor, engine: LoadedWhenAsked, settings: AuditorSettings, stop: threading.Event
) -> tuple[asyncio.Future[None], asyncio.Future[None]]:
    """The auditing thread announces the terms, loads the engine, and audits; before that, health is not served."""
    registry = CollectorRegistry()
    metrics = AuditorMetrics(registry)
    loaded, loop = asyncio.Event(), asyncio.get_running_loop()

    def audit() -> None:
        yield_to_others()  # to a server that starts beside this one, too
        for _ in range(_TRIES):
            with contextlib.suppress(*_AWAY, InvalidArgument):  # `follow` waits for longer, and says for what
                auditor.announce()  # before the seconds that loading takes: receipts of that time fall under the terms
                break
            stop.wait(_POLL_SECONDS)
        if settings.rate > 0.0:  # else there may be nothing to replay, and what there is loads it
            engine.load()
        loop.call_soon_threadsafe(loaded.set)
        follow(auditor, stop, _POLL_SECONDS, metrics.examined, metrics.read)

    async def serving() -> None:
        await loaded.wait()
        await serve("auditor", [], settings, registry=registry, on_drain=stop.set)

    return asyncio.ensure_future(asyncio.to_thread(audit)), asyncio.ensure_future(serving())
