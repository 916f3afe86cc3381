"""Pages of the explorer: what they show, promises, retention."""

import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from ledger.documents.promise import sign_promise
from ledger.keys.ed25519 import SigningKey
from tests.integration.explorer.browsing import DESKTOP, PHONE, browsing
from tests.integration.explorer.site import RECEIPTS, Site, id_of
from tests.unit.ledger.builders import KEYS, STRANGER, promise_of, receipt

PAGES = (
    "/receipts",
    f"/receipts/{id_of(25)}",
    "/verdicts",
    "/halts",
    "/promises",
    "/check",
    "/retention",
    "/log",
)


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


def test_the_log_shows_its_head_and_its_witnesses(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.goto("/log")
        expect(page.get_by_label("The signed note")).to_contain_text("kolm.example/ledger\n74\n")
        expect(page.get_by_role("region", name="Witnesses")).to_contain_text("No checkpoint counts as witnessed")


def forged_verdicts(response: Any) -> None:
    response.verdicts[0].envelope = response.verdicts[0].envelope.replace(b'"sig":"', b'"sig":"AAAA', 1)


def test_verdicts_that_do_not_hold_are_not_shown(browser: Browser, site: Site) -> None:
    with site.lying(ListVerdicts=forged_verdicts), browsing(browser, site.url, expected=["502"]) as page:
        page.goto("/verdicts")
        expect(page.get_by_role("heading", level=1)).to_have_text("The ledger's answer does not hold")
        expect(page.get_by_role("alert")).to_be_visible()


_UNNAMED = """() => [...document.querySelectorAll('a, button, input, select, [role=img]')]
  .filter(each => !(each.textContent.trim() || each.labels?.length || each.getAttribute('aria-label')))
  .map(each => each.outerHTML)"""
"""Controls that a screen reader has no name for."""


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


NUMBER = 24


def promised(number: int, key: SigningKey = KEYS["receipts"], **changes: Any) -> str:
    """A promise of the site's receipt of this number; those from RECEIPTS on are not in its log."""
    return sign_promise(promise_of(receipt(number), **changes), key).to_bytes().decode()


def asked(site: Site, promise: str) -> tuple[int, str]:
    """Status and page."""
    try:
        with urllib.request.urlopen(f"{site.url}/promises?{urllib.parse.urlencode({'promise': promise})}") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize(
    ("promise", "status", "shown"),
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
def test_what_became_of_a_promise(site: Site, promise: str, status: int, shown: str) -> None:
    code, text = asked(site, promise)
    assert (code, shown in text) == (status, True), text


def test_a_ledger_that_hides_the_receipt_breaks_no_promise(site: Site) -> None:
    def hide(response: Any) -> None:
        del response.receipts[:]

    with site.lying(ListReceipts=hide):
        code, text = asked(site, promised(NUMBER))
    assert (code, "does not hold" in text) == (502, True)
