"""What the tests of all packages share."""

from __future__ import annotations

from hypothesis import settings

# No test asserts on time: a busy machine is no failure.
settings.register_profile("verl-reward", deadline=None)
settings.load_profile("verl-reward")
