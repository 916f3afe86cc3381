"""The auditor's metrics: verdicts, and replays that are still owed by the clock."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry

from ledger.documents.verdict import EXACT
from services.auditor.auditor import Examined
from services.auditor.examination import Finding
from services.auditor.serving import AuditorMetrics
from tests.serving import exported, listed
from tests.unit.auditor.logs import entries, folded
from tests.unit.ledger.builders import policy, receipt


def test_what_is_owed_becomes_overdue_while_nobody_reads_the_log() -> None:
    registry, now = CollectorRegistry(), [datetime.fromisoformat(receipt(0).issued_at)]
    seconds = [0.0]
    metrics = AuditorMetrics(registry, lambda: seconds[0], lambda: now[0])
    metrics.read(folded(entries(policy(1.0), receipt(0), receipt(1))))

    def obligations(state: str) -> float | None:
        return registry.get_sample_value("kolm_auditor_obligations", {"state": state})

    assert (obligations("owed"), obligations("overdue"), obligations("undrawn")) == (2, 0, 0)
    assert registry.get_sample_value("kolm_auditor_entries_read") == 3
    now[0] += timedelta(days=365)
    seconds[0] = 30.0
    assert (obligations("owed"), obligations("overdue")) == (0, 2)
    assert registry.get_sample_value("kolm_auditor_last_pass_seconds") == 30.0


def test_verdicts_are_counted_by_outcome_and_replays_are_timed() -> None:
    registry = CollectorRegistry()
    metrics = AuditorMetrics(registry, now=lambda: datetime(2026, 1, 1, tzinfo=UTC))
    metrics.examined(Examined(receipt(0), 0, Finding.exact(3, None), 1, None, 2.5))
    assert registry.get_sample_value("kolm_auditor_verdicts_total", {"outcome": EXACT}) == 1
    assert registry.get_sample_value("kolm_auditor_replay_seconds_sum") == 2.5
    assert exported(registry) == listed("auditor")
