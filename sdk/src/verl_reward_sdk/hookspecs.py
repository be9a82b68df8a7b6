"""The hooks of verl-reward (pluggy). Hooks register and observe; they never score.

A module named in the entry-point group ``verl_reward`` (rewards) or ``verl_reward_extensions``
(everything else) implements those it needs, each marked with `hookimpl`. Every hook is optional.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from verl_reward_sdk.protocols import CommandRegistry, FusionPolicy, RewardTableView
    from verl_reward_sdk.provider import RewardProvider

hookspec = pluggy.HookspecMarker("verl_reward")
hookimpl = pluggy.HookimplMarker("verl_reward")


@hookspec
def verl_reward_providers() -> Iterable[type[RewardProvider[Any]]]:  # type: ignore[empty-body]
    """Yield the provider classes of this module.

    Called once, right after the module was imported because a config names one of its rewards (or
    ``verl-reward list --load`` asks). Each class's ``name`` must be a name under which the module
    is registered as entry point. None or an empty answer means that it offers no reward; an entry
    point whose name no class bears is listed as broken.
    """


@hookspec
def verl_reward_fusion_policies() -> Iterable[type[FusionPolicy]]:  # type: ignore[empty-body]
    """Yield fusion policy classes, each with a ``name`` to be written in ``fusion: {policy: …}``.

    Called when a config names a policy that the core does not have. Two policies of one name are
    an error that names both distributions.
    """


@hookspec
def verl_reward_nodes() -> Mapping[str, type]:  # type: ignore[empty-body]
    """Give the dataflow nodes of this module: name -> class.

    Called when a config's ``dataflow:`` names a node that neither the core nor a mount provides.
    """


@hookspec
def verl_reward_commands(cli: CommandRegistry) -> None:
    """Add commands to ``verl-reward`` through `cli`.

    Called when the command line is given a command of this extension's name.
    """


@hookspec
def verl_reward_routes() -> Iterable[tuple[str, Any]]:  # type: ignore[empty-body]
    """Yield ``(prefix, asgi_app)`` pairs, mounted behind the control plane's authentication.

    Called once, when the control plane starts.
    """


@hookspec
def verl_reward_batch_scored(table: RewardTableView) -> None:
    """See a batch that was scored and fused. `table` must not be changed.

    Called after each scored batch, in the thread that scored it, so keep it short. An observer
    that raises is logged once and not called again in this process; its answer is ignored.
    """


@hookspec
def verl_reward_weights_changed(before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    """See a change of weights: the snapshots before and after it (`revision`, `weights`, …).

    Called after the change was written. Errors as in `verl_reward_batch_scored`.
    """


@hookspec
def verl_reward_generation_changed(
    mount: str, before: Mapping[str, Any], after: Mapping[str, Any]
) -> None:
    """See that a mount now runs another generation of its provider (number, digests, version).

    Called after the new generation serves. Errors as in `verl_reward_batch_scored`.
    """
