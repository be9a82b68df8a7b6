"""The registry: which plugins there are, and the one that a config names."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from verl_core.plugins import errors
from verl_core.plugins.discovery import AllowList, Offer, discover, is_on
from verl_core.plugins.memory import FailureMemory
from verl_core.plugins.records import EXTENSIONS, REWARDS, PluginRecord, normalise
from verl_reward_sdk.errors import PluginError, nearest

if TYPE_CHECKING:
    import pluggy

    from verl_core.plugins.fence import LoadFailure
    from verl_core.plugins.hooks import Hooks
    from verl_core.plugins.loading import Loaded
    from verl_reward_sdk.protocols import CommandRegistry, FusionPolicy
    from verl_reward_sdk.provider import RewardProvider


class PluginRegistry:
    """Installed plugins, listed from metadata and imported one by one when something names them.

    Cheap to construct. Safe to use from several threads. A failed plugin is tried once in a
    registry's life.

    Args:
        env: where the ``VERL_REWARD_*`` variables are read.
        memory: remembered failures; by default a file in the user's cache folder.
    """

    def __init__(
        self, *, env: Mapping[str, str] = os.environ, memory: FailureMemory | None = None
    ) -> None:
        self._allowed = AllowList.from_env(env)
        self._strict = is_on(env, "VERL_REWARD_STRICT")
        self._memory = memory or FailureMemory()
        self._lock = threading.RLock()
        self._found: dict[str, tuple[Offer, ...]] = {}
        self._loaded: dict[str, Loaded] = {}
        self._failures: dict[str, LoadFailure] = {}
        self._hooks: Hooks | None = None

    # -- listing ---------------------------------------------------------------------------------

    def records(self, *, load: bool = False, group: str = REWARDS) -> tuple[PluginRecord, ...]:
        """Every name that is offered in `group`, sorted by name.

        Args:
            load: import each plugin that may be imported, so that ``broken`` and ``incompatible``
                are known rather than remembered.
            group: `REWARDS` or `EXTENSIONS`.
        """
        with self._lock:
            return tuple(self._record(offer, group, load=load) for offer in self._offers(group))

    def check(self, name: str, *, group: str = REWARDS) -> PluginRecord:
        """The record of a plugin that can be loaded as far as metadata tells; imports nothing.

        Raises:
            PluginError: it is missing, in conflict, incompatible, disabled or known to be broken
                in this process. A failure remembered from an earlier one is not held against it.
        """
        return self._offer(name, group).record

    def unknown_names(self) -> dict[str, str]:
        """Names in ``VERL_REWARD_PLUGINS`` that nothing installed has -> the nearest one, or ""."""
        offers = [offer.record for group in (REWARDS, EXTENSIONS) for offer in self._offers(group)]
        known = {record.name for record in offers} | {normalise(record.dist) for record in offers}
        return {name: nearest(name, known) or "" for name in sorted(self._allowed.names - known)}

    def strict_error(self) -> PluginError | None:
        """Under ``VERL_REWARD_STRICT=1``: the error of all broken and conflicting plugins, or None.

        A plugin that is only remembered to be broken is imported to see whether it still is.
        """
        if not self._strict:
            return None
        bad = []
        for group in (REWARDS, EXTENSIONS):
            for offer in self._offers(group):
                record = self._record(offer, group)
                if record.state == "broken":
                    record = self._record(offer, group, load=True)
                if record.state in ("broken", "conflict"):
                    bad.append(f"{record.name!r} ({record.source}) is {errors.state(record)}")
        if not bad:
            return None
        return PluginError(
            "; ".join(dict.fromkeys(bad)),
            hint="VERL_REWARD_STRICT=1 makes every broken or conflicting plugin an error",
        )

    # -- loading ---------------------------------------------------------------------------------

    def provider(self, name: str) -> type[RewardProvider[Any]]:
        """The provider class of the reward `name`; its module is imported now.

        Raises:
            PluginError: as `check`, or the import fails, or the module does not provide the name.
        """
        with self._lock:
            offer = self._offer(name, REWARDS)
            record = self._record(offer, REWARDS, load=True)
            if record.state != "loaded":
                raise errors.refused(record)
            return self._loaded[record.origin].classes[record.name]

    def load_extensions(self, names: Iterable[str]) -> None:
        """Import the extensions that a config's ``plugins: [name]`` names, in this order.

        Raises:
            PluginError: one of them is missing or cannot be loaded.
        """
        with self._lock:
            for name in names:
                record = self._record(self._offer(name, EXTENSIONS), EXTENSIONS, load=True)
                if record.state != "loaded":
                    raise errors.refused(record)

    # -- hooks of loaded modules -----------------------------------------------------------------

    @property
    def hooks(self) -> Hooks:
        """The modules that were loaded so far, and their hooks."""
        with self._lock:
            if self._hooks is None:
                from verl_core.plugins.hooks import Hooks

                self._hooks = Hooks()
            return self._hooks

    @property
    def manager(self) -> pluggy.PluginManager:
        """The plugin manager that holds the modules loaded so far."""
        return self.hooks.manager

    def fusion_policy(self, name: str) -> type[FusionPolicy] | None:
        """The fusion policy `name` of a loaded plugin, or None where none offers it.

        Raises:
            PluginError: two plugins offer a policy of one name, or a plugin's hook fails.
        """
        return self.hooks.fusion_policies().get(name)

    def nodes(self) -> Mapping[str, type]:
        """The dataflow nodes of loaded plugins, by name. Errors as in `fusion_policy`."""
        return self.hooks.nodes()

    def routes(self) -> Mapping[str, Any]:
        """Prefix -> ASGI app of loaded plugins. Errors as in `fusion_policy`."""
        return self.hooks.routes()

    def add_commands(self, name: str, cli: CommandRegistry) -> None:
        """Load the extension `name` and let it add its commands to `cli`. Raises `PluginError`."""
        self.load_extensions([name])
        record = self.check(name, group=EXTENSIONS)
        self.hooks.add_commands(self._loaded[record.origin].module, cli)

    def notify(self, hook: str, **values: Any) -> None:
        """Call the observers of `hook` one by one. One that raises is logged and called no more."""
        self.hooks.notify(hook, **values)

    # -- inside ----------------------------------------------------------------------------------

    def _offers(self, group: str) -> tuple[Offer, ...]:
        with self._lock:
            if group not in self._found:
                self._found[group] = discover(group, self._allowed)
            return self._found[group]

    def _offer(self, name: str, group: str) -> Offer:
        """The one offer of `name` that may be loaded."""
        error = self.strict_error()
        if error is not None:
            raise error
        offers = self._offers(group)
        # A disabled offer speaks for itself only where there is no other.
        rank = sorted(offers, key=lambda offer: offer.record.state == "disabled")
        for offer in rank:
            if offer.record.name == normalise(name):
                record = self._record(offer, group, recall=False)
                if record.state in ("available", "loaded"):
                    return replace(offer, record=record)
                raise errors.refused(record)
        extensions = self._offers(EXTENSIONS)
        if group == EXTENSIONS:
            raise errors.missing_extension(name, [offer.record for offer in extensions])
        raise errors.missing_reward(
            name, [offer.record for offer in offers], [offer.record for offer in extensions]
        )

    def _record(
        self, offer: Offer, group: str, *, load: bool = False, recall: bool = True
    ) -> PluginRecord:
        """The record of `offer` as of now; with `load`, after importing its module."""
        record = offer.record
        if record.state in ("disabled", "conflict", "incompatible", "broken"):
            return record
        if load:
            self._load(record.origin)
        known = self._after(record, group)
        if known is None:
            reason = self._memory.recall(offer) if recall else None
            if reason is None:
                return record
            return replace(record, state="broken", reason=f"{reason}; seen at an earlier import")
        if load and known.state == "broken":
            self._memory.remember(offer, known.reason or "")
        elif load and known.state == "loaded":
            self._memory.forget(offer)
        return known

    def _after(self, record: PluginRecord, group: str) -> PluginRecord | None:
        """`record` with what importing its module brought to light; None before that."""
        failure = self._failures.get(record.origin)
        if failure is not None:
            return replace(record, state=failure.state, reason=failure.reason, api=failure.api)
        loaded = self._loaded.get(record.origin)
        if loaded is None:
            return None
        if group == REWARDS and record.name not in loaded.classes:
            from verl_core.plugins.loading import not_provided

            reason = not_provided(record.name, loaded.module, loaded.classes)
            return replace(record, state="broken", reason=reason, api=loaded.api)
        return replace(record, state="loaded", api=loaded.api)

    def _load(self, origin: str) -> None:
        """Import and register a module, once, whatever number of names it stands for."""
        from verl_core.plugins.fence import LoadFailure
        from verl_core.plugins.loading import load_plugin

        if origin in self._loaded or origin in self._failures:
            return
        try:
            loaded = load_plugin(origin)
        except LoadFailure as failure:
            self._failures[origin] = failure
        else:
            self._loaded[origin] = loaded
            self.hooks.register(loaded.module)
