"""How another process makes a mount's provider."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from verl_core.rewards.raised import told
from verl_reward_sdk.errors import ConfigError
from verl_reward_sdk.provider import RewardProvider

if TYPE_CHECKING:
    from verl_core.rewards.execution.retry import Retries


@dataclass(frozen=True)
class Recipe:
    """How a worker makes its own provider.

    Args:
        name: the mount's name, for messages.
        make: what makes the provider: a function or class at the top level of a module that can
            be imported (not of ``__main__``).
        args: its arguments; plain values travel best.
        retries: how a call that failed is tried again, inside its deadline.
    """

    name: str
    make: Callable[..., RewardProvider[Any]]
    args: tuple[Any, ...] = field(default=(), repr=False)  # a secret may be among them
    retries: Retries | None = None

    def packed(self) -> bytes:
        """The recipe as a frame.

        Raises:
            ConfigError: it cannot be pickled, or would not be found in another process.
        """
        hint = "execution: process needs a function or class at the top level of a module"
        if getattr(self.make, "__module__", None) == "__main__":
            name = getattr(self.make, "__qualname__", repr(self.make))
            raise ConfigError(
                f"{name} is defined in the script that runs (__main__), which a worker process"
                " does not import",
                hint="move it to a module of its own",
            )
        try:
            return pickle.dumps(self, protocol=5)
        except Exception as error:
            raise ConfigError(
                f"what makes the provider cannot be sent to a worker process: {told(error)}",
                hint=hint,
            ) from error
