"""/openapi.json describes every route that answers JSON, by the models that check what comes in."""

from __future__ import annotations

import json
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Route

from services.client import AsyncRuntime
from services.http.app import http_app, openapi
from services.http.completions import ChatFields
from services.http.settings import HttpSettings

_OTHERS = {"/", "/page.json", "/openapi.json", "/metrics", "/v1/models/{model:path}"}


async def test_every_endpoint_is_described() -> None:
    async with AsyncRuntime.connect("127.0.0.1:1") as runtime:
        app: Any = http_app(runtime, HttpSettings())
    while not isinstance(app, Starlette):  # what lies around it
        app = app._app
    routes = {route.path: route for route in app.routes if isinstance(route, Route)}
    described = openapi()["paths"]
    assert routes.keys() - _OTHERS == described.keys()
    assert all({each.lower() for each in routes[path].methods or ()} >= described[path].keys() for path in described)


def test_each_body_has_the_members_that_are_checked_and_every_reference_is_there() -> None:
    document = openapi()
    schemas = document["components"]["schemas"]
    assert schemas["ChatFields"]["properties"].keys() == ChatFields.model_fields.keys()
    assert schemas["ChatFields"]["additionalProperties"] is False
    named = {part.split('"')[0] for part in json.dumps(document).split("#/components/schemas/")[1:]}
    assert named <= schemas.keys()
