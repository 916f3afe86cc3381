"""Pages of receipts: the list, and one with its checks in the browser."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from ledger.documents.receipt import SpecDecode
from ledger.documents.signed_document import sign_document
from ledger.encoding.stream_digest import StreamDigest
from ledger.keys.envelope import Envelope
from ledger.keys.note import COSIGNATURE, Note, VerifierKey
from ledger.tree.checkpoint import Checkpoint, sign_checkpoint
from ledger.tree.entry import Entry
from ledger.witness.cosignature import cosign
from ledger.witness.tlog_policy import Policy, PolicyWitness
from tests.integration.explorer.browsing import PHONE, browsing
from tests.integration.explorer.site import HEADS, HOSTILE_RECEIPT, RECEIPTS, Site, explored, id_of
from tests.integration.ledger_service.liar import Lie
from tests.integration.monitor.processes import explorer, ledger
from tests.mutations import replace
from tests.serving import PATIENCE, fetched, started
from tests.unit.ledger.builders import KEYS, ORIGIN, STRANGER, receipt, receipt_id, signed, signed_receipt, verdict

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
            "Your browser has checked it: this receipt is signed and in the log."
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


def another_tenant(response: Any) -> None:
    """A well-formed envelope of another receipt, by an untrusted key."""
    forged = sign_document(receipt(NUMBER, tenant="another tenant"), STRANGER).to_bytes()
    response.receipt.envelope = forged


def forged_entry(response: Any) -> None:
    entry = Entry.from_bytes(response.entry.entry)
    forged = sign_document(receipt(NUMBER, tenant="another tenant"), STRANGER)
    response.entry.entry = Entry(entry.index, forged).to_bytes()


def changed_index(response: Any) -> None:
    entry = Entry.from_bytes(response.entry.entry)
    response.entry.entry = Entry(entry.index + 1, entry.envelope).to_bytes()


def another_entry(response: Any) -> None:
    entry = Entry.from_bytes(response.entry.entry)
    response.entry.entry = Entry(entry.index, Envelope.from_bytes(signed_receipt(3))).to_bytes()


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


LIES: tuple[tuple[dict[str, Lie], int], ...] = (
    ({"GetReceipt": another_tenant}, 1),
    ({"GetReceipt": another_tenant, "GetEntry": forged_entry}, 2),
    ({"GetEntry": another_entry}, 1),
    ({"GetEntry": changed_index}, 1),
    ({"GetInclusionProof": flipped_hash}, 6),
    ({"GetInclusionProof": short_proof}, 5),
    ({"GetInclusionProof": long_proof}, 5),
    ({"GetInclusionProof": signed_by_a_stranger}, 6),
    ({"GetInclusionProof": another_root}, 6),
    ({"GetInclusionProof": broken_signature}, 6),
)
"""Changes of answers, and the step that finds each."""


def test_what_a_lying_backend_serves_is_red(browser: Browser, site: Site) -> None:
    with browsing(browser, site.url) as page:
        for lies, step in LIES:
            told = [each.__name__ for each in lies.values()]
            with site.lying(**lies):
                assert concluded(page) == "bad", told
            assert states(page).index("bad") == step - 1, told
            expect(page.get_by_role("status")).to_have_text("This receipt does not hold.")
        assert concluded(page) == "ok"


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


def flipped_hash_of_a_row(page: Any) -> None:
    page.multi_proof.hashes[0] = bytes(32)


def test_a_list_that_does_not_hold_is_not_shown(browser: Browser, site: Site) -> None:
    with site.lying(ListReceipts=flipped_hash_of_a_row), browsing(browser, site.url, expected=["502"]) as page:
        page.goto("/receipts?max_index=40")
        expect(page.get_by_role("heading", level=1)).to_have_text("The ledger's answer does not hold")
        expect(page.locator("tbody tr")).to_have_count(0)


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


def cosigned_in_the_far_future(response: Any) -> None:
    """A time that the format allows, beyond those of most programs."""
    text = Note.from_bytes(response.checkpoint).text
    response.checkpoint += cosign(text, NAME, KEYS["witness"], 2**62).to_line().encode()


def cosigned_something_else(response: Any) -> None:
    response.checkpoint += cosign("another log\n1\nAAAA\n", NAME, KEYS["witness"], 7).to_line().encode()


@pytest.mark.parametrize(
    ("lie", "time"),
    [(cosigned, "2023-11-14T22:13:20.000Z"), (cosigned_in_the_far_future, "9999-12-31T23:59:59.000Z")],
)
def test_a_cosignature_is_checked(browser: Browser, site: Site, url: str, lie: Lie, time: str) -> None:
    with site.lying(GetInclusionProof=lie), browsing(browser, url) as page:
        assert concluded(page) == "ok"
        assert states(page)[6] == "ok"
        assert f"{NAME} at {time}" in page.locator("#check-steps").inner_text()


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
    "/log",
)


@pytest.mark.parametrize("path", STATES)
def test_each_page_of_the_log_says_how_old_it_is_by_whose_word(site: Site, url: str, path: str) -> None:
    assert '<a href="/log#witness-title">' in age(url + path)
    with site.lying(GetCheckpoint=cosigned):
        assert re.search(r"days old \(2023-11-14 22:13:20 UTC\)", age(url + path))
    with site.lying(GetCheckpoint=cosigned_in_the_far_future):
        assert "9999-12-31 23:59:59 UTC, in the future" in age(url + path)


def test_a_page_without_a_state_says_no_age(url: str) -> None:
    assert age(f"{url}/check") == age(f"{url}/receipts/{receipt_id(1000)}") == ""


def age(url: str) -> str:
    """The line of the page."""
    line = re.search('<p id="freshness"[^>]*>(.*?)</p>', httpx2.get(url).text)
    return line[1] if line else ""


def test_a_ledger_that_is_away_is_said_to_be_away(tmp_path: Path) -> None:
    KEYS["log"].publish(tmp_path / "trusted")
    flags = ["--ledger", "127.0.0.1:1", "--trusted-keys", str(tmp_path / "trusted"), "--listen", "127.0.0.1:0"]
    with started("services.explorer", flags, tmp_path / "ready") as (process, address):
        assert fetched(address, "/health")[0] == 200
        status, headers, page = fetched(address, "/receipts")
        assert (status, b"The ledger does not answer" in page) == (503, True)
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
        process.send_signal(signal.SIGTERM)
        _, output = process.communicate(timeout=PATIENCE)
        assert (process.returncode, "explorer stopped" in output) == (0, True), output


def test_exact_over_no_token_is_not_shown_as_exact(tmp_path: Path) -> None:
    with ledger(tmp_path) as served, explorer(tmp_path, served) as url:
        ended = replace(receipt(0).output, tokens=0, stream_digest=StreamDigest().hexdigest(), finish_reason="error")
        index = served.client.append(
            signed(receipt(0, output=ended, spec_decode=SpecDecode("off", "off", 0, 0, 0)))
        ).index
        served.client.append(signed(verdict(index, 0, tokens_compared=0)))
        for path in ("/receipts", f"/receipts/{receipt_id(0)}", "/verdicts"):
            status, _, page = fetched(url, path)
            assert (status, b"nothing to compare" in page, b'class="badge ok' in page) == (200, True, False), path
        index = served.client.append(signed(receipt(1))).index
        served.client.append(signed(verdict(index, 1)))
        for path in ("/receipts", f"/receipts/{receipt_id(1)}", "/verdicts"):
            assert b'class="badge ok">exact' in fetched(url, path)[2], path
