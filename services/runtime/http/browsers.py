"""Protection of pages in browsers: headers, files, and callers that DNS rebinding has sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from services.runtime.listening import ServedNames, misdirected

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content-Security-Policy, level 3. No inline script or style: a tenant's name is never run."""

HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
"""Headers of every page."""

_SHARED = "browser"


class RefuseOtherNames:
    """Refuses requests whose header Host has another name than the server's, whatever other headers they have: a caller
    writes them all, and a page of a rebound name can add any but Host.
    """

    def __init__(self, app: ASGIApp, names: ServedNames) -> None:
        self._app = app
        self._names = names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            hosts = Headers(scope=scope).getlist("host")
            known = len(hosts) == 1 and self._names.include(hosts[0])
            if not known or not scope["path"].startswith(("/", "*")):  # a target with a host of its own is for proxies
                await PlainTextResponse(misdirected(", ".join(hosts)), 421)(scope, receive, send)
                return
        await self._app(scope, receive, send)


class SecurityHeaders:
    """Sets the headers on every answer, errors included. Pages are never cached: a proof is of its moment."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        await self._app(scope, receive, send_with_headers)


def static_files(own: Path) -> StaticFiles:
    """The static files in one folder, as the imports of scripts have it."""
    return StaticFiles(directory=own, packages=[("services.runtime.http", _SHARED)])


def file_names(own: Path) -> Iterator[str]:
    """Names of the files that `static_files` serves."""
    for folder in (own, Path(__file__).parent / _SHARED):
        yield from (file.name for file in folder.iterdir())
