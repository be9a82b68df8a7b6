"""The page of ``verl-reward serve``: what is scored over HTTP shows on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx

BODY = {
    "rows": [
        {"prompt": "Fine?", "response": text, "columns": {"ground_truth": "It is fine."}}
        for text in ("It is fine.", "zq")
    ]
}


def test_a_request_shows_as_samples_and_in_the_curves(
    tiny_run: Any,
    process: Callable[..., Any],
    opened: Callable[..., Any],
    until: Callable[..., Any],
) -> None:
    tiny_run.config["server"] = {"port": 0}
    server = process(tiny_run.folder, tiny_run.environment(), "serve", str(tiny_run.write()))
    until(lambda: server.get("/healthz")["ready"])
    page = opened(server.url)
    page.get_by_text("Nothing was scored yet").wait_for()
    with httpx.Client(verify=False, trust_env=False, timeout=60) as client:
        scored = client.post(f"{server.url}/api/v1/reward/score", json=BODY)
    assert scored.status_code == 200, scored.text
    card = page.get_by_role("article").filter(has_text="It is fine.").last
    card.wait_for()
    assert "chrf" not in card.locator(".sum").inner_text()  # mounts by their names
    assert "overlap" in card.locator(".sum").inner_text()
    curve = page.get_by_role("slider", name="fused reward, by step")
    until(lambda: str(curve.get_attribute("aria-valuetext")).startswith("after 2 rows: "))


def test_of_several_workers_it_says_what_it_cannot_show(
    tiny_run: Any,
    process: Callable[..., Any],
    opened: Callable[..., Any],
    until: Callable[..., Any],
) -> None:
    tiny_run.config["server"] = {"port": 0, "workers": 2}
    server = process(tiny_run.folder, tiny_run.environment(), "serve", str(tiny_run.write()))
    until(lambda: server.get("/healthz")["ready"])
    page = opened(server.url)
    page.get_by_text("several workers score here").wait_for()
    page.get_by_role("spinbutton", name="weight of style, as a number").fill("1.5")
    page.get_by_role("button", name="Apply 1 change").click()
    page.get_by_text("Applied as revision 2").wait_for()
    names = {server.get("/api/v1/reward/run")["server"] for _ in range(12)}
    assert page.get_by_text("started anew").count() == 0, names
