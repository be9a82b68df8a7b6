"""The browser of samples explains a fused score; what a model wrote is text and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

HOSTILE = (
    "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script> please"
)


def test_a_fused_score_is_explained(shop: Callable[..., Any], opened: Callable[..., Any]) -> None:
    one = shop()
    table = one.score("It is fine, please.", "A rogue, please.")
    page = opened(one.url)
    cards = page.get_by_role("article")
    cards.first.wait_for()
    assert cards.count() == 2
    best = cards.filter(has_text="It is fine, please.").first
    fused = float(table.fused[0])
    assert round(fused, 2) == 2.75  # 0.75 × 1 + 1 × 2
    rows = best.get_by_role("row")
    style = rows.filter(has=page.get_by_role("rowheader", name="style"))
    assert "asks politely" in style.inner_text()
    assert "score 0.75 × weight 1" in style.inner_text()
    overlap = rows.filter(has=page.get_by_role("rowheader", name="overlap"))
    assert "score 1 × weight 2" in overlap.inner_text()
    said = " ".join(best.locator(".sum").inner_text().split())
    assert said == "fused value: 0.75 style + 2 overlap = 2.75"
    gated = cards.filter(has_text="A rogue").first
    assert "gate: veto" in gated.inner_text()
    assert gated.locator(".sum b").inner_text() == "−1"
    assert "the penalty stands where it is lower than the sum" in gated.inner_text()


def test_filters_find_what_is_looked_for(
    shop: Callable[..., Any], opened: Callable[..., Any], until: Callable[..., Any]
) -> None:
    one = shop()
    one.score("It is fine, please.", "A rogue, please.")
    page = opened(one.url)
    cards = page.get_by_role("article")
    cards.first.wait_for()

    def only(text: str) -> bool:
        return bool(cards.count() == 1 and text in cards.first.inner_text())

    page.get_by_label("Status", exact=True).select_option("gated")
    until(lambda: only("A rogue"))
    page.get_by_role("button", name="Clear").click()
    until(lambda: cards.count() == 2)
    page.get_by_label("Mount", exact=True).select_option("overlap")
    page.get_by_label("Lowest score").fill("0.9")
    until(lambda: only("It is fine"))
    page.get_by_label("Text", exact=True).fill("nowhere")
    until(lambda: cards.count() == 0)
    assert "0 samples found among the newest 2 of 2" in page.locator("#samples-count").inner_text()


def test_new_samples_wait_until_they_are_asked_for(
    shop: Callable[..., Any], opened: Callable[..., Any]
) -> None:
    one = shop()
    one.score("First, please.")
    page = opened(one.url)
    page.get_by_role("article").first.wait_for()
    one.score("Second, please.")
    page.get_by_role("button", name="Show 1 new sample").click()
    page.get_by_role("article").filter(has_text="Second, please.").wait_for()


def test_what_a_model_wrote_is_only_text(
    shop: Callable[..., Any], opened: Callable[..., Any]
) -> None:
    one = shop()
    one.score(HOSTILE)
    page = opened(one.url)
    page.get_by_role("article").first.wait_for()
    assert HOSTILE in page.get_by_role("article").first.inner_text()
    assert page.locator("img").count() == 0
    assert "owned" not in page.title()
