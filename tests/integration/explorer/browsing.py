"""A real browser for tests, that finds it out when a page breaks the policy it was served with."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, expect, sync_playwright

REQUIRED = "KOLM_TESTS_NEED_BROWSER"
"""Set if a missing chromium is a failure and not a reason to skip (continuous integration)."""

CHROMIUM = Path(os.environ.get("KOLM_TESTS_CHROMIUM", "/usr/bin/chromium"))
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
_PATIENCE = 240_000
"""Milliseconds: a busy machine is waited for."""

PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}


class BrowserMissing(Exception):
    """This machine has no chromium."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Raises BrowserMissing."""
    if not CHROMIUM.exists():
        raise BrowserMissing(f"no chromium at {CHROMIUM} (Debian: apt-get install chromium)")
    expect.set_options(timeout=_PATIENCE)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=str(CHROMIUM), args=list(_FLAGS))
        yield browser
        browser.close()


@contextmanager
def browsing(browser: Browser, url: str, **options: Any) -> Iterator[Page]:
    """A page in a context of its own; at the end nothing may have been refused, missing or thrown on it.

    `options` are of playwright's `new_context`: viewport, color_scheme, java_script_enabled …
    """
    expected = options.pop("expected", ())
    with browser.new_context(base_url=url, **{"viewport": DESKTOP, **options}) as context:
        page = context.new_page()
        page.set_default_timeout(_PATIENCE)
        output: list[str] = []
        page.on("console", lambda message: output.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: output.append(str(error)))
        yield page
        unexpected = [each for each in output if not any(known in each for known in expected)]
        assert unexpected == []
