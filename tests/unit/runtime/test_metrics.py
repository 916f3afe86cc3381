"""The list of metrics, and those of HTTP servers."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from services.runtime.http.serving import MeasuredApp
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


async def one(request: Request) -> Response:
    return PlainTextResponse(request.path_params["name"])


APP = Starlette(routes=[Route("/receipts/{name}", one), Mount("/static", Starlette(routes=[Route("/{name}", one)]))])


async def ask(app: MeasuredApp, path: str, method: str = "GET") -> None:
    scope = {"type": "http", "method": method, "path": path, "headers": [], "query_string": b"", "root_path": ""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b""}

    async def send(_: Any) -> None:
        return

    await app(scope, receive, send)


@pytest.mark.parametrize(
    ("path", "method", "labels"),
    [
        ("/receipts/0198", "GET", ("GET", "/receipts/{name}", "200")),
        ("/receipts/0198", "POST", ("POST", "/receipts/{name}", "405")),
        ("/static/a.css", "GET", ("GET", "/static/", "200")),
        ("/.env", "GET", ("other", "other", "404")),
        ("/.env", "PROPFIND", ("other", "other", "404")),
    ],
)
async def test_series_are_named_by_routes_and_never_by_what_a_stranger_asks_for(
    path: str, method: str, labels: tuple[str, str, str]
) -> None:
    registry = CollectorRegistry()
    await ask(MeasuredApp(APP, registry), path, method)
    (family,) = [family for family in registry.collect() if family.name == "kolm_http_requests"]
    (sample,) = [sample for sample in family.samples if sample.name.endswith("_total")]
    assert (sample.labels["method"], sample.labels["route"], sample.labels["status"]) == labels
    assert registry.get_sample_value("kolm_http_seconds_count", {"route": labels[1]}) == 1
    assert registry.get_sample_value("kolm_http_requests_in_flight") == 0


def test_the_list_names_what_every_http_server_exports() -> None:
    registry = CollectorRegistry()
    MeasuredApp(APP, registry)
    Metrics(registry).process("http")
    assert exported(registry) == listed("every", "http")
