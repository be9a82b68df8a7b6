"""Providers that learn while they run: their state, kept from step to step.

Such a provider has a `state()` of its own. What it learnt in a step counts once the step is
finished: `Learner.keep` notes its state then, a step that is scored again begins at what was kept
(`back`), and a fresh instance in the place of one that hung takes up there too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from verl_core.rewards.raised import is_interrupt, told
from verl_reward_sdk.errors import ProviderError
from verl_reward_sdk.provider import RewardProvider

Provider = RewardProvider[Any]


class _Box:
    """What was kept; all generations of a mount have the same."""

    kept: dict[str, Any] | None = None


class Learner:
    """The state of one mount's provider.

    Args:
        name: the mount's name.
        make: makes a provider.
        before: that of the generation before, whose state is this one's too.
    """

    def __init__(
        self, name: str, make: Callable[[], Provider], before: Learner | None = None
    ) -> None:
        self._name = name
        self._make = make
        self._box: _Box = _Box() if before is None else before._box
        self._current: Provider | None = None

    @property
    def _kept(self) -> dict[str, Any] | None:
        return self._box.kept

    @property
    def learns(self) -> bool:
        """Whether the provider has a state."""
        return self._current is not None and _overrides(self._current, "state")

    def build(self) -> Provider:
        """A fresh provider; its `setup` ends by loading what was kept."""
        provider = self._make()
        self._current = provider
        if _overrides(provider, "state"):
            self._restore_after_setup(provider)
        return provider

    def keep(self) -> None:
        """Note the state as it is now. No call may be under way.

        Raises:
            ProviderError: `state` raises, or holds something else than plain values and arrays.
        """
        if self.learns:
            assert self._current is not None
            found = self._guarded(self._current.state)
            if not isinstance(found, Mapping):
                raise ProviderError(f"mount {self._name!r}: state() gave no mapping: {found!r:.80}")
            self._box.kept = self._plain(found, "state()")

    def back(self) -> None:
        """Return to what was kept. Nothing was kept before the first `keep`: then nothing is done.

        Raises:
            ProviderError: `load_state` raises.
        """
        if self.learns and self._kept is not None:
            assert self._current is not None
            self._load(self._current)

    def state(self) -> dict[str, Any] | None:
        """A copy of what was kept; None where nothing was."""
        return None if self._kept is None else self._plain(self._kept, "state()")

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint; the provider is loaded. Errors as in `back`."""
        self._box.kept = self._plain(state, "the checkpoint's state")
        self.back()

    # -- inside ----------------------------------------------------------------------------------

    def _load(self, provider: Provider) -> None:
        kept = self._plain(self._kept, "state()")
        self._guarded(lambda: provider.load_state(kept))

    def _restore_after_setup(self, provider: Provider) -> None:
        setup = provider.setup
        if inspect.iscoroutinefunction(setup):

            async def set_up_later() -> None:
                await setup()
                if self._kept is not None:
                    self._load(provider)

            provider.setup = set_up_later  # type: ignore[method-assign, assignment]
        else:

            def set_up() -> None:
                setup()
                if self._kept is not None:
                    self._load(provider)

            provider.setup = set_up  # type: ignore[method-assign]

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except BaseException as error:  # a boundary to somebody else's code
            if is_interrupt(error):
                raise
            raise ProviderError(
                f"mount {self._name!r}: its provider's state cannot be used: {told(error)}"
            ) from error

    def _plain(self, value: Any, where: str) -> Any:
        """A copy that shares nothing with `value`."""
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return value
        if isinstance(value, np.generic):
            return value.item()
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufcSU":
            return value.copy()
        if isinstance(value, Mapping) and all(isinstance(key, str | int) for key in value):
            return {key: self._plain(item, f"{where}[{key!r}]") for key, item in value.items()}
        if isinstance(value, list | tuple):
            items = [self._plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
            return items if isinstance(value, list) else tuple(items)
        raise ProviderError(
            f"mount {self._name!r}: {where} is a {type(value).__name__}, and a state holds plain "
            "values and arrays of numbers only"
        )


def _overrides(provider: Provider, method: str) -> bool:
    return getattr(type(provider), method) is not getattr(RewardProvider, method)
