"""How much of the scoring was hidden behind other work."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from verl_core.rewards.hidden import hidden_and_exposed

spans = st.lists(
    st.tuples(st.integers(0, 30), st.integers(0, 10)).map(lambda p: (p[0], p[0] + p[1])), max_size=6
)


@given(spans, spans)
def test_hidden_seconds_are_busy_ones_in_which_nobody_waited(busy, waited):
    seconds = range(50)
    worked = {s for s in seconds if any(start <= s < end for start, end in busy)}
    idle = {s for s in seconds if any(start <= s < end for start, end in waited)}
    assert hidden_and_exposed(busy, waited) == (len(worked - idle), len(idle))
