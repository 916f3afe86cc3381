"""The exported metrics of a registry, for comparison with the list."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from services.runtime.metrics import EXPORTED, Exporter


def exported(registry: CollectorRegistry) -> set[str]:
    """The names of its metrics, those without a value yet too."""
    return {family.name for family in registry.collect()}


def listed(*exporters: Exporter) -> set[str]:
    return {metric.name for exporter in exporters for metric in EXPORTED[exporter]}
