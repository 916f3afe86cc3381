"""Metrics of the witness; the list says what each one means."""

from __future__ import annotations

from collections.abc import Collection

from prometheus_client import CollectorRegistry

from services.runtime.metrics import Metrics
from services.witness.memory import SqliteWitnessMemory


def watch(registry: CollectorRegistry, memory: SqliteWitnessMemory, logs: Collection[str]) -> None:
    """Ask the memory about these logs, by origin, at each scrape."""
    read = Metrics(registry).read
    read("kolm_witness_cosigned_entries", lambda: {(log,): memory.latest(log).size for log in logs})
    read("kolm_witness_forks", lambda: len(memory.accusations()))
