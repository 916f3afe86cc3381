"""An HTTP server's measures of its requests."""

from __future__ import annotations

from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Mount, Route

from services.runtime.http.serving import MeasuredApp
from services.runtime.metrics import Metrics
from tests.serving import exported, listed


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
