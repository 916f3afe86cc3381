"""Looks of a monitor at listed logs."""

from __future__ import annotations

from datetime import datetime, timedelta

from ledger.monitor.judgement import Limits, Promised
from ledger.monitor.memory import MonitorMemory
from ledger.monitor.monitor import Monitor
from tests.unit.ledger.builders import (
    START,
    TRUSTED,
    policy,
    receipt,
)
from tests.unit.ledger.monitor.listed_log import ListedLog

NOW = START + timedelta(seconds=500)


def told(
    log: ListedLog, memory: MonitorMemory, now: datetime = NOW, *promised: Promised, **limits: object
) -> list[str]:
    """The kinds of the findings of a monitor that has just started on what is remembered."""
    monitor = Monitor(memory, TRUSTED, Limits(**limits))  # type: ignore[arg-type]
    monitor.look(log, now)
    return [finding.kind for finding in monitor.findings(promised, now)]


def owed(count: int = 3, rate: float = 1.0) -> ListedLog:
    """A log whose receipts stand at the entries 1, 2, …"""
    log = ListedLog()
    log.append(policy(rate, 600), *(receipt(number) for number in range(count)))
    return log
