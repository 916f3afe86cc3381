"""The list of receipts in a real browser: filters, paging, and a list that does not hold."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.integration.explorer.browsing import PHONE, browsing
from tests.integration.explorer.site import HEADS, HOSTILE, RECEIPTS, Site, id_of


def test_filters_narrow_the_list_without_a_new_page(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.goto("/receipts")
        rows = page.locator("tbody tr")
        expect(rows).to_have_count(25)
        page.evaluate("window.stayed = true")
        page.get_by_label("Method").fill("lookahead")
        page.get_by_label("Method").press("Tab")
        expect(rows).to_have_count(RECEIPTS // 4)
        page.get_by_label("Newest verdict").select_option("exact")
        expect(rows).to_have_count(5)
        assert page.evaluate("window.stayed") is True
        assert "method=lookahead" in page.url


def test_everything_works_without_scripts(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url, java_script_enabled=False, viewport=PHONE) as page:
        page.goto("/receipts")
        seen = page.locator("tbody th").all_inner_texts()
        while (older := page.get_by_role("link", name="Older")).count():
            with page.expect_navigation():
                older.click()
            seen += page.locator("tbody th").all_inner_texts()
        assert len(seen) == len(set(seen)) == RECEIPTS
        page.get_by_text("More filters").click()
        page.get_by_label("Draft head").fill(HEADS[0])
        page.get_by_role("button", name="Filter").click()
        expect(page.locator("tbody tr")).to_have_count(16)
        page.locator("tbody th a").first.click()
        expect(page.get_by_text("Without JavaScript this page cannot check")).to_be_visible()
        expect(page.locator("#check")).to_be_hidden()


def test_a_filter_that_cannot_be_read_is_named(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url, expected=["400"]) as page:
        page.goto("/receipts?start_time=yesterday")
        assert "2026-01-02" in page.get_by_label("Issued from").evaluate(
            "field => document.getElementById(field.getAttribute('aria-describedby')).textContent"
        )


def test_a_tenant_is_found_by_a_hostile_name(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.goto("/receipts")
        page.get_by_label("Tenant").fill(HOSTILE)
        page.get_by_role("button", name="Filter").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        assert page.get_by_label("Tenant").input_value() == HOSTILE
        page.locator("tbody th a").click()
        page.wait_for_url(f"**/{id_of(RECEIPTS - 1)}")


def flipped_hash(page: Any) -> None:
    page.multi_proof.hashes[0] = bytes(32)


def test_a_list_that_does_not_hold_is_not_shown(browser: Browser, site: Site) -> None:
    with site.lying(ListReceipts=flipped_hash), browsing(browser, site.url, expected=["502"]) as page:
        page.goto("/receipts?max_index=40")
        expect(page.get_by_role("heading", level=1)).to_have_text("The ledger's answer does not hold")
        expect(page.locator("tbody tr")).to_have_count(0)


@pytest.mark.parametrize("path", ["/receipts", "/verdicts"])
def test_on_a_phone_a_receipt_or_a_verdict_is_one_line(browser: Browser, site: Site, path: str) -> None:
    with browsing(browser, site.url, viewport=PHONE) as page:
        page.goto(path)
        rows = page.locator("tbody tr").filter(has_not=page.locator(".wide"))  # what differs has a line of its own
        line = page.locator("tbody tr .badge").first.evaluate("badge => badge.getBoundingClientRect().height")
        heights = rows.evaluate_all("rows => rows.map(row => row.getBoundingClientRect().height)")
        assert heights
        assert max(heights) < 2.2 * line
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")


def test_without_a_policy_of_witnesses_their_silence_is_no_alarm(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.goto("/receipts")
        assert page.locator("#freshness").get_attribute("class") is None
        page.locator("#freshness a").click()
        expect(page.locator("#witness-title")).to_be_in_viewport()
