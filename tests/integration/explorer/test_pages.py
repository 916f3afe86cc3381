"""The other pages in a real browser, at phone and desktop width, and what holds for every page."""

from __future__ import annotations

from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, expect

from tests.integration.explorer.browsing import DESKTOP, PHONE, browsing
from tests.integration.explorer.site import Site, id_of

PAGES = (
    "/receipts",
    f"/receipts/{id_of(25)}",
    "/verdicts",
    "/halts",
    "/promises",
    "/check",
    "/retention",
    "/trends",
    "/log",
)


@pytest.mark.parametrize("path", ["/log", "/receipts", "/trusted.json", "/checkpoint", "/static/explorer.css"])
def test_a_page_that_points_its_name_at_this_machine_reads_nothing(site: Site, path: str) -> None:
    rebound = {"host": "evil.example:50056"}
    assert httpx2.get(site.url + path, headers=rebound).status_code == 421
    assert httpx2.get(site.url + path, headers=rebound | {"x-forwarded-for": "203.0.113.7"}).status_code == 200
    assert httpx2.get(site.url + path).status_code == 200


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_every_page_fits_its_window_and_can_be_found_around_in(
    browser: Browser, site: Site, viewport: dict[str, int]
) -> None:
    with browsing(browser, site.url, viewport=viewport) as page:
        for path in PAGES:
            page.goto(path)
            expect(page.get_by_role("main")).to_be_visible()
            expect(page.get_by_role("heading", level=1)).to_have_count(1)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
            assert page.locator("table:not([role=presentation]):not(:has(caption))").count() == 0
            assert page.evaluate(_UNNAMED) == [], path
            assert page.evaluate(_CONTRAST) == [], path


@pytest.mark.parametrize("scheme", ["dark"])
def test_every_page_can_be_read_in_the_dark(browser: Browser, site: Site, scheme: Any) -> None:
    with browsing(browser, site.url, color_scheme=scheme) as page:
        for path in PAGES:
            page.goto(path)
            assert page.evaluate(_CONTRAST) == [], path


def test_the_keyboard_reaches_the_content_and_focus_is_seen(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.goto("/receipts")
        page.keyboard.press("Tab")
        skip = page.get_by_role("link", name="Skip to the content")
        expect(skip).to_be_focused()
        expect(skip).to_be_in_viewport()
        assert skip.evaluate("each => getComputedStyle(each).outlineStyle") == "solid"
        page.keyboard.press("Enter")
        page.wait_for_url("**#main")
        page.keyboard.press("Tab")
        expect(page.locator("#freshness a")).to_be_focused()
        page.keyboard.press("Tab")
        expect(page.get_by_label("Tenant")).to_be_focused()
        page.keyboard.type("globex")
        page.keyboard.press("Enter")
        expect(page.locator("td.name").first).to_have_text("globex")


def test_verdicts_narrow_to_an_outcome_and_lead_to_their_receipts(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.goto("/verdicts")
        expect(page.locator("tbody tr")).to_have_count(12)
        entries = [int(each) for each in page.locator("tbody th").all_inner_texts()]
        assert entries == sorted(entries, reverse=True)
        expect(page.get_by_text("the auditor’s engine, by prefill")).to_have_count(5)
        expect(page.get_by_text("not independent the audited server, by decode")).to_have_count(5)
        expect(page.get_by_text("not stated")).to_have_count(2)
        page.get_by_role("link", name="deviation").click()
        expect(page.locator("tbody tr")).to_have_count(1)
        expect(page.locator("tbody")).to_contain_text("position 1: token 7 expected, 8 served")
        page.locator("tbody a").click()
        page.wait_for_url(f"**/{id_of(25)}")


def test_an_open_halt_is_an_alert(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.goto("/halts")
        expect(page.get_by_role("alert")).to_contain_text("1 open halt")
        expect(page.locator("tbody tr")).to_have_count(1)


def test_trends_are_plotted_and_in_a_table(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.goto("/trends")
        expect(page.locator(".plot canvas")).to_have_count(2)
        assert page.locator(".plot canvas").evaluate_all(_INKED) == [True, True]
        expect(page.locator("tbody th[scope=row]")).to_have_text(["eagle3", "eagle3", "lookahead", "off"])
        assert "so far" not in page.locator(".lead").inner_text()


def test_without_scripts_it_is_said_that_nothing_is_plotted(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url, java_script_enabled=False) as page:
        for path, plots in (("/trends", 2), ("/log", 1)):
            page.goto(path)
            expect(page.get_by_text("A plot takes JavaScript.")).to_have_count(plots)


def test_the_log_shows_its_head_its_growth_and_its_witnesses(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.goto("/log")
        expect(page.get_by_label("The signed note")).to_contain_text("kolm.example/ledger\n74\n")
        expect(page.locator(".plot canvas")).to_have_count(1)
        expect(page.get_by_role("region", name="Witnesses")).to_contain_text("No checkpoint counts as witnessed")


def forged_verdicts(response: Any) -> None:
    response.verdicts[0].envelope = response.verdicts[0].envelope.replace(b'"sig":"', b'"sig":"AAAA', 1)


def test_verdicts_that_do_not_hold_are_not_shown(browser: Browser, site: Site) -> None:
    with site.lying(ListVerdicts=forged_verdicts), browsing(browser, site.url, expected=["502"]) as page:
        page.goto("/verdicts")
        expect(page.get_by_role("heading", level=1)).to_have_text("The ledger's answer does not hold")
        expect(page.get_by_role("alert")).to_be_visible()


def test_what_is_not_there_is_said_plainly(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url, expected=["404"]) as page:
        for path in ("/receipts/none", f"/receipts/{id_of(9999)}", "/nowhere"):
            answer = page.goto(path)
            assert answer is not None
            assert (answer.status, answer.headers["content-security-policy"][:18]) == (404, "default-src 'none'")


_UNNAMED = """() => [...document.querySelectorAll('a, button, input, select, [role=img]')]
  .filter(each => !(each.textContent.trim() || each.labels?.length || each.getAttribute('aria-label')))
  .map(each => each.outerHTML)"""
"""Controls that a screen reader has no name for."""

_INKED = """canvases => canvases.map(canvas => {
  const { data } = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
  return data.some(each => each !== 0);
})"""

_CONTRAST = """() => {
  const parse = text => text.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(each => each / 255)
    .map(each => each <= 0.04045 ? each / 12.92 : ((each + 0.055) / 1.055) ** 2.4)
    .reduce((sum, each, place) => sum + each * [0.2126, 0.7152, 0.0722][place], 0);
  const paper = element => {
    for (let each = element; each; each = each.parentElement) {
      const colour = parse(getComputedStyle(each).backgroundColor);
      if (colour[3] === undefined || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const low = [];
  for (const each of document.querySelectorAll('main *, header *, footer *')) {
    const own = [...each.childNodes].some(node => node.nodeType === 3 && node.textContent.trim());
    if (!own || !each.checkVisibility()) continue;
    const pair = [light(parse(getComputedStyle(each).color)), light(paper(each))].sort((a, b) => b - a);
    if ((pair[0] + 0.05) / (pair[1] + 0.05) < 4.5) low.push(each.textContent.trim().slice(0, 40));
  }
  return low;
}"""
"""Text with less contrast than WCAG 2.2 asks for (1.4.3, level AA)."""
