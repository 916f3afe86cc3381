"""The list of metrics: complete, without doubles, and the only way to make one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from services.runtime.metrics import BY_NAME, EXPORTED, CallMetrics, Metrics
from tests.serving import exported, listed

SOURCES = Path("services")


def test_no_metric_is_listed_twice() -> None:
    assert len(BY_NAME) == sum(len(metrics) for metrics in EXPORTED.values())


def test_units_and_endings_are_those_of_prometheus() -> None:
    for metric in BY_NAME.values():
        assert re.fullmatch(r"(vllm:|kolm_|process_)[a-z0-9_]+", metric.name)
        assert not metric.name.endswith(("_total", "_bucket", "_sum", "_count")), metric.name
        assert bool(metric.buckets) == (metric.kind == "histogram"), metric.name
        assert metric.help.endswith(".")


def test_a_metric_that_is_not_listed_or_listed_otherwise_cannot_be_made() -> None:
    metrics = Metrics(CollectorRegistry())
    with pytest.raises(KeyError):
        metrics.counter("kolm_secrets")
    with pytest.raises(KeyError, match="is a gauge"):
        metrics.counter("kolm_serving")


def test_nobody_makes_metrics_past_the_list() -> None:
    made = re.compile(r"import .*\b(Counter|Histogram|Gauge|Summary|Info|Enum)\b")
    for path in SOURCES.rglob("*.py"):
        if path.name not in ("metrics.py", "server.py"):  # the latter names a type
            lines = [line for line in path.read_text().splitlines() if "prometheus_client" in line]
            assert not any(made.search(line) for line in lines), path


def test_the_list_names_what_every_grpc_server_exports() -> None:
    registry = CollectorRegistry()
    CallMetrics(registry)
    Metrics(registry).process("ledger")
    assert exported(registry) | {"kolm_serving"} == listed("every", "rpc")


def test_a_value_that_is_read_at_the_scrape_has_its_labels_and_the_name_of_its_series() -> None:
    registry = CollectorRegistry()
    Metrics(registry).read("kolm_sequence_passes", lambda: {("off",): 2.0, ("rest",): 3.0})
    Metrics(registry).read("kolm_halt_epoch", lambda: 7)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = {(sample.name, *sample.labels.values()): sample.value for one in families for sample in one.samples}
    assert samples == {
        ("kolm_sequence_passes_total", "off"): 2.0,
        ("kolm_sequence_passes_total", "rest"): 3.0,
        ("kolm_halt_epoch",): 7.0,
    }
    assert BY_NAME["kolm_sequence_passes"].series == ("kolm_sequence_passes_total",)
