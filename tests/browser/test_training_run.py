"""The knobs of a real run that trains: what is turned on the page counts from the next step on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

METRICS = "runs/tiny/metrics.jsonl"


def test_a_slider_changes_the_next_step_and_a_rollback_takes_it_back(
    tiny_run: Any,
    process: Callable[..., Any],
    opened: Callable[..., Any],
    until: Callable[..., Any],
    read_jsonl: Callable[[Path], list[dict[str, Any]]],
) -> None:
    tiny_run.config["server"] = {"port": 0}
    tiny_run.config["trainer"] |= {"steps": 100_000, "checkpoint_every": 0}
    tiny_run.config["trainer"] |= {"eval_before": False, "eval_after": False}
    path = tiny_run.write()
    run = process(tiny_run.folder, tiny_run.environment(), "train", str(path), "--plain")
    until(lambda: run.get("/healthz").get("step", 0) > 1)

    page = opened(run.url)
    slider = page.get_by_role("slider", name="weight of overlap", exact=True)
    assert slider.input_value() == "0.5"
    slider.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.get_by_text("Not yet applied: overlap 0.5 → 0.75").wait_for()
    assert run.get("/api/v1/reward/weights")["revision"] == 1  # a draft is no change
    page.get_by_label("Your name").fill("ada")
    page.get_by_label("Reason", exact=True).first.fill("more of the reference")
    page.get_by_role("button", name="Apply 1 change").click()
    page.get_by_text("Applied as revision 2").wait_for()
    change = run.get("/api/v1/reward/weights/history")["history"][0]
    assert (change["author"], change["reason"]) == ("ada", "more of the reference")
    first = change["effective_step"]

    def trained(step: int) -> Any:
        found = {record["step"]: record for record in read_jsonl(tiny_run.folder / METRICS)}
        return found if step in found else None

    steps = until(lambda: trained(first))
    assert (steps[first]["weights/overlap"], steps[first]["weights/revision"]) == (0.75, 2)
    assert (steps[first - 1]["weights/overlap"], steps[first - 1]["weights/revision"]) == (0.5, 1)
    page.locator(".chart.first .mark", has_text="r2").wait_for()  # the line in the curve

    page.get_by_role("button", name="Roll back to revision 1").click()
    dialog = page.get_by_role("dialog", name="Roll back to revision 1?")
    dialog.get_by_label("Reason").fill("it was better before")
    dialog.get_by_role("button", name="Roll back").click()
    page.get_by_text("Rolled back to revision 1: revision 3").wait_for()
    change = run.get("/api/v1/reward/weights/history")["history"][0]
    assert change["reason"] == "rollback to revision 1: it was better before"
    back = change["effective_step"]
    steps = until(lambda: trained(back))
    assert (steps[back]["weights/overlap"], steps[back]["weights/revision"]) == (0.5, 3)
    assert slider.input_value() == "0.5"

    page.get_by_text("fused value:").first.wait_for()  # samples of the run are there
    # The curves go on by themselves.
    cursor = page.get_by_role("slider", name="fused reward, by step")
    now = int(cursor.get_attribute("aria-valuemax"))
    until(lambda: int(cursor.get_attribute("aria-valuemax")) > now)
