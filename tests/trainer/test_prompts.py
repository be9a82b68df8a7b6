"""The prompts of a step follow from the seed and the step alone."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from verl_core.trainer.prompts import PromptOrder

SIZES = {
    "rows": st.integers(1, 9),
    "per_step": st.integers(1, 12),
    "seed": st.integers(0, 2**32 - 1),
}


def drawn(order, steps):
    return [row for step in range(1, steps + 1) for row in order.of_step(step)]


@given(**SIZES, shuffle=st.booleans(), epochs=st.integers(1, 4))
def test_every_row_is_drawn_once_before_any_is_drawn_again(rows, per_step, seed, shuffle, epochs):
    order = PromptOrder(rows, per_step, seed=seed, shuffle=shuffle)
    steps = -(-rows * epochs // per_step)
    seen = drawn(order, steps)
    assert all(len(order.of_step(step)) == per_step for step in (1, steps))
    for epoch in range(epochs):
        part = seen[epoch * rows : (epoch + 1) * rows]
        assert Counter(part) == Counter(range(rows))


@given(**SIZES, step=st.integers(1, 50))
def test_a_resumed_run_draws_what_an_unbroken_one_would_have(rows, per_step, seed, step):
    unbroken = PromptOrder(rows, per_step, seed=seed, shuffle=True)
    drawn(unbroken, step - 1)
    resumed = PromptOrder(rows, per_step, seed=seed, shuffle=True)
    assert resumed.of_step(step) == unbroken.of_step(step)


def test_without_shuffling_the_files_order_is_kept_across_epochs():
    order = PromptOrder(3, 2, seed=1, shuffle=False)
    assert drawn(order, 3) == [0, 1, 2, 0, 1, 2]


def test_epochs_and_seeds_are_shuffled_differently():
    order = PromptOrder(50, 50, seed=1, shuffle=True)
    assert order.of_step(1) != order.of_step(2)
    assert order.of_step(1) != PromptOrder(50, 50, seed=2, shuffle=True).of_step(1)
