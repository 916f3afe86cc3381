"""A promise is pasted, and held against the log: kept and broken take proof, and a lying ledger is refused."""

from __future__ import annotations

import urllib.error
import urllib.parse
import urllib.request
from dataclasses import replace
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from ledger.documents.promise import Promise, sign_promise
from ledger.keys.ed25519 import SigningKey
from tests.integration.explorer.browsing import PHONE, browsing
from tests.integration.explorer.site import RECEIPTS, Site
from tests.unit.ledger.builders import KEYS, STRANGER, at, receipt

NUMBER = 24


def promised(number: int, key: SigningKey = KEYS["receipts"], **changes: Any) -> str:
    """A promise of the site's receipt of this number; those from RECEIPTS on are not in its log."""
    kept = receipt(number, tenant="acme")
    promise = Promise(
        promised_at=at(0), due=at(3600), tenant="acme", request_id=kept.request_id, nonce=None,
        base_cid=kept.base_cid, profile_cid=kept.profile_cid, prompt=kept.prompt, choices=1,
    )  # fmt: skip
    return sign_promise(replace(promise, **changes), key).to_bytes().decode()


def asked(site: Site, promise: str) -> tuple[int, str]:
    """Status and page."""
    try:
        with urllib.request.urlopen(f"{site.url}/promises?{urllib.parse.urlencode({'promise': promise})}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def test_a_kept_promise_leads_to_its_receipt(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url, viewport=PHONE) as page:
        page.goto("/promises")
        page.get_by_label("The promise").fill(promised(NUMBER))
        page.get_by_role("button", name="Check").click()
        expect(page.get_by_role("status")).to_have_text("Kept: the log holds every promised receipt.")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("link", name="entry 25").click()
        expect(page.locator("tbody tr")).to_have_count(1)


@pytest.mark.parametrize(
    ("promise", "status", "said"),
    [
        (promised(NUMBER), 200, "Kept: "),
        (promised(RECEIPTS + 1), 200, "Broken: "),
        (promised(RECEIPTS + 1, due="2100-01-01T00:00:00.000Z"), 200, "Open: "),
        (promised(NUMBER, choices=2), 200, "Broken: "),
        (promised(NUMBER, STRANGER), 400, "not trusted to sign a promise"),
        ("{}", 400, "payload: is missing"),
        ("\u202ehello", 400, 'class="problem"'),
    ],
)
def test_what_became_of_a_promise(site: Site, promise: str, status: int, said: str) -> None:
    code, text = asked(site, promise)
    assert (code, said in text) == (status, True), text


def test_a_ledger_that_hides_the_receipt_breaks_no_promise(site: Site) -> None:
    def hide(response: Any) -> None:
        del response.receipts[:]

    with site.lying(ListReceipts=hide):
        code, text = asked(site, promised(NUMBER))
    assert (code, "does not hold" in text) == (502, True)
