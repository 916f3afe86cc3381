"""Cosignatures are checked in the browser too, where the explorer has been told whose count."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from ledger.keys.note import COSIGNATURE, Note, VerifierKey
from ledger.witness.cosignature import cosign
from ledger.witness.tlog_policy import Policy, PolicyWitness
from tests.integration.explorer.browsing import browsing
from tests.integration.explorer.site import Site, explored
from tests.integration.explorer.test_receipts import concluded, states
from tests.replacing import replace
from tests.unit.ledger.builders import KEYS, receipt_id

NAME = "witness.example/w"
WITNESS = VerifierKey(NAME, KEYS["witness"].public, COSIGNATURE)


@pytest.fixture(scope="module")
def url(site: Site) -> Iterator[str]:
    """An explorer that knows one witness."""
    policy = Policy(logs=(), witnesses=(PolicyWitness("w", WITNESS),), quorum="w")
    with explored(replace(site.source, policy=policy)) as address:
        yield address


def cosigned(response: Any) -> None:
    text = Note.from_bytes(response.checkpoint).text
    response.checkpoint += cosign(text, NAME, KEYS["witness"], 1_700_000_000).to_line().encode()


def cosigned_something_else(response: Any) -> None:
    response.checkpoint += cosign("another log\n1\nAAAA\n", NAME, KEYS["witness"], 7).to_line().encode()


def test_a_cosignature_is_checked(browser: Browser, site: Site, url: str) -> None:
    with site.lying(GetInclusionProof=cosigned), browsing(browser, url) as page:
        assert concluded(page) == "ok"
        assert states(page)[6] == "ok"
        assert f"{NAME} at 2023-11-14T22:13:20.000Z" in page.locator("#check-steps").inner_text()


def test_a_cosignature_over_something_else_is_red(browser: Browser, site: Site, url: str) -> None:
    with site.lying(GetInclusionProof=cosigned_something_else), browsing(browser, url) as page:
        assert concluded(page) == "bad"
        assert states(page).index("bad") == 6


STATES = (
    "/receipts",
    f"/receipts/{receipt_id(1)}",
    "/verdicts",
    "/halts",
    "/promises",
    "/retention",
    "/trends",
    "/log",
)


@pytest.mark.parametrize("path", STATES)
def test_each_page_of_the_log_says_how_old_it_is_by_whose_word(site: Site, url: str, path: str) -> None:
    assert '<a href="/log#witness-title">' in age(url + path)
    with site.lying(GetCheckpoint=cosigned):
        assert re.search(r"days old \(2023-11-14 22:13:20 UTC\)", age(url + path))


def test_a_page_without_a_state_says_no_age(url: str) -> None:
    assert age(f"{url}/check") == age(f"{url}/receipts/{receipt_id(1000)}") == ""


def age(url: str) -> str:
    """The line of the page."""
    line = re.search('<p id="freshness"[^>]*>(.*?)</p>', httpx2.get(url).text)
    return line[1] if line else ""


def test_the_log_page_says_who_has_not_cosigned(browser: Browser, site: Site, url: str) -> None:
    with browsing(browser, url) as page:
        page.goto("/log")
        expect(page.get_by_role("row", name=NAME)).to_contain_text("not yet")
    with site.lying(GetCheckpoint=lambda response: cosigned(response)), browsing(browser, url) as page:
        page.goto("/log")
        expect(page.get_by_role("row", name=NAME)).to_contain_text("2023-11-14 22:13:20")
