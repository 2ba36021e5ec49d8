"""The page of `genesis view` in Chromium: by mouse and keyboard, hostile names, 5,000 nodes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from genesis.view import ScriptRun
from genesis.view.page import page
from tests.view.test_view import found, roof  # noqa: F401 - fixtures

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
MINUTES = 120_000  # for a machine with other things to do
HOSTILE = "<img src=x onerror=alert(1)>"

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        started = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def opened(browser: Any, recording: ScriptRun, folder: Path) -> Any:
    """The page; what it complains of, and what it wants from elsewhere, is in `complaints`."""
    path = folder / "page.html"
    path.write_text(page(recording))
    tab = browser.new_page()
    tab.set_default_timeout(MINUTES)
    tab.complaints = []
    tab.on("console", lambda m: m.type == "error" and tab.complaints.append(m.text))
    tab.on("pageerror", lambda e: tab.complaints.append(str(e)))
    tab.on("dialog", lambda d: (tab.complaints.append("dialog"), d.dismiss()))
    tab.on(
        "request",
        lambda r: (
            r.url.startswith(("data:", "blob:", path.as_uri())) or tab.complaints.append(r.url)
        ),
    )
    tab.goto(path.as_uri())
    tab.wait_for_selector("#tabs button")
    return tab


def wait(tab: Any, condition: str) -> None:
    """The page's policy lets nobody evaluate texts in it, so it is asked again and again."""
    end = time.monotonic() + MINUTES / 1000
    while not tab.evaluate(condition):
        assert time.monotonic() < end, condition
        tab.wait_for_timeout(50)


def drawn(tab: Any, canvas: str, name: str = "drawn") -> int:
    wait(tab, f"document.querySelector('{canvas}')?.dataset.{name} != null")
    return int(tab.locator(canvas).get_attribute(f"data-{name}"))


def test_all_of_it(browser: Any, found: ScriptRun, tmp_path: Path) -> None:  # noqa: F811
    curves = {**found.curves, HOSTILE: [(0.0, 1.0), (0.5, float("nan")), (1.0, 2.0)]}
    runs = {"one: loss": [(0, 3.0), (100, 1.0)]}
    simplified = [any(s["rules"] for s in p["stages"]) for p in found.programs]
    step = simplified.index(True)
    programs = [dict(p) for p in found.programs]
    programs[step]["title"] = HOSTILE
    tab = opened(browser, replace(found, programs=programs, curves=curves, runs=runs), tmp_path)
    assert "script.py" in tab.title()

    # The graph: stages, nodes by keyboard and mouse, rules.
    tab.locator(".list button").nth(step).click()
    assert HOSTILE in tab.locator(".detail").inner_text()
    stages = found.programs[step]["stages"]
    assert drawn(tab, "#graph", "nodes") == stages[-1]["count"]
    assert drawn(tab, "#graph") == stages[-1]["count"]  # all of it fits
    (rule, *_) = next(s["rules"] for s in stages if s["rules"])
    assert rule["name"] in tab.locator("#rules").inner_text()
    tab.get_by_role("tab", name="as written").click()
    assert drawn(tab, "#graph", "nodes") == stages[0]["count"]
    assert "gone after it" in tab.locator("#changes").inner_text()
    tab.locator("#graph").focus()
    tab.keyboard.press("ArrowUp")
    root = drawn(tab, "#graph", "selected")
    assert root == stages[0]["roots"][0]
    tab.keyboard.press("ArrowUp")
    assert drawn(tab, "#graph", "selected") == found.programs[step]["nodes"][root]["in"][0]
    box = tab.locator("#graph").bounding_box()
    tab.mouse.click(
        box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    )  # it is in the middle
    assert drawn(tab, "#graph", "selected") == found.programs[step]["nodes"][root]["in"][0]
    wanted = found.programs[step]["nodes"][root]["op"]
    tab.locator("#search").fill(wanted)
    assert "found" in tab.locator("#found").inner_text()
    assert wanted in tab.locator("#node b").inner_text()

    # Kernels.
    tab.get_by_role("tab", name="Kernels").click()
    kernel = found.programs[step]["kernels"][0]
    said = tab.locator("#kernel").inner_text()
    assert kernel["rule"] in said and kernel["verdict"] in said
    tab.locator("#code summary").click()
    assert tab.locator("#code pre").inner_text().strip() == found.codes[kernel["code"]].strip()
    tab.locator("#claims summary").click()
    assert kernel["claims"][0] in tab.locator("#claims pre").inner_text()

    # The rest.
    tab.get_by_role("tab", name="Roofline").click()
    assert tab.evaluate("document.getElementById('roofline').decode().then(() => true)")
    tab.get_by_role("tab", name="Timeline").click()
    assert drawn(tab, "#timeline") == len(found.timeline)
    tab.get_by_role("tab", name="Memory").click()
    assert drawn(tab, "#memory", "points") == len(found.memory)
    assert "MiB" in tab.locator("#peak").inner_text()
    tab.get_by_role("tab", name="Curves").click()
    assert drawn(tab, "#curves", "points") == 4 + 2 and drawn(tab, "#runs", "points") == 2
    assert HOSTILE in tab.locator("table").first.inner_text()
    assert tab.complaints == []
    tab.close()


def test_five_thousand_nodes(browser: Any, found: ScriptRun, tmp_path: Path) -> None:  # noqa: F811
    """They are laid out, walked through and searched; what is not seen is not drawn."""
    many = 5000
    nodes: list[dict[str, Any]] = [
        {
            "op": f"op{k % 7}",
            "group": "",
            "form": "float32[8]",
            "attr": "",
            "in": [] if k < 20 else sorted({k - 1 - k % 13, k - 20, (k * 7919) % k}),
            "line": f"a.py:{k}",
        }
        for k in range(many)
    ]
    read = {i for node in nodes for i in node["in"]}
    roots = [k for k in range(many) if k not in read]
    program = {
        **found.programs[0],
        "nodes": nodes,
        "kernels": [],
        "stages": [{"name": "as written", "roots": roots, "count": many, "rules": []}],
    }
    tab = opened(browser, replace(found, programs=[program]), tmp_path)
    assert drawn(tab, "#graph", "nodes") == many
    assert drawn(tab, "#graph") == many
    tab.locator("#search").fill("a.py:2500")
    wait(tab, "document.getElementById('graph').dataset.selected == 2500")
    wait(tab, "document.getElementById('graph').dataset.drawn < 500")
    before = drawn(tab, "#graph")
    assert before > 1
    tab.locator("#graph").focus()
    for _ in range(30):
        tab.keyboard.press("ArrowUp")
    assert drawn(tab, "#graph", "selected") != 2500
    tab.get_by_role("button", name="larger").click()
    tab.get_by_role("button", name="whole graph").click()
    wait(tab, f"document.getElementById('graph').dataset.drawn == {many}")
    assert tab.complaints == []
    tab.close()
