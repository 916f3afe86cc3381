"""A receipt file is dropped on the page and checked in the browser; what is in it goes nowhere."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Request, Route, expect

from ledger.bundle.receipt_file import ReceiptFile, Turns
from ledger.documents.content import SentCall, SentTool, check_sent, sent_tools, sent_turn
from ledger.documents.signed_document import sign_document
from ledger.encoding.canonical import canonical
from ledger.encoding.commitment import MESSAGES_DOMAIN, commit_text
from ledger.tree.tlog_proof import TlogProof
from tests.integration.explorer.browsing import PHONE, browsing
from tests.integration.explorer.site import Site
from tests.mutations import replace
from tests.unit.client.test_answer_check import CONTENT, TEXT, signed
from tests.unit.ledger.builders import KEYS, receipt_id, verdict
from tests.unit.ledger.builders import signed as signed_entry

TURNS: Turns = (
    *sent_tools([SentTool("get_weather", "Weather.", '{"type": "object"}', True)]),
    sent_turn("system", 'Say "no" \\ or\tless \u2028 \x7f'),
    sent_turn("assistant", "", [SentCall("call_1", "get_weather", '{"city": "Bern"}')]),
    sent_turn("tool", "Rain.", call_id="call_1"),
    sent_turn("user", "Why? \U0001f642 \u00e9 \u0000 <b>"),
)


@pytest.fixture(scope="module")
def file(site: Site) -> ReceiptFile:
    """A conversation in the site's log, whose texts need every escape of canonical JSON; it has a verdict."""
    text = commit_text(MESSAGES_DOMAIN, CONTENT.prompt_salt, canonical(list(TURNS)).decode())
    prompt = replace(signed().prompt, text_commitment=text, chat_template=text)
    document = signed(receipt_id=receipt_id(90), prompt=prompt)
    check_sent(document, CONTENT.prompt_salt, TURNS)
    envelope = sign_document(document, KEYS["receipts"])
    index = site.client.append(envelope.to_bytes(), CONTENT).index
    site.client.append(signed_entry(verdict(index, 90, tokens_compared=document.output.tokens)))
    proven = site.client.inclusion_proof(index)
    entry = site.client.entry(index).entry
    proof = TlogProof(index, proven.inclusion_proof.hashes, proven.checkpoint, entry)
    return ReceiptFile(envelope, CONTENT, TURNS, TEXT, proof)


def chosen(page: Page, folder: Path, data: bytes) -> str:
    """The overall state once the browser has checked a file with these bytes."""
    (folder / "receipt.json").write_bytes(data)
    page.goto("/check")
    page.get_by_label("Drop the file on this page, or choose it").set_input_files(folder / "receipt.json")
    panel = page.locator("#check")
    expect(panel).not_to_have_attribute("data-state", "idle")
    expect(panel).not_to_have_attribute("data-state", "running")
    return panel.get_attribute("data-state") or ""


def steps(page: Page) -> dict[str, str]:
    items = page.locator("#check-steps > li")
    return dict(
        items.evaluate_all("all => all.map(each => [each.querySelector('strong').textContent, each.dataset.state])")
    )


def test_a_file_is_checked_in_the_browser_and_nothing_of_it_is_sent(
    browser: Browser, site: Site, file: ReceiptFile, tmp_path: Path
) -> None:
    asked: list[Request] = []
    with browsing(browser, site.url, viewport=PHONE) as page:
        page.on("request", lambda request: asked.append(request))
        assert chosen(page, tmp_path, file.to_bytes()) == "ok"
        found = steps(page)
        assert found.pop("Witnesses have cosigned it") == "skipped"
        assert (len(found), set(found.values())) == (8, {"ok"})
        expect(page.get_by_role("status")).to_contain_text("prompt, output, signatures and place in the log hold")
        expect(page.locator("#fields")).to_contain_text(TEXT)
        assert "EXACT" in page.locator("#check-steps").inner_text()
    assert {(each.method, each.post_data) for each in asked} == {("GET", None)}
    paths = [each.url.removeprefix(site.url) for each in asked if "/static/" not in each.url]
    assert paths == ["/check", "/trusted.json", f"/receipts/{receipt_id(90)}/evidence.json"]


def test_a_key_that_is_trusted_for_another_tenant_has_not_signed_it(
    browser: Browser, site: Site, file: ReceiptFile, tmp_path: Path
) -> None:
    def for_another(route: Route) -> None:
        known = route.fetch().json()
        route.fulfill(json=known | {"scopes": {KEYS["receipts"].key_id: {"tenant": ["globex"]}}})

    with browsing(browser, site.url) as page:
        page.route("**/trusted.json", for_another)
        assert chosen(page, tmp_path, file.to_bytes()) == "bad"
        assert steps(page)["A trusted key has signed the receipt"] == "bad"


def changed(**members: Any) -> Callable[[dict[str, Any]], None]:
    return lambda document: document.update(members)


def another_token(document: dict[str, Any]) -> None:
    document["content"]["output_token_ids"][0] += 1


def another_word(document: dict[str, Any]) -> None:
    document["sent"][1]["content"] = "Why not?"


def another_checkpoint(document: dict[str, Any]) -> None:
    head, blank, note = document["proof"].partition("\n\n")
    origin, size, rest = note.split("\n", 2)
    document["proof"] = head + blank + "\n".join([origin, str(int(size) + 1), rest])


def another_signature(document: dict[str, Any]) -> None:
    envelope = json.loads(document["envelope"])
    envelope["signatures"][0]["sig"] = "A" * 86 + "=="
    document["envelope"] = json.dumps(envelope)


CHANGES = [
    (another_token, "Prompt and output are what the receipt commits to", "bad"),
    (another_word, "Prompt and output are what the receipt commits to", "bad"),
    (changed(text="another answer"), "Prompt and output are what the receipt commits to", "bad"),
    (changed(content=None), "Prompt and output are what the receipt commits to", "bad"),
    (another_signature, "The entry of the proof is this receipt", "bad"),
    (another_checkpoint, "The log has signed that root", "bad"),
    (changed(type="kolm.receipt-file.v2"), "The file holds a receipt", "bad"),
    (changed(proof=None), "The file holds a receipt", "cannot"),
]


def test_what_was_changed_is_named_and_the_file_does_not_hold(
    browser: Browser, site: Site, file: ReceiptFile, tmp_path: Path
) -> None:
    with browsing(browser, site.url) as page:
        for number, (change, step, state) in enumerate(CHANGES):
            document = json.loads(file.to_bytes())
            change(document)
            assert chosen(page, tmp_path, json.dumps(document).encode()) == state, number
            assert steps(page)[step] == state, number


def test_what_is_no_file_at_all_is_said_and_without_javascript_the_page_says_what_to_do(
    browser: Browser, site: Site, tmp_path: Path
) -> None:
    with browsing(browser, site.url) as page:
        assert chosen(page, tmp_path, b"\x89PNG") == "bad"
        assert steps(page) == {"The file holds a receipt": "bad"}
    with browsing(browser, site.url, java_script_enabled=False) as page:
        page.goto("/check")
        expect(page.locator("#unchecked")).to_contain_text("kolm verify receipt.json")
        expect(page.locator("#drop")).to_be_hidden()
