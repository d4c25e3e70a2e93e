"""The dashboard in a real browser, as far as every run of the tests can afford."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from playwright.async_api import Browser, expect

from orders import jobs


async def test_a_page_becomes_live_and_a_chain_can_be_cancelled(
    app: Callable[..., Any], serve: Callable[..., Any], chromium: Browser
) -> None:
    shop = await app(*jobs())
    address = await serve(shop)
    page = await chromium.new_page()
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))

    await page.goto(f"{address}/chains")
    await expect(page.get_by_text("There are no chains yet.")).to_be_visible()
    chain = await shop.start(shop.registry.find("orders.charge").step, {"id": 7}, delay=timedelta(hours=1))
    await expect(page.get_by_label(f"Chain {chain.id}").first).to_be_visible(timeout=20_000)

    await page.keyboard.press("j")
    await page.keyboard.press("Enter")
    await expect(page.get_by_role("heading", name="orders.charge")).to_be_visible()
    await page.get_by_role("button", name="Cancel").click()
    await page.get_by_role("button", name="Cancel").click()
    await expect(page.get_by_role("status").first).to_contain_text("Cancelled 1 chain.")
    await expect(page.locator("h1 .status")).to_have_text("failed")
    assert problems == []
