"""The chat page in a real browser: it streams, names method and speed, and shows what the receipt says."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from playwright.async_api import Browser, Page, async_playwright, expect

from ledger.bundle.receipt_file import ReceiptFile
from tests.integration.explorer.browsing import CHROMIUM, DESKTOP, PHONE
from tests.integration.http.front import Front

pytestmark = [
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no chromium at {CHROMIUM}"),
]
PATIENCE = 60_000  # milliseconds


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        flags = ["--headless", "--no-sandbox", "--disable-gpu"]
        browser = await playwright.chromium.launch(executable_path=str(CHROMIUM), args=flags)
        yield browser
        await browser.close()


@pytest_asyncio.fixture(loop_scope="module", params=["desktop", "phone"])
async def page(browser: Browser, front: Front, request: pytest.FixtureRequest) -> AsyncIterator[Page]:
    viewport = DESKTOP if request.param == "desktop" else PHONE
    scheme = "light" if request.param == "desktop" else "dark"
    context = await browser.new_context(
        base_url=f"http://127.0.0.1:{front.port}", viewport=viewport, color_scheme=scheme, accept_downloads=True
    )
    page = await context.new_page()
    page.set_default_timeout(PATIENCE)
    expect.set_options(timeout=PATIENCE)
    said: list[str] = []
    page.on("console", lambda message: said.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    await page.goto("/")
    yield page
    refused = "the server responded with a status of 400"  # what a test asked for
    assert [each for each in said if refused not in each] == [], "nothing is missing, thrown, or against the policy"
    await context.close()


async def ask(page: Page, question: str) -> None:
    await page.get_by_label("Your question").fill(question)
    await page.get_by_role("button", name="Ask").click()


async def test_an_answer_is_shown_with_its_speed_and_its_receipt(page: Page, tmp_path: Path) -> None:
    await expect(page.locator("#model")).to_have_text("tiny")
    await page.get_by_label("Method").select_option("lookahead")
    await page.get_by_label("Tokens at most").fill("40")
    await ask(page, "What does the ledger keep?")
    answer = page.locator(".assistant").first
    await expect(answer.locator(".badge.ok")).to_contain_text("identical without speculation")
    facts = answer.locator(".facts")
    for said in ("40 tokens", "tokens/s", "tokens a pass", "lookahead", "receipt, entry"):
        await expect(facts).to_contain_text(said)
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
    await page.get_by_role("button", name="Begin anew").click()
    await expect(page.locator(".turn")).to_have_count(0)


async def test_a_refusal_is_said_where_the_answer_would_be(page: Page) -> None:
    await page.locator("#tokens").evaluate("field => field.value = '100000'")
    await page.get_by_label("Your question").fill("hello")
    async with page.expect_response("**/v1/chat/completions") as refused:
        await page.get_by_label("Your question").press("Enter")
    assert (await refused.value).status == 400
    await expect(page.locator(".assistant .badge.bad")).to_contain_text("max_completion_tokens")
    await expect(page.get_by_role("button", name="Ask")).to_be_enabled()
