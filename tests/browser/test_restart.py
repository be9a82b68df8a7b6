"""The page outlives its server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def test_it_says_that_nobody_answers_and_goes_on_when_somebody_does(
    tiny_run: Any,
    free_port: int,
    process: Callable[..., Any],
    opened: Callable[..., Any],
    until: Callable[..., Any],
) -> None:
    tiny_run.config["server"] = {"port": free_port}
    words = ("serve", str(tiny_run.write()))
    first = process(tiny_run.folder, tiny_run.environment(), *words)
    page = opened(first.url)
    slider = page.get_by_role("slider", name="weight of style", exact=True)
    slider.wait_for()
    until(lambda: page.locator("#connection").inner_text() == "live")
    field = page.get_by_role("spinbutton", name="weight of style, as a number")
    field.fill("1.25")
    page.get_by_role("button", name="Apply 1 change").click()
    page.get_by_text("Applied as revision 2").wait_for()
    field.fill("0.4")  # a draft, while the server goes

    first.kill()
    until(lambda: page.locator("#connection").inner_text() == "connection lost")
    assert page.locator("#trouble").is_visible()
    page.get_by_role("button", name="Apply 1 change").click()
    page.get_by_text("Nobody answered").wait_for()  # a change is not lost without a word

    second = process(tiny_run.folder, tiny_run.environment(), *words)
    assert second.url == first.url
    page.get_by_text("The server was started anew.").wait_for()
    until(lambda: page.locator("#connection").inner_text() == "live")
    assert page.locator("#trouble").is_hidden()
    assert field.input_value() == "0.4"  # the draft is still there
    page.get_by_role("button", name="Apply 1 change").click()
    page.get_by_text("Applied as revision 3").wait_for()
    assert second.get("/api/v1/reward/weights")["weights"]["style"] == 0.4


def test_another_run_at_the_same_address_begins_a_new_page(
    tiny_run: Any, free_port: int, process: Callable[..., Any], opened: Callable[..., Any]
) -> None:
    tiny_run.config["server"] = {"port": free_port}
    words = ("serve", str(tiny_run.write()))
    first = process(tiny_run.folder, tiny_run.environment(), *words)
    page = opened(first.url)
    field = page.get_by_role("spinbutton", name="weight of style, as a number")
    field.fill("0.4")
    page.get_by_text("Not yet applied").wait_for()
    first.kill()
    other = ("--state", str(tiny_run.folder / "other"))
    process(tiny_run.folder, tiny_run.environment(), *words, *other)
    page.get_by_text("Another run answers here now").wait_for()
    page.locator("#apply").wait_for(state="hidden")  # no draft of one run is applied to another
