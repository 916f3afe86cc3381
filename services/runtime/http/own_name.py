"""Names by which a machine is called. A page of another site may point the site's own name at this machine (DNS
rebinding): the browser of somebody here then calls from here, by that name, for the page to read.
"""

from __future__ import annotations

from ipaddress import IPv4Address, ip_address

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")
"""Headers that proxies add."""

_REFUSED = "this name is not known here; on this machine call http://127.0.0.1\n"


def _is_forwarded(headers: Headers) -> bool:
    """Whether a request came through a proxy."""
    return any(header in headers for header in _FORWARDED)


def _is_name_of_dns(host: str) -> bool:
    """Of the header `host`: not an address, localhost, or a name without a dot, of a machine nearby."""
    name = host.partition(":")[0]
    if "." not in name or name.endswith(".localhost"):
        return False
    try:
        IPv4Address(name)
    except ValueError:
        return True
    return False


class OwnName:
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
