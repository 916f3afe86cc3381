"""The chat page in a real browser: it streams, shows method and speed, and checks and shows the receipt."""

import asyncio
import base64
import re
from base64 import b64decode
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Locator, Page, Route, async_playwright, expect

from ledger.bundle.receipt_file import ReceiptFile
from ledger.keys.ed25519 import PublicKey, SigningKey
from tests.fakes.tampered_targets import GatedTarget, Loader
from tests.integration.explorer.browsing import CHROMIUM, DESKTOP, PHONE
from tests.integration.http.front import Front

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no chromium at {CHROMIUM}"),
]
PATIENCE = 240_000  # milliseconds


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        flags = ["--headless", "--no-sandbox", "--disable-gpu"]
        browser = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module")
async def page(browser: Browser, front: Front, request: pytest.FixtureRequest) -> AsyncIterator[Page]:
    """On a desktop; with the parameter "phone" on a small dark screen."""
    viewport, scheme = (PHONE, "dark") if getattr(request, "param", "") == "phone" else (DESKTOP, "light")
    context = await browser.new_context(
        base_url=f"http://127.0.0.1:{front.port}", viewport=viewport, color_scheme=scheme, accept_downloads=True
    )
    page = await context.new_page()
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    output: list[str] = []
    page.on("console", lambda message: output.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: output.append(str(error)))
    await page.goto("/")
    await page.get_by_text("Settings").click()  # they are folded away at first
    yield page
    refused = re.compile("the server responded with a status of 40[01]")  # what a test asked for
    assert [each for each in output if not refused.search(each)] == [], (
        "nothing is missing, thrown, or against the policy"
    )
    await context.close()


async def ask(page: Page, question: str) -> None:
    await page.get_by_label("Your question").fill(question)
    await page.get_by_role("button", name="Ask").click()


@pytest.mark.parametrize("page", ["desktop", "phone"], indirect=True)
async def test_an_answer_is_shown_with_its_speed_and_its_receipt(page: Page, tmp_path: Path) -> None:
    await expect(page.locator("#model")).to_have_text("tiny")
    await page.get_by_label("Method").select_option("lookahead")
    await page.get_by_label("Tokens at most").fill("40")
    await ask(page, "What does the ledger keep?")
    answer = page.locator(".assistant").first
    facts = answer.locator(".facts")
    checked, identical = facts.locator(".badge.ok").nth(0), facts.locator(".badge.ok").nth(1)
    await expect(checked).to_have_text("receipt checked here: this question, this answer, signed")
    await expect(identical).to_contain_text("identical without speculation")
    for output in ("40 tokens", "tokens/s", "tokens a pass", "lookahead", "receipt, entry"):
        await expect(facts).to_contain_text(output)
    assert (await answer.locator(".text").inner_text()).strip()
    async with page.expect_download() as download:
        await facts.get_by_role("link", name="save").click()
    file = tmp_path / "receipt.json"
    await (await download.value).save_as(file)
    assert ReceiptFile.from_bytes(file.read_bytes()).receipt().receipt_id == await facts.locator(".id").inner_text()
    overflows = "document.documentElement.scrollWidth > document.documentElement.clientWidth"
    assert not await page.evaluate(overflows), "nothing is wider than the screen"
    await page.get_by_label("Compute each answer again").uncheck()
    await ask(page, "And <b>then</b>?")
    await expect(page.locator(".user").nth(1)).to_have_text("And <b>then</b>?")
    await expect(page.locator(".assistant").nth(1).locator(".facts")).to_contain_text("not computed again")
    await page.get_by_role("button", name="New conversation").click()
    await expect(page.locator(".turn")).to_have_count(0)


async def test_while_an_answer_comes_its_speed_and_acceptance_are_shown_and_it_can_be_stopped(
    page: Page, loader: Loader
) -> None:
    gate = loader.target
    assert isinstance(gate, GatedTarget)
    gate.close()
    try:
        await page.get_by_label("Method").select_option("off")
        await ask(page, "How long?")
        facts, stop = page.locator(".assistant .facts"), page.get_by_role("button", name="Stop")
        await expect(stop).to_be_visible()
        seen = await passed(gate, facts)
        assert re.search(r"\d\.\d\d tokens a chunk", seen)
        assert "tokens/s" in seen
        assert "receipt" not in seen
        await stop.click()
        await expect(page.locator(".assistant .badge.bad")).to_contain_text("stopped; its receipt says so")
        await ask(page, "And now?")
        await expect(stop).to_be_visible()
        await page.get_by_role("button", name="New conversation").click()
        await expect(stop).to_be_hidden()
        await expect(page.locator(".turn")).to_have_count(0)
    finally:
        gate.open()
    await expect(page.get_by_role("button", name="Ask")).to_be_enabled()


async def passed(gate: GatedTarget, facts: Locator) -> str:
    """The page's facts once there are three tokens or more."""
    while not re.match(r"([3-9]|\d\d+) tokens", seen := " ".join(await facts.locator("span").all_inner_texts())):
        gate.let_pass()
        await asyncio.sleep(0.01)
    return seen


OTHER = base64.b64encode(SigningKey.generate("receipts").public.raw).decode()


UNTRUE: list[tuple[list[str] | str | None, str | None, str]] = [
    ([], None, "receipt not checked here: this front was given no keys that sign receipts"),
    ([OTHER], None, "this receipt does not hold: it is signed by ed25519:"),
    ("for globex", None, "this receipt does not hold: its key is trusted for another tenant"),
    (None, "another", "this receipt does not hold: its file holds another answer"),
]
"""Keys that the front names, a text in place of the answer's first words, and the result that the page shows."""


async def front_knows(keys: list[str] | str | None, route: Route) -> None:
    known: dict[str, Any] = {"keys": keys}
    if keys == "for globex":
        known = await (await route.fetch()).json()
        (key,) = (PublicKey(b64decode(each)) for each in known["keys"])
        known["scopes"] = {key.key_id: {"tenant": ["globex"]}}
    await route.fulfill(
        json=known | {"explorer": "http://0.0.0.0:50056/" if keys == [] else "https://explorer.example/"}
    )


async def begins_with(text: str, route: Route) -> None:
    sent = await (await route.fetch()).text()
    await route.fulfill(body=re.sub(r'"delta":{"content":"[^"]*"}', f'"delta":{{"content":"{text}"}}', sent, count=1))


async def thinks_first(route: Route) -> None:
    sent = await (await route.fetch()).text()
    await route.fulfill(body=re.sub(r'"delta":{"content":(?="[^"])', '"delta":{"reasoning_content":', sent, count=1))


async def test_thoughts_are_shown_and_belong_to_the_answer_of_the_receipt(page: Page) -> None:
    await page.route("**/v1/chat/completions", thinks_first)
    await ask(page, "Is it so?")
    await expect(page.locator(".assistant .facts .badge").first).to_contain_text("receipt checked here")
    await page.get_by_text("Thoughts").click()
    await expect(page.locator(".assistant .thoughts")).to_be_visible()


@pytest.mark.parametrize(
    ("output", "thoughts", "text", "holds"),
    [
        ("Yes.", "", "Yes.", True),
        ("<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes.", True),
        ("Hm.\n</think>\nYes.", "Hm.", "Yes.", True),
        ("<seed:think>Hm.</seed:think>Yes.", "Hm.", "Yes.", True),
        ("<think>\n\n</think>\n\nYes.", "", "Yes.", True),
        ("<think>\nHm", "Hm", "", True),
        ("analysisHm.assistantfinalYes.", "Hm.", "Yes.", True),
        ("analysisHm.assistantanalysisHm!assistantfinalYes.", "Hm.Hm!", "Yes.", True),
        ("finalYes.", "", "Yes.", True),
        ("commentaryI look.assistantanalysisHm.assistantfinalYes.", "Hm.", "I look.Yes.", True),
        ("analysisHm.assistantcommentaryI look.assistantfinalYes.", "Hm.", "I look.Yes.", True),
        ("analysisHm.assistantfinal\nSay assistantfinal.\n", "Hm.", "Say assistantfinal.\n", True),
        ("analysisHm. As an assistant", "Hm. As an assistant", "", True),
        ("final assistants", "", "final assistants", True),
        ("analysisHm.assistantcommentaryI look.assistantfinalYes.", "Hm.", "Yes.", False),
        ("analysisHm.assistantcommentaryI look.assistantfinalYes.", "Hm.I look.", "Yes.", False),
        ("analysisHm.assistantfinalYes.", "", "Yes.", False),
        ("<think>\nHm.\n</think>\n\nYes.", "", "Yes.", False),
        ("<think>\nHm.\n</think>\n\nYes.", "Hm.", "es.", False),
        ("<think>\nHm.\n</think>\n\nNo. Yes.", "Hm.", "Yes.", False),
        ("Yes.", "Hm.", "Yes.", False),
        ("Yes. No.", "", "Yes.", False),
    ],
)
async def test_an_output_consists_of_the_thoughts_and_the_text_that_are_shown(
    page: Page, output: str, thoughts: str, text: str, holds: bool
) -> None:
    asking = "async ([output, answer]) => (await import('/page/receipt_check.js')).consistsOf(output, answer)"
    assert await page.evaluate(asking, [output, {"thoughts": thoughts, "text": text}]) is holds


async def test_a_receipt_that_does_not_hold_is_said_not_to(page: Page) -> None:
    for keys, text, output in UNTRUE:
        await page.unroute_all()
        if text is None:
            await page.route("**/page.json", partial(front_knows, keys))
        else:
            await page.route("**/v1/chat/completions", partial(begins_with, text))
        await page.reload()
        await ask(page, "Is it so?")
        facts = page.locator(".assistant .facts")
        await expect(facts).to_contain_text(output)
        assert await facts.locator(".badge.ok").count() == (1 if "not checked" in output else 0)
        if keys is not None:
            id_ = await facts.locator("a.id").inner_text()
            place = "http://127.0.0.1:50056" if keys == [] else "https://explorer.example"
            assert await facts.locator("a.id").get_attribute("href") == f"{place}/receipts/{id_}"


async def test_an_answer_whose_receipt_is_being_checked_does_not_enter_the_next_conversation(page: Page) -> None:
    known, sent = asyncio.Event(), list[Any]()

    async def later(route: Route) -> None:
        await known.wait()
        await route.continue_()

    async def whole(route: Route) -> None:
        sent.append(route.request.post_data_json)
        await route.fulfill(response=await route.fetch())

    await page.route("**/page.json", later)
    await page.route("**/v1/chat/completions", whole)  # with its end, in one piece
    await page.reload()
    await ask(page, "Is it so?")
    await expect(page.locator(".assistant .facts")).to_contain_text("tokens/s")
    await expect(page.locator(".assistant .facts")).not_to_contain_text("tokens a chunk")
    await page.get_by_role("button", name="New conversation").click()
    known.set()
    await expect(page.get_by_role("button", name="Ask")).to_be_enabled()
    await ask(page, "And now?")
    await expect(page.locator(".assistant .facts")).to_contain_text("receipt, entry")
    assert [turn["content"] for turn in sent[1]["messages"]] == ["And now?"]


async def test_a_key_that_is_refused_leaves_no_empty_answer(page: Page) -> None:
    async def refuse(route: Route) -> None:
        await route.fulfill(status=401, json={"error": {"message": "expected an API key", "code": "token_required"}})

    await page.route("**/v1/chat/completions", refuse)
    await ask(page, "The ledger keeps")
    await expect(page.locator(".assistant .badge.bad")).to_be_visible()
    await expect(page.locator(".assistant .text")).to_be_hidden()
