"""Metrics of the auditor's work; the list says what each one means."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime

from prometheus_client import CollectorRegistry

from ledger.audit.obligation import OVERDUE, OWED, UNDRAWN, Obligation
from ledger.documents.verdict import OUTCOMES
from ledger.encoding.timestamp import timestamp
from services.auditor.auditor import Examined
from services.auditor.backlog import Backlog
from services.runtime.telemetry.metrics import Metrics, Reading


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
