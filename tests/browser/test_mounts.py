"""Mounts on the page: what they are, and a reload with a broken file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from verl_core.rewards import RewardEngine


def row_of(page: Any, name: str) -> Any:
    header = page.get_by_role("rowheader", name=name)
    return page.locator("#mount-list").get_by_role("row").filter(has=header)


def test_each_mount_shows_its_state_and_its_work(
    shop: Callable[..., Any], opened: Callable[..., Any]
) -> None:
    one = shop()
    one.score("It is fine, please.", "No.")
    page = opened(one.url)
    style = row_of(page, "style")
    style.wait_for()
    text = " ".join(style.inner_text().split())
    assert "ready" in text
    assert " 2 " in f" {text} "
    assert "a call" in text
    assert "gate" in row_of(page, "guard").inner_text()


@pytest.mark.skipif(not hasattr(RewardEngine, "reload"), reason="hot reload is not there yet")
def test_a_broken_file_shows_its_error_and_the_old_generation_goes_on(
    shop: Callable[..., Any], opened: Callable[..., Any], until: Callable[..., Any]
) -> None:
    one = shop()
    page = opened(one.url)
    row_of(page, "style").wait_for()
    (one.folder / "rules.yaml").write_text("rules: [{name: broken, regex: '('}]\n", "utf-8")
    page.get_by_role("button", name="Reload style").click()
    page.locator("#mount-list .bad.error").wait_for()
    assert "rules.yaml" in page.locator("#mount-list .bad.error").inner_text()
    mount = next(m for m in one.engine.describe() if m["name"] == "style")
    assert mount["generation"] == 1
    assert one.score("please, sir").fused[0] > 0.7  # the old rules score

    (one.folder / "rules.yaml").write_text(
        "score: {base: 0.0, min: 0.0, max: 1.0}\n"
        "rules: [{name: any, regex: '.', points: 0.1, reason: anything}]\n",
        "utf-8",
    )
    page.get_by_role("button", name="Reload style").click()
    until(lambda: " 2 " in f" {' '.join(row_of(page, 'style').inner_text().split())} ")
    page.locator("#mount-list .bad.error").wait_for(state="hidden")


@pytest.mark.skipif(hasattr(RewardEngine, "reload"), reason="this server can reload")
def test_a_server_that_cannot_reload_says_so(
    shop: Callable[..., Any], opened: Callable[..., Any]
) -> None:
    page = opened(shop().url)
    page.get_by_role("button", name="Reload style").click()
    page.locator("#mount-list").get_by_text("This server cannot reload mounts.").wait_for()
