"""The chat page in Chromium: by mouse and by keyboard, with hostile answers, and offline."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.running import Running, tiny

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
PAGE = Path("genesis/serve/page.html")
MINUTES = 120_000  # for a machine with other things to do


def test_the_page_is_small_and_alone() -> None:
    text = PAGE.read_text()
    assert len(text.encode()) < 60_000
    assert "http://" not in text.replace("https?:", "") and "//cdn" not in text
    for word in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
        assert word not in text


@pytest.fixture(scope="module")
def page(folder: Path) -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    running = Running([tiny(folder), tiny(folder, "other")])
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        context = browser.new_context()
        found = context.new_page()
        found.set_default_timeout(MINUTES)
        found.complaints = []
        found.on("console", lambda m: m.type == "error" and found.complaints.append(m.text))
        found.on("pageerror", lambda e: found.complaints.append(str(e)))
        found.on("dialog", lambda d: found.complaints.append("dialog"))
        found.on(
            "request",
            lambda r: r.url.startswith(("data:", running.url)) or found.complaints.append(r.url),
        )
        found.goto(running.url)
        found.running = running
        yield found
        browser.close()
    running.close()


def wait(page: Any, condition: str) -> None:
    """The page's policy lets nobody evaluate texts in it, so it is asked again and again."""
    end = time.monotonic() + MINUTES / 1000
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(50)


def answered(page: Any, count: int) -> None:
    wait(
        page,
        f"document.querySelectorAll('.turn.assistant').length === {count}"
        " && !document.querySelector('#send').hidden",
    )


def show_settings(page: Any) -> None:
    if page.is_hidden("#settings"):
        page.click("#more")


@pytest.mark.slow
def test_a_conversation(page: Any) -> None:
    show_settings(page)
    page.fill("#max_tokens", "12")
    page.fill("#seed", "3")
    page.fill("#text", "the cat")
    page.click("#send")
    answered(page, 1)
    first = page.inner_text(".turn.assistant .body")
    assert "12 tokens" in page.inner_text(".turn.assistant .figures")
    # another answer is a branch, and the first can be gone back to
    page.fill("#seed", "4")
    page.click("text=Regenerate")
    answered(page, 1)
    assert page.inner_text(".turn.assistant .body") != first
    page.click("[aria-label='Previous version']")
    assert page.inner_text(".turn.assistant .body") == first
    # so is another question
    page.click("text=Edit")
    page.fill("[aria-label='Edit message']", "the other cat")
    page.click(".turn.user >> text=Send")
    answered(page, 1)
    assert "the other cat" in page.inner_text(".turn.user .body")
    assert "2 / 2" in page.inner_text(".turn.user .bar")
    # all of it is there after a reload
    page.reload()
    assert "the other cat" in page.inner_text(".turn.user .body")
    page.click(".turn.user [aria-label='Previous version']")
    assert page.inner_text(".turn.assistant .body") == first
    assert page.complaints == []


@pytest.mark.slow
def test_stop_and_another_model(page: Any) -> None:
    page.click("#new")
    show_settings(page)
    page.fill("#max_tokens", "900")
    page.select_option("#model", "other")
    page.fill("#text", "the cat")
    page.click("#send")
    page.wait_for_selector("#stop:not([hidden])")
    wait(page, "document.querySelector('.turn.assistant .body').innerText.length > 4")
    page.click("#stop")
    answered(page, 1)
    assert "other" in page.inner_text(".turn.assistant h2")
    assert page.inner_text("#state") == "Stopped."
    assert page.complaints == []


@pytest.mark.slow
def test_hostile_answers_stay_text(page: Any) -> None:
    attack = "<img src=x onerror=alert(1)><script>alert(2)</script>[a](javascript:alert(3))"
    page.click("#new")
    show_settings(page)
    page.fill("#max_tokens", "400")
    page.fill("#schema", json.dumps({"const": attack}))
    page.fill("#text", attack)
    page.click("#send")
    answered(page, 1)
    assert attack in page.inner_text(".turn.assistant .body")
    assert page.query_selector(".turn img, .turn script, .turn a") is None
    assert attack[:20] in page.inner_text("#chats")
    page.fill("#schema", "no JSON")
    page.fill("#text", "again")
    page.click("#send")
    assert "no JSON" in page.inner_text("#state")
    page.fill("#schema", "")
    assert page.complaints == []


@pytest.mark.slow
def test_by_keyboard_only(page: Any) -> None:
    page.reload()
    assert page.evaluate("document.activeElement.id") == "text"
    page.keyboard.press("Shift+Tab")
    for _ in range(40):  # to the button for a new chat
        if page.evaluate("document.activeElement.id") == "new":
            break
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("Enter")
    page.keyboard.type("the cat")
    page.keyboard.press("Enter")
    page.wait_for_selector("#stop:not([hidden])")
    page.keyboard.press("Escape")
    answered(page, 1)
    unnamed = page.evaluate(
        "[...document.querySelectorAll('button, input, select, textarea')].filter(e => "
        "!(e.innerText || e.ariaLabel || e.labels?.length)).map(e => e.outerHTML)"
    )
    assert unnamed == []
    assert page.complaints == []


@pytest.mark.slow
def test_offline(page: Any) -> None:
    page.click("#new")
    page.context.set_offline(True)
    page.fill("#text", "anybody there?")
    page.click("#send")
    page.wait_for_selector(".turn.assistant .error")
    assert "cannot be reached" in page.inner_text(".turn.assistant .error")
    page.context.set_offline(False)
    page.complaints.clear()  # the browser says itself that it is offline
    show_settings(page)
    page.fill("#max_tokens", "4")
    page.click("text=Regenerate")
    wait(page, "!document.querySelector('.turn.assistant .error')")
    answered(page, 1)
    assert page.complaints == []
