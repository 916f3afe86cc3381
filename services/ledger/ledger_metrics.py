"""Metrics of the ledger service's log."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from ledger.log.sequencer import Sequencer
from ledger.log.writer import WriteTimes
from ledger.sql.store import SqlEntryStore
from services.ledger.cosignature_collector import CosignatureCollector
from services.runtime.metrics import Metrics


class LedgerMetrics:
    """Metrics of one log."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._metrics = metrics = Metrics(registry)
        self._entries = metrics.histogram("kolm_ledger_batch_entries")
        self._commit = metrics.histogram("kolm_ledger_commit_seconds")
        self._guard = metrics.histogram("kolm_ledger_guard_seconds")
        self._sign = metrics.histogram("kolm_ledger_sign_seconds")

    def written(self, times: WriteTimes) -> None:
        """Count a written batch. Called on the sequencer's thread."""
        self._entries.observe(times.entries)
        self._commit.observe(times.commit)
        self._guard.observe(times.guard)
        self._sign.observe(times.sign)

    def watch(self, sequencer: Sequencer, store: SqlEntryStore) -> None:
        """Read sequencer and store at each scrape."""
        board, read = sequencer.board, self._metrics.read
        read("kolm_ledger_entries", lambda: board.latest().size)
        read("kolm_ledger_takes_entries", lambda: sequencer.takes_entries)
        read("kolm_ledger_lock_losses", lambda: store.lock_losses)
        read("kolm_ledger_queue_entries", lambda: sequencer.queued)
        read("kolm_ledger_checkpoint_age_seconds", lambda: board.age)
        read("kolm_ledger_halt_epoch", lambda: board.latest().halts.epoch)
        read("kolm_ledger_open_halts", lambda: len(board.latest().halts.open))


def watch_witnesses(registry: CollectorRegistry, collector: CosignatureCollector) -> None:
    """Read the collector at each scrape."""
    read = Metrics(registry).read
    read("kolm_ledger_witness_lag_entries", lambda: {(name,): lag for name, lag in collector.lags().items()})
    read("kolm_ledger_witness_silent", lambda: {(name,): 1.0 + forked for name, forked in collector.silent().items()})
