"""Usable by keyboard and screen reader, in light and dark, wide and narrow (axe-core's rules)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

WIDE = {"width": 1280, "height": 900}
NARROW = {"width": 360, "height": 740}
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]


def faults(page: Any) -> list[str]:
    """What axe-core finds wrong on the page as it is now."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright")
    # The page's own policy forbids what axe does to run; it is let in by the browser, not by it.
    found = axe.Axe().run(page, options={"runOnly": {"type": "tag", "values": RULES}})
    return [
        f"{wrong['id']}: {node['html'][:160]}"
        for wrong in found.response["violations"]
        for node in wrong["nodes"]
    ]


@pytest.fixture
def full(shop: Callable[..., Any]) -> Any:
    """A shop with something in every part of the page."""
    one = shop()
    for i in range(12):
        one.score("It is fine, please." if i % 2 else "No.", "A rogue, please.")
        time.sleep(0.21)  # an interval of the recorder
    one.store.update({"style": 2.0}, author="ada", reason="to see a mark")
    one.score("It is fine, please.")
    return one


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, NARROW], ids=["wide", "narrow"])
def test_every_part_keeps_the_rules(
    full: Any, opened: Callable[..., Any], scheme: str, size: dict[str, int]
) -> None:
    page = opened(full.url, viewport=size, color_scheme=scheme, bypass_csp=True)
    page.get_by_role("article").first.wait_for()
    page.locator("#matrix table").wait_for()
    page.locator(".chart details summary").first.click()
    page.get_by_role("spinbutton", name="weight of style, as a number").fill("3")
    assert faults(page) == []
    # Nothing is cut off at the side.
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Roll back to revision 1").click()
    page.get_by_role("dialog").wait_for()
    assert faults(page) == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_form_for_the_token_keeps_them_too(
    shop: Callable[..., Any], opened: Callable[..., Any], scheme: str
) -> None:
    page = opened(shop(token="s3cret").url, color_scheme=scheme, bypass_csp=True)
    page.get_by_label("Token", exact=True).wait_for()
    assert faults(page) == []


def test_everything_is_reached_by_tab_and_seen_when_it_is(
    full: Any, opened: Callable[..., Any]
) -> None:
    page = opened(full.url)
    page.get_by_role("article").first.wait_for()
    page.locator("#matrix table").wait_for()
    page.evaluate("document.body.tabIndex = -1; document.body.focus()")
    reached, unseen = [], []
    for _ in range(200):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """() => {
              const it = document.activeElement;
              if (!it || it === document.body) return null;
              const style = getComputedStyle(it);
              const label = it.getAttribute("aria-label") || it.labels?.[0]?.innerText;
              const name = label || it.innerText;
              return [it.tagName, String(name).trim().split("\\n")[0], style.outlineStyle !== "none"
                && parseFloat(style.outlineWidth) >= 2];
            }"""
        )
        if found is None:
            break
        reached.append(found[1])
        if not found[2]:
            unseen.append(found)
    assert unseen == []
    for name in (
        "Skip to the curves",
        "Samples",
        "smooth",
        "fused reward, by step",
        "style, by step",
        "weight of style",
        "weight of style, as a number",
        "Roll back to revision 1",
        "Reload style",
        "Mount",
        "Text",
        "Two rewards",
    ):
        assert name in reached


def test_a_curve_is_read_with_arrow_keys(full: Any, opened: Callable[..., Any]) -> None:
    page = opened(full.url)
    curve = page.get_by_role("slider", name="fused reward, by step")
    curve.locator("svg").wait_for()
    curve.focus()
    page.keyboard.press("Home")
    first = curve.get_attribute("aria-valuetext")
    page.keyboard.press("ArrowRight")
    second = curve.get_attribute("aria-valuetext")
    assert first.startswith("after 2 rows: ")
    assert second.startswith("after 4 rows: ")
    assert page.locator(".chart.first .readout").inner_text() == second
    # The same figures stand in a table.
    page.locator(".chart.first summary").click()
    cells = page.locator(".chart.first tbody tr").last.locator("th, td").all_inner_texts()
    assert cells[0] == "2"
    said = first.removeprefix("after 2 rows: ").replace("−", "-")
    assert float(cells[1].replace("−", "-")) == pytest.approx(float(said), abs=0.001)


def test_the_arithmetic_of_the_axes(shop: Callable[..., Any], opened: Callable[..., Any]) -> None:
    page = opened(shop().url)
    found = page.evaluate(
        """async () => {
          const s = await import("./ui/scale.js");
          const d = await import("./ui/dom.js");
          return {
            ticks: s.ticks(0, 1), low: s.ticks(-0.3, 0.3), one: s.ticks(5, 5),
            whole: s.whole_ticks(1, 3, 6), still: s.range([0.5, null, 0.5]), none: s.range([null]),
            floor: s.range([0, 0], { floor: 0, least: 0.02 }),
            smooth: s.smoothed([1, null, 3, 5], 2),
            near: [0, 2.4, 9].map((x) => s.nearest([1, 2, 3], x)),
            thin: s.thinned([1, 2, 3, 4], [1, 3, null, null], 2),
            numbers: [0.25, -1.5, 12, 0, null, 1e-9, 123456.7, 2.5e7].map((x) => d.number(x)),
          };
        }"""
    )
    assert found["ticks"] == [0, 0.25, 0.5, 0.75, 1]
    assert found["low"] == [-0.2, 0, 0.2]
    assert found["one"] == [5]
    assert found["whole"] == [1, 2, 3]
    assert found["still"][0] < 0.5 < found["still"][1]
    assert found["none"] is None
    assert found["floor"] == [0, 0.02]
    assert found["smooth"] == [1, None, 3, 4]
    assert found["near"] == [0, 1, 2]
    assert found["thin"] == [[1.5, 2], None]
    assert found["numbers"] == ["0.25", "−1.5", "12", "0", "–", "1.0e−9", "123457", "2.5e+7"]
