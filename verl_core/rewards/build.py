"""From config to mounts: providers are constructed and checked, nothing is loaded."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
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
from verl_core.rewards.reload.code import Code
from verl_core.rewards.reload.copies import Taken
from verl_core.rewards.reload.rebase import absolute, rebased
from verl_core.rewards.runners import breaker_of, runner_of
from verl_reward_sdk.errors import ConfigError, VerlRewardError
from verl_reward_sdk.provider import RewardProvider

if TYPE_CHECKING:
    from verl_core.plugins import PluginRegistry

NodeFactory: TypeAlias = Callable[[MountConfig, Path], RewardProvider[Any]]
"""Makes the provider of a mount that names a `node_class`, given the config's folder."""

Make: TypeAlias = Callable[["Taken | None"], RewardProvider[Any]]


class MountBuilder:
    """Makes the generations of one mount. What they share is made once, here.

    Args:
        config: the mount's item of the YAML.
        base_dir: what relative paths count from.
        registry: the plugins.
        node_factory: makes the providers of mounts that name a `node_class`.

    Raises:
        ConfigError: its plugin or its provider's config cannot be used (each method too); the YAML
            path says which.
    """

    def __init__(
        self,
        config: MountConfig,
        base_dir: Path,
        registry: PluginRegistry | None,
        node_factory: NodeFactory | None,
    ) -> None:
        self.config = config
        self.path = f"reward.{config.name}"
        #: Nodes load while they are constructed: they read their files where these lie.
        self.copies = config.plugin is not None
        self._base_dir = base_dir.absolute()
        with self._kept():
            self._make = _maker(config, base_dir, registry, node_factory, self.path)
        self._dist = None if registry is None or not self.copies else _dist(config, registry)
        self._breaker = breaker_of(config)
        self._conditions = {
            "applies_to": _condition(config, "applies_to", column_condition, self.path),
            "only_if": _condition(config, "only_if", score_condition, self.path),
            "when": _condition(config, "when", score_condition, self.path),
        }

    def first(self) -> Mount:
        """The mount as its config has it, over the files themselves: what can be told before
        anything is loaded.

        Raises:
            ConfigError: its execution or one of its conditions cannot be used either.
        """
        return self._mount(None, None, 1)

    def following(self, before: Mount, taken: Taken | None, generation: int) -> Mount:
        """The next generation of `before`, over the copies in `taken`; it is not set up."""
        return self._mount(before, taken, generation)

    def assets(self, mount: Mount) -> tuple[str, ...]:
        """The files and folders that make a generation of `mount`, absolute: its provider's, and
        those of ``watch:``.

        Raises:
            ConfigError: one of ``watch:`` is not there.
        """
        if mount.taken is not None and self.copies:
            # Its provider has copies: one with the written paths tells what they are of.
            with self._kept():
                found = self._make(None).assets()
        else:
            found = mount.provider.assets()
        paths = [absolute(path) for path in found]
        for index, name in enumerate(self.config.watch):
            path = absolute(self._base_dir / Path(name).expanduser())
            if mount.taken is None and not os.path.exists(path):
                raise ConfigError(
                    f"no such file or folder: {path}", path=f"{self.path}.watch[{index}]"
                )
            paths.append(path)
        return tuple(dict.fromkeys(paths))

    def written(self, asset: str) -> str:
        """An asset as the config names it: relative to the config's folder where it lies there."""
        inside = os.path.relpath(asset, self._base_dir)
        return asset if inside.startswith("..") else inside

    def _kept(self) -> AbstractContextManager[None]:
        return kept(f"mount {self.config.name!r} ({self.config.plugin or self.config.node_class})")

    def _mount(self, before: Mount | None, taken: Taken | None, generation: int) -> Mount:
        config, path = self.config, self.path
        held = self._kept() if before is None else contextlib.nullcontext()
        with held:
            make = functools.partial(self._make, taken)
            learner = Learner(config.name, make, None if before is None else before.learner)
            provider = learner.build()
            (low, high), reads = _declared(provider, path)
        _check_role(config, provider, path)
        code = Code.of(type(getattr(provider, "node", provider)), self._dist)
        return Mount(
            config,
            provider,
            runner_of(
                config,
                provider,
                learner.build,
                self._base_dir,
                path,
                breaker=self._breaker,
                taken=taken if self.copies else None,
            ),
            source=config.plugin or config.node_class or type(provider).__name__,
            path=path,
            execution=config.execution or provider.execution,
            reads=reads,
            score_range=(low, high),
            **self._conditions,
            learner=learner,
            cache=self._cache(before, provider, code),
            generation=generation,
            taken=taken,
            record=None if before is None else before.record,
            code=code,
        )

    def _cache(
        self, before: Mount | None, provider: RewardProvider[Any], code: Code
    ) -> MountCache | None:
        if self.config.cache is None:
            return None
        if before is not None and before.cache is not None:
            return before.cache.of_generation(provider, str(code))
        assert self.config.plugin is not None  # a node_class has no cache
        return MountCache(
            self.config.cache,
            provider,
            plugin=self.config.plugin,
            dist=str(code),
            base_dir=self._base_dir,
            path=self.path,
        )


def _dist(config: MountConfig, registry: PluginRegistry) -> str:
    assert config.plugin is not None  # asked of plugins only
    return registry.check(config.plugin).dist


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
        return _guarded(lambda _: node_factory(config, base_dir), f"{config.node_class}", path)
    if registry is None:
        raise ConfigError(f"no plugins are at hand for {config.plugin!r}", path=f"{path}.plugin")
    try:
        provider = registry.provider(config.plugin)
    except ConfigError as error:
        raise error.with_location(path=f"{path}.plugin") from error
    settings = provider_config(provider.Config, config, base_dir)
    what = f"the plugin {config.plugin!r}"

    def of_copies(taken: Taken | None) -> RewardProvider[Any]:
        return provider(settings if taken is None else rebased(settings, taken))

    return _guarded(of_copies, what, path, config.secrets)


def _guarded(make: Make, what: str, path: str, secrets: tuple[str, ...] = ()) -> Make:
    def guarded(taken: Taken | None) -> RewardProvider[Any]:
        try:
            return make(taken)
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
