"""The chat page's files: whoever may see the page may load all of it."""

from __future__ import annotations

import re
from pathlib import Path

from services.http.app import PAGE_PATHS

SERVICES = Path(__file__).parents[3] / "services"


def test_every_file_that_the_page_loads_is_open_to_everybody() -> None:
    scripts = [*(SERVICES / "http" / "page").glob("*.js"), *(SERVICES / "runtime" / "http" / "browser").glob("*.js")]
    page = (SERVICES / "http" / "page" / "chat.html").read_text("utf-8")
    loaded = set(re.findall(r'(?:src|href)="(/page/[^"]+)"', page))
    for script in scripts:
        loaded |= {f"/page/{name}" for name in re.findall(r'from "\./([^"]+)"', script.read_text("utf-8"))}
    assert {"/page/chat.js", "/page/verify.js", "/page/commitments.js"} <= loaded <= set(PAGE_PATHS)
