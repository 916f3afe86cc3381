"""One receipt in a real browser: its proof is checked there, and a backend that lies is found out there."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from ledger.documents.signed_document import sign_document
from ledger.keys.envelope import Envelope
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from tests.integration.explorer.browsing import PHONE, browsing
from tests.integration.explorer.site import HOSTILE_RECEIPT, Lie, Site, id_of
from tests.unit.ledger.builders import KEYS, ORIGIN, STRANGER, receipt, signed_receipt

NUMBER = 24


def concluded(page: Page, number: int = NUMBER) -> str:
    """The overall state once the browser has checked."""
    page.goto(f"/receipts/{id_of(number)}")
    panel = page.locator("#check")
    expect(panel).to_have_attribute("data-state", re.compile("ok|bad|cannot|deviates"))
    return panel.get_attribute("data-state") or ""


def states(page: Page) -> list[str]:
    return page.locator("#check-steps > li").evaluate_all("items => items.map(each => each.dataset.state)")


def test_the_browser_checks_a_receipt_step_by_step(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        assert concluded(page) == "ok"
        assert states(page) == ["ok"] * 6 + ["skipped"] * 2
        expect(page.get_by_role("status")).to_have_text(
            "Your browser has checked it: this receipt is signed and stands in the log."
        )
        assert "kolm.example/ledger, 74 entries" in page.locator("#check-steps").inner_text()


def test_a_verdict_is_checked_with_its_receipt(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url, viewport=PHONE) as page:
        assert concluded(page, 25) == "deviates"
        assert set(states(page)) == {"ok", "skipped"}
        assert states(page)[-1] == "ok"
        panel, row = page.locator("#check"), page.get_by_role("cell", name="DEVIATION").locator(".badge")
        red = row.evaluate("element => getComputedStyle(element).color")
        assert panel.locator(".summary").evaluate("element => getComputedStyle(element).color") == red
        expect(page.get_by_role("cell", name="DEVIATION")).to_be_visible()
        expect(page.get_by_role("status")).to_contain_text("an auditor found a deviation")


@pytest.mark.parametrize(("number", "shown"), [(NUMBER, ["true"]), (27, ["false"]), (25, [])])
def test_whether_the_profile_was_proven_is_shown_where_the_receipt_says_so(
    browser: Browser, site: Site, number: int, shown: list[str]
) -> None:
    with browsing(browser, site.url) as page:
        assert concluded(page, number) == ("deviates" if number == 25 else "ok")
        assert page.locator("[data-field=profile_proven]").all_inner_texts() == shown


def another_tenant(response: Any) -> None:
    """A true envelope of a receipt that says otherwise, by a key that nobody trusts."""
    forged = sign_document(receipt(NUMBER, tenant="somebody else"), STRANGER).to_bytes()
    response.receipt.envelope = forged


def forged_entry(response: Any) -> None:
    entry = Entry.from_bytes(response.entry.entry)
    forged = sign_document(receipt(NUMBER, tenant="somebody else"), STRANGER)
    response.entry.entry = Entry(entry.index, entry.previous, forged).to_bytes()


def changed_previous(response: Any) -> None:
    entry = Entry.from_bytes(response.entry.entry)
    response.entry.entry = Entry(entry.index, "sha256:" + "00" * 32, entry.envelope).to_bytes()


def another_entry(response: Any) -> None:
    entry = Entry.from_bytes(response.entry.entry)
    response.entry.entry = Entry(entry.index, entry.previous, Envelope.from_bytes(signed_receipt(3))).to_bytes()


def flipped_hash(response: Any) -> None:
    first = response.inclusion_proof.hashes[0]
    response.inclusion_proof.hashes[0] = bytes([first[0] ^ 1]) + first[1:]


def short_proof(response: Any) -> None:
    del response.inclusion_proof.hashes[-1]


def long_proof(response: Any) -> None:
    response.inclusion_proof.hashes.append(bytes(32))


def signed_by_a_stranger(response: Any) -> None:
    response.checkpoint = sign_checkpoint(Checkpoint(ORIGIN, 74, response.root_hash), KEYS["witness"])


def another_root(response: Any) -> None:
    response.checkpoint = response.checkpoint.replace(b"\n74\n", b"\n74\nAAAA", 1)


def broken_signature(response: Any) -> None:
    text, _, line = response.checkpoint.rpartition(b" ")
    response.checkpoint = text + b" " + line[:20] + (b"A" if line[20:21] != b"A" else b"B") + line[21:]


@pytest.mark.parametrize(
    ("lies", "step"),
    [
        ({"GetReceipt": another_tenant}, 1),
        ({"GetReceipt": another_tenant, "GetEntry": forged_entry}, 2),
        ({"GetEntry": another_entry}, 1),
        ({"GetEntry": changed_previous}, 6),
        ({"GetInclusionProof": flipped_hash}, 6),
        ({"GetInclusionProof": short_proof}, 5),
        ({"GetInclusionProof": long_proof}, 5),
        ({"GetInclusionProof": signed_by_a_stranger}, 6),
        ({"GetInclusionProof": another_root}, 6),
        ({"GetInclusionProof": broken_signature}, 6),
    ],
    ids=lambda value: "+".join(each.__name__ for each in value.values()) if isinstance(value, dict) else str(value),
)
def test_what_a_lying_backend_serves_is_red(browser: Browser, site: Site, lies: dict[str, Lie], step: int) -> None:
    with site.lying(**lies), browsing(browser, site.url) as page:
        assert concluded(page) == "bad"
        assert states(page).index("bad") == step - 1
        expect(page.get_by_role("status")).to_have_text("This receipt does not hold.")


def test_a_page_that_shows_something_else_than_was_signed_is_red(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.route(
            "**/receipts/*", lambda route: route.fulfill(body=route.fetch().text().replace(">acme<", ">globex<"))
        )
        assert concluded(page) == "bad"
        assert states(page).index("bad") == 2
        assert "tenant is shown as “globex”, and was signed as “acme”" in page.locator("#check-steps").inner_text()


def test_a_browser_without_ed25519_says_so(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.add_init_script(
            "crypto.subtle.importKey = async () => { throw new DOMException('no', 'NotSupportedError'); };"
        )
        assert concluded(page) == "cannot"
        assert states(page)[:6] == ["ok", "cannot", "ok", "ok", "ok", "cannot"]
        assert "this browser has no Ed25519" in page.locator("#check-steps").inner_text()


def test_a_hostile_tenant_is_text_and_nothing_else(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        page.on("dialog", lambda dialog: pytest.fail(f"a script ran: {dialog.message}"))
        assert concluded(page, HOSTILE_RECEIPT) == "ok"
        shown = page.locator("[data-field=tenant]").inner_text()
        assert "<script>alert(1)</script>" in shown
        assert "\\u{202e}" in shown
        assert page.locator("img").count() == 0
