"""Pages of other sites: none may call, but those that are named."""

from __future__ import annotations

from typing import Any

import httpx2

from services.runtime.access import Access
from tests.integration.cli.scripted import ScriptedGeneration, mount
from tests.integration.http.front import fronting
from tests.serving import serving

SITE = "https://chat.example"
NOBODY = "127.0.0.1:1"
ASKING = {
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-os",
    "access-control-request-private-network": "true",  # Chromium asks for 127.0.0.1
}


async def allowed(origin: str, **settings: Any) -> tuple[str | None, str | None]:
    """Whom the front allows to send a chat, and to read an answer."""
    async with fronting(NOBODY, **settings) as front, httpx2.AsyncClient(trust_env=False) as browser:
        url = f"http://127.0.0.1:{front.port}"
        preflight = await browser.options(f"{url}/v1/chat/completions", headers={"origin": origin} | ASKING)
        answer = await browser.get(f"{url}/health", headers={"origin": origin})
        assert answer.status_code == 503
        sends = preflight.headers.get("access-control-allow-origin") if preflight.status_code == 200 else None
        return sends, answer.headers.get("access-control-allow-origin")


async def test_nobody_is_allowed_unless_named() -> None:
    assert await allowed(SITE) == (None, None)
    assert await allowed(SITE, allowed_origin=(SITE,)) == (SITE, SITE)
    assert await allowed("https://other.example", allowed_origin=(SITE,)) == (None, None)
    assert await allowed(SITE, allowed_origin=("*",)) == ("*", "*")


async def test_a_caller_from_elsewhere_is_asked_for_a_token_after_its_browser_has_asked() -> None:
    with serving(mount(ScriptedGeneration()), access=Access()) as served:
        await _asked_for_a_token(served.address)


async def _asked_for_a_token(generation: str) -> None:
    async with fronting(generation, allowed_origin=(SITE,)) as front, httpx2.AsyncClient(trust_env=False) as browser:
        url, proxied = f"http://127.0.0.1:{front.port}/v1/models", {"origin": SITE, "x-forwarded-for": "203.0.113.7"}
        assert (await browser.options(url, headers=proxied | ASKING)).status_code == 200
        refused = await browser.get(url, headers=proxied)
        assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, SITE)
