"""What a fusion policy can serve: refused at load, and before a live change of weights is taken."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from verl_core.rewards.fusion.constrained import Constrained
from verl_core.rewards.fusion.product import Product
from verl_core.rewards.missing import fused_range
from verl_core.rewards.mount import Mount
from verl_reward_sdk.errors import ConfigError
from verl_reward_sdk.protocols import FusionPolicy, MountInfo


def mount_info(mount: Mount, weight: float) -> MountInfo:
    """What a policy may know of a mount: its range is that of the values that are fused."""
    return MountInfo(
        name=mount.name,
        weight=weight,
        role=mount.role,
        score_range=fused_range(mount.score_range, mount.config),
        has_when=mount.when is not None,
    )


def check_policy(policy: FusionPolicy, infos: Sequence[MountInfo]) -> None:
    """Raise `ConfigError` where `policy` cannot fuse these mounts with these weights."""
    try:
        policy.check(infos)
    except ConfigError as error:
        raise error.with_location(path="fusion.policy") from error


def check_mounts(policy: FusionPolicy, mounts: Iterable[Mount]) -> None:
    """Raise `ConfigError` where a mount has something that `policy`, or the place where it runs,
    cannot carry, whatever the weights are."""
    for mount in mounts:
        _check_learner(mount)
        if mount.role != "reward":
            continue
        if isinstance(policy, Product):
            _check_factor(mount)
        if not policy.additive:
            _check_conditions(policy, mount)
        if mount.provider.token_scores:
            _check_tokens(policy, mount)
        if isinstance(policy, Constrained) and mount.name in policy.config.bounds:
            _check_bound(mount, policy.config.bounds)


def _check_conditions(policy: FusionPolicy, mount: Mount) -> None:
    """A row that is not asked is one factor less to a product: the policy that is trained could
    choose to be without it."""
    for key in ("when", "only_if"):
        if getattr(mount.config, key) is not None:
            raise ConfigError(
                f"{policy.name} cannot leave a mount out by a condition",
                path=f"reward.{mount.name}.{key}",
                hint=f"{key}: needs an additive policy, such as weighted_sum",
            )


def _check_tokens(policy: FusionPolicy, mount: Mount) -> None:
    if not policy.additive:
        raise ConfigError(
            f"{policy.name} cannot place the token scores of {mount.source} on the tokens: "
            "its reward is no sum of scores",
            path="fusion.policy",
            hint="token scores need an additive policy, such as weighted_sum",
        )
    if mount.config.normalize != "none":
        raise ConfigError(
            f"normalize: {mount.config.normalize} moves a score as a whole, and the token scores "
            f"of {mount.source} with it nowhere",
            path=f"reward.{mount.name}.normalize",
            hint="leave normalize: out; scale: brings a token-level mount to another unit",
        )


def _check_learner(mount: Mount) -> None:
    if mount.execution == "process" and mount.learner is not None and mount.learner.learns:
        raise ConfigError(
            f"{mount.source} learns while it runs (it has a state()), and what it learnt would be "
            "lost with a worker that is killed",
            path=f"reward.{mount.name}.execution",
            hint="execution: thread keeps it, and its state in checkpoints",
        )


def _check_bound(mount: Mount, bounds: Mapping[str, float]) -> None:
    """Raw scores must be able to lie on both sides of a bound on their mean."""
    if mount.config.scale < 0:
        raise ConfigError(
            f"{mount.name} has a bound on its raw score and scale: {mount.config.scale:g}, "
            "by which a higher weight lowers the raw score",
            path=f"fusion.bounds.{mount.name}",
            hint="bound a mount whose scale: is above 0",
        )
    bound, (low, high) = bounds[mount.name], mount.score_range
    if low < bound <= high:
        return
    path = f"fusion.bounds.{mount.name}"
    where = f"the raw scores of {mount.source} lie in [{low:g}, {high:g}]"
    if bound > high:
        raise ConfigError(
            f"{mount.name} can never reach its bound {bound:g}: {where}",
            path=path,
            hint=f"a bound is on the mean raw score, before scale:; give {high:g} or less",
        )
    raise ConfigError(
        f"{mount.name} is never under its bound {bound:g}, so that it bounds nothing: {where}",
        path=path,
        hint=f"a bound is what the mean keeps or exceeds: give more than {low:g}, or leave it out",
    )


def _check_factor(mount: Mount) -> None:
    """A normalised score has no bounds, so that `Product.check` would show them as infinite."""
    way = mount.config.normalize
    if way != "none":
        raise ConfigError(
            f"product needs scores in [0, 1], and normalize: {way} lets those of {mount.name}"
            " lie in [-inf, inf]: it moves them to a mean of 0",
            path=f"reward.{mount.name}.normalize",
            hint="leave normalize: out, or take an additive policy, such as weighted_sum",
        )
