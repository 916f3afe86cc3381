"""The chat page: its files, and what they have to know of this front."""

from __future__ import annotations

from base64 import b64encode
from pathlib import Path

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route

from ledger.keys.trusted_keys import TrustedKeys
from services.runtime.http.security_headers import HEADERS, SecurityHeaders
from services.runtime.http.static_files import file_names, static_files

_FILES = Path(__file__).parent / "page"
OPEN = ("/", "/page.json", *(f"/page/{name}" for name in file_names(_FILES)))
"""Its paths."""


def routes(trusted: TrustedKeys, explorer_url: str | None) -> list[BaseRoute]:
    """`trusted` may change while this serves. `explorer_url` is the auditor's page."""

    async def page(_: Request) -> Response:
        return FileResponse(_FILES / "chat.html", headers=HEADERS | {"cache-control": "no-store"})

    async def known(_: Request) -> Response:
        told = {"keys": [b64encode(key.raw).decode() for key in trusted.keys("receipts")], "explorer": explorer_url}
        return JSONResponse(told, headers={"cache-control": "no-store"})

    return [Route("/", page), Route("/page.json", known), Mount("/page", SecurityHeaders(static_files(_FILES)))]
