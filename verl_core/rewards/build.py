"""From config to mounts: providers are constructed and checked, nothing is loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from verl_core.config.condition import Condition
from verl_core.config.mount import MountConfig
from verl_core.config.provider import provider_config
from verl_core.config.secrets import without
from verl_core.rewards.cache.mounted import MountCache
from verl_core.rewards.conditions import column_condition, score_condition
from verl_core.rewards.learner import Learner
from verl_core.rewards.mount import Mount
from verl_core.rewards.process_state import kept
from verl_core.rewards.raised import is_interrupt, told
from verl_core.rewards.runners import runner_of
from verl_reward_sdk.errors import ConfigError, VerlRewardError
from verl_reward_sdk.provider import RewardProvider

if TYPE_CHECKING:
    from verl_core.plugins import PluginRegistry

NodeFactory: TypeAlias = Callable[[MountConfig, Path], RewardProvider[Any]]
"""Makes the provider of a mount that names a `node_class`, given the config's folder."""

Make: TypeAlias = Callable[[], RewardProvider[Any]]


def build_mount(
    config: MountConfig,
    base_dir: Path,
    registry: PluginRegistry | None,
    node_factory: NodeFactory | None,
) -> Mount:
    """The mount of one config item.

    Raises:
        ConfigError: its plugin, its provider's config, its execution or one of its conditions
            cannot be used; the YAML path says which.
    """
    path = f"reward.{config.name}"
    with kept(f"mount {config.name!r} ({config.plugin or config.node_class})"):
        learner = Learner(config.name, _maker(config, base_dir, registry, node_factory, path))
        make = learner.build
        provider = make()
        (low, high), reads = _declared(provider, path)
    _check_role(config, provider, path)
    runner = runner_of(config, provider, make, base_dir, path)
    return Mount(
        config,
        provider,
        runner,
        source=config.plugin or config.node_class or type(provider).__name__,
        path=path,
        execution=config.execution or provider.execution,
        reads=reads,
        score_range=(low, high),
        applies_to=_condition(config, "applies_to", column_condition, path),
        only_if=_condition(config, "only_if", score_condition, path),
        when=_condition(config, "when", score_condition, path),
        learner=learner,
        cache=_cache(config, provider, base_dir, registry, path),
    )


def _cache(
    config: MountConfig,
    provider: RewardProvider[Any],
    base_dir: Path,
    registry: PluginRegistry | None,
    path: str,
) -> MountCache | None:
    if config.cache is None:
        return None
    assert config.plugin is not None  # a node_class has no cache
    assert registry is not None  # it made the provider
    return MountCache(
        config.cache,
        provider,
        plugin=config.plugin,
        dist=registry.check(config.plugin).source,
        base_dir=base_dir,
        path=path,
    )


def _declared(
    provider: RewardProvider[Any], path: str
) -> tuple[tuple[float, float], frozenset[str]]:
    """Its score range and the columns it reads."""
    try:
        low, high = (float(bound) for bound in provider.score_range)
        return (low, high), frozenset(provider.reads)
    except ConfigError as error:
        raise error.with_location(path=path) from error
    except BaseException as error:
        if is_interrupt(error) or isinstance(error, VerlRewardError):
            raise
        raise ConfigError(
            f"{type(provider).__name__} declares no usable score_range and reads: {told(error)}",
            path=path,
            hint="this is a fault of the plugin",
        ) from error


def _condition(
    config: MountConfig, key: str, read: Callable[..., Condition], path: str
) -> Condition | None:
    text = getattr(config, key)
    if text is None or (key == "only_if" and text == "open"):
        return None
    return read(text, path=f"{path}.{key}")


def _maker(
    config: MountConfig,
    base_dir: Path,
    registry: PluginRegistry | None,
    node_factory: NodeFactory | None,
    path: str,
) -> Make:
    """What constructs the mount's provider; its config is read once, here."""
    if config.plugin is None:
        if node_factory is None:
            raise ConfigError(
                f"nothing here can make {config.node_class!r}: a node runs in the trainer",
                path=f"{path}.node_class",
                hint="give plugin:, or hand RewardEngine a node_factory",
            )
        return _guarded(lambda: node_factory(config, base_dir), f"{config.node_class}", path)
    if registry is None:
        raise ConfigError(f"no plugins are at hand for {config.plugin!r}", path=f"{path}.plugin")
    try:
        provider = registry.provider(config.plugin)
    except ConfigError as error:
        raise error.with_location(path=f"{path}.plugin") from error
    settings = provider_config(provider.Config, config, base_dir)
    what = f"the plugin {config.plugin!r}"
    return _guarded(lambda: provider(settings), what, path, config.secrets)


def _guarded(make: Make, what: str, path: str, secrets: tuple[str, ...] = ()) -> Make:
    def guarded() -> RewardProvider[Any]:
        try:
            return make()
        except ConfigError as error:
            raise error.with_location(path=path) from error
        except VerlRewardError:
            raise
        except BaseException as error:
            if is_interrupt(error):
                raise
            said = without(told(error), secrets)
            raise ConfigError(f"{what} cannot be constructed: {said}", path=path) from error

    return guarded


def _check_role(config: MountConfig, provider: RewardProvider[Any], path: str) -> None:
    if config.is_gate:
        if config.threshold is None and provider.role != "gate":
            raise ConfigError(
                f"{type(provider).__name__} scores, and gives no severity by itself",
                path=path,
                hint="say where the gate speaks: threshold: {below: x} or {above: x}",
            )
    elif provider.role == "gate" and "role" not in config.model_fields_set:
        raise ConfigError(
            f"{type(provider).__name__} is meant as a gate",
            path=path,
            hint="write role: gate and a penalty: below 0; role: reward sums its scores instead",
        )
