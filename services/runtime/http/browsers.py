"""Protection of pages in browsers: headers, files, and callers that DNS rebinding has sent.

A page of another site may point the site's own name at this machine (DNS rebinding): the browser of somebody here then
calls from here, by that name, for the page to read.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, ip_address
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers that proxies add."""

_REFUSED = "this name is not known here; on this machine call http://127.0.0.1\n"


def _is_forwarded(headers: Headers) -> bool:
    """Whether a request came through a proxy."""
    return any(header in headers for header in _FORWARDED)


def _is_name_of_dns(host: str) -> bool:
    """Whether the header `host` is a name of DNS: no address, not localhost, no dotless name of a machine nearby."""
    name = host.partition(":")[0]
    if "." not in name or name.endswith(".localhost"):
        return False
    try:
        IPv4Address(name)
    except ValueError:
        return True
    return False


class RefuseRebound:
    """Refuses callers on this machine that call it by a name of DNS, without a proxy between."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_rebound(Headers(scope=scope), scope.get("client")):
            await PlainTextResponse(_REFUSED, 421)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def is_rebound(headers: Headers, client: tuple[str, int] | None) -> bool:
    """Whether a caller on this machine calls it by a name of DNS, and no proxy has said that it stands between."""
    if client is None or _is_forwarded(headers) or not _is_name_of_dns(headers.get("host", "")):
        return False
    try:
        return ip_address(client[0]).is_loopback
    except ValueError:
        return False


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


_SHARED = "browser"


def static_files(own: Path) -> StaticFiles:
    """The static files in one folder, as the imports of scripts have it."""
    return StaticFiles(directory=own, packages=[("services.runtime.http", _SHARED)])


def file_names(own: Path) -> Iterator[str]:
    """Names of the files that `static_files` serves."""
    for folder in (own, Path(__file__).parent / _SHARED):
        yield from (file.name for file in folder.iterdir())
