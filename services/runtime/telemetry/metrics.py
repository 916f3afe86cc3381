"""Prometheus metrics of a server, on a registry of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from services.runtime.telemetry.exported_metrics import BY_NAME, ExportedMetric, Kind

Reading = float | Mapping[tuple[str, ...], float]
"""A value, or one for each combination of labels."""


class Metrics:
    """Makes the metrics of the list `exported_metrics.EXPORTED`, and no others, on one registry.

    Every method raises KeyError for a name that is not in the list.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def counter(self, name: str) -> Counter:
        listed = _listed(name, "counter")
        return Counter(listed.name, listed.help, listed.labels, registry=self._registry)

    def gauge(self, name: str) -> Gauge:
        listed = _listed(name, "gauge")
        return Gauge(listed.name, listed.help, listed.labels, registry=self._registry)

    def histogram(self, name: str) -> Histogram:
        listed = _listed(name, "histogram")
        return Histogram(listed.name, listed.help, listed.labels, registry=self._registry, buckets=listed.buckets)

    def read(self, name: str, value: Callable[[], Reading]) -> None:
        """A counter or gauge whose value is asked for at each scrape, on a thread of its own."""
        self._registry.register(_Read(BY_NAME[name], value))

    def process(self, service: str) -> None:
        """Metrics of every process."""
        ProcessCollector(registry=self._registry)
        self.gauge("kolm_build_info").labels(service, _version()).set(1)


def _listed(name: str, kind: Kind) -> ExportedMetric:
    if BY_NAME[name].kind != kind:
        raise KeyError(f"{name} is a {BY_NAME[name].kind}")
    return BY_NAME[name]


def _version() -> str:
    try:
        return version("kolm-serve")
    except PackageNotFoundError:  # run from a checkout that was never installed
        return "unknown"


class _Read(Collector):
    def __init__(self, listed: ExportedMetric, value: Callable[[], Reading]) -> None:
        self._listed = listed
        self._value = value

    def describe(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        return [self._family()]

    def collect(self) -> Iterable[CounterMetricFamily | GaugeMetricFamily]:
        family, value = self._family(), self._value()
        for labels, each in (value if isinstance(value, Mapping) else {(): value}).items():
            family.add_metric(labels, each)
        return [family]

    def _family(self) -> CounterMetricFamily | GaugeMetricFamily:
        kind = CounterMetricFamily if self._listed.kind == "counter" else GaugeMetricFamily
        return kind(self._listed.name, self._listed.help, labels=self._listed.labels)


class CallMetrics:
    """Calls by method and status code, and how long they took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        metrics = Metrics(registry)
        self._calls = metrics.counter("kolm_rpc_calls")
        self._seconds = metrics.histogram("kolm_rpc_seconds")

    def observe(self, path: str, code: grpc.StatusCode, seconds: float) -> None:
        """One finished call; `path` is gRPC's `/package.Service/Method`."""
        service, _, method = path.removeprefix("/").partition("/")
        self._calls.labels(service, method, code.name).inc()
        self._seconds.labels(service, method).observe(seconds)
