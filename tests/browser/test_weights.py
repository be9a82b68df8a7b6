"""Weights on the page: drafts, numbers that are none, somebody else's change, pins, the token."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Opened = Callable[..., Any]


def field_of(page: Any, name: str) -> Any:
    return page.get_by_role("spinbutton", name=f"weight of {name}, as a number")


def test_several_weights_are_one_change_and_a_pin_is_cleared(
    shop: Callable[..., Any], opened: Opened
) -> None:
    one = shop()
    page = opened(one.url)
    page.get_by_text("linear from 2 to 0.5 over 200 steps").first.wait_for()
    page.get_by_text("on its schedule").wait_for()
    field_of(page, "style").fill("1.5")
    field_of(page, "overlap").fill("30")  # beyond the slider, which makes room
    assert page.get_by_role("slider", name="weight of overlap", exact=True).input_value() == "30"
    page.get_by_role("button", name="Apply 2 changes").click()
    page.get_by_text("Applied as revision 2").wait_for()
    assert dict(one.store.snapshot().weights) == {"style": 1.5, "overlap": 30.0}
    overlap = page.get_by_role("group", name="overlap")
    overlap.get_by_role("button", name="Clear the pin").click()
    page.get_by_text("overlap returns to its config").wait_for()
    assert one.store.snapshot().weights["overlap"] == 2.0
    page.get_by_text("on its schedule").wait_for()


def test_a_change_elsewhere_shows_at_once_and_is_never_overwritten_unseen(
    shop: Callable[..., Any], opened: Opened
) -> None:
    one = shop()
    page = opened(one.url)
    field_of(page, "style").fill("1.5")
    one.store.update({"style": 3.0}, author="bob")
    page.locator("#revision", has_text="revision 2").wait_for()
    page.get_by_text("Not yet applied: style 3 → 1.5").wait_for()  # against what holds now
    page.locator("#history", has_text="bob").wait_for()

    # Whoever has not heard of it yet is refused, and told.
    page.route("**/weights/events", lambda route: route.abort())
    page.route(
        "**/api/v1/reward/weights",
        lambda route: (
            (one.store.update({"style": 2.0}, author="eve"), route.continue_())
            if route.request.method == "POST" and one.store.snapshot().revision == 2
            else route.continue_()
        ),
    )
    page.get_by_role("button", name="Apply 1 change").click()
    page.get_by_text("Somebody else changed the weights meanwhile").wait_for()
    assert one.store.snapshot().weights["style"] == 2.0
    page.get_by_role("button", name="Apply 1 change").click()
    page.get_by_text("Applied as revision 4").wait_for()


def test_what_is_no_weight_cannot_be_applied(shop: Callable[..., Any], opened: Opened) -> None:
    one = shop()
    page = opened(one.url)
    field = field_of(page, "style")
    field.fill("-1")
    assert field.get_attribute("aria-invalid") == "true"
    assert page.locator("#apply-button").is_disabled()
    field.fill("0")
    field_of(page, "overlap").fill("0")
    page.get_by_role("button", name="Apply 2 changes").click()
    page.locator("#weights-error", has_text="Nothing was changed").wait_for()  # all zero: no signal
    assert one.store.snapshot().revision == 1
    page.get_by_role("button", name="Discard").click()
    assert field.input_value() == "1"


def test_a_rollback_can_be_cancelled(shop: Callable[..., Any], opened: Opened) -> None:
    one = shop()
    one.store.update({"style": 3.0}, author="bob")
    page = opened(one.url)
    button = page.get_by_role("button", name="Roll back to revision 1")
    button.click()
    page.keyboard.press("Escape")
    page.get_by_role("dialog").wait_for(state="hidden")
    assert button.evaluate("it => it === document.activeElement")
    assert one.store.snapshot().revision == 2


def test_a_token_is_asked_for_and_kept_for_the_tab(
    shop: Callable[..., Any], opened: Opened
) -> None:
    one = shop(token="s3cret")
    page = opened(one.url)
    page.get_by_label("Token", exact=True).fill("wrong")
    page.get_by_role("button", name="Open", exact=True).click()
    page.get_by_text("That is not the token of this server").wait_for()
    page.get_by_label("Token", exact=True).fill("s3cret")
    page.get_by_role("button", name="Open", exact=True).click()
    field_of(page, "style").fill("1.5")
    page.get_by_role("button", name="Apply 1 change").click()
    page.get_by_text("Applied as revision 2").wait_for()
    page.reload()
    field_of(page, "style").wait_for()
    assert "s3cret" not in page.content()
    assert (
        page.evaluate("JSON.stringify([document.cookie, Object.entries(localStorage)])").find(
            "s3cret"
        )
        == -1
    )
    page.get_by_role("button", name="Forget the token").click()
    page.get_by_label("Token", exact=True).wait_for()
