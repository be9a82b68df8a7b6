"""The hooks of plugins that were loaded: policies, nodes, routes, commands, observers.

Hooks register and observe; the hot path calls none of them to score.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING, Any

from verl_core.plugins.fence import LoadFailure, guarded
from verl_core.plugins.loading import call_hook, new_manager
from verl_reward_sdk.errors import PluginError

if TYPE_CHECKING:
    from verl_reward_sdk.protocols import CommandRegistry, FusionPolicy

logger = logging.getLogger("verl_core.plugins")


class Hooks:
    """Loaded modules, each registered once, in the order in which they were loaded."""

    def __init__(self) -> None:
        self.manager = new_manager()
        self._modules: list[ModuleType] = []
        self._dropped: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    def register(self, module: ModuleType) -> None:
        """Add a module that `load_plugin` found good."""
        with self._lock:
            if not self.manager.is_registered(module):
                self.manager.register(module, module.__name__)
                self._modules.append(module)

    def fusion_policies(self) -> dict[str, type[FusionPolicy]]:
        """Name -> policy class."""
        answers = self._answers("verl_reward_fusion_policies")
        return _unique(((p.name, p, origin) for origin, a in answers for p in a), "fusion policy")

    def nodes(self) -> dict[str, type]:
        """Name -> node class."""
        answers = self._answers("verl_reward_nodes")
        return _unique(((n, cls, origin) for origin, a in answers for n, cls in a.items()), "node")

    def routes(self) -> dict[str, Any]:
        """Prefix -> ASGI app."""
        answers = self._answers("verl_reward_routes")
        return _unique(((p, app, origin) for origin, a in answers for p, app in a), "route")

    def add_commands(self, module: ModuleType, cli: CommandRegistry) -> None:
        """Let `module` add its commands to `cli`. Raises `PluginError` where its hook raises."""
        for implementation in self.manager.hook.verl_reward_commands.get_hookimpls():
            if implementation.plugin is module:
                try:
                    guarded(partial(implementation.function, cli))
                except LoadFailure as failure:
                    raise _failed(module.__name__, "verl_reward_commands", failure) from failure

    def notify(self, hook: str, **values: Any) -> None:
        """Call the observers of `hook` one by one. One that raises is logged and called no more."""
        implementations = getattr(self.manager.hook, hook).get_hookimpls()
        for implementation in reversed(implementations):  # pluggy's own order of calls
            key = (hook, implementation.plugin_name)
            if key in self._dropped:
                continue
            try:
                implementation.function(*(values[name] for name in implementation.argnames))
            except (Exception, SystemExit):
                # An observer must not end a step. What it raises is logged with its traceback.
                self._dropped.add(key)
                logger.exception("%s of plugin %s failed and is not called again", *key)

    def _answers(self, hook: str) -> list[tuple[str, Any]]:
        """(module name, answer) of every implementation. A hook that raises is a `PluginError`."""
        found: list[tuple[str, Any]] = []
        for module in list(self._modules):
            try:
                answers = call_hook(self.manager, module, hook)
            except LoadFailure as failure:
                raise _failed(module.__name__, hook, failure) from failure
            found.extend((module.__name__, a) for a in answers if a is not None)
        return found


def _failed(module: str, hook: str, failure: LoadFailure) -> PluginError:
    return PluginError(f"{hook} of plugin {module} fails: {failure.reason}")


def _unique(offers: Iterable[tuple[str, Any, str]], kind: str) -> dict[str, Any]:
    """(name, value, module) as name -> value; two values of one name are an error naming both."""
    found: dict[str, tuple[Any, str]] = {}
    for name, value, origin in offers:
        first = found.setdefault(name, (value, origin))
        if first[0] is not value:
            raise PluginError(
                f"{kind} {name!r} is offered by both {first[1]} and {origin}",
                hint="load only one of them",
            )
    return {name: value for name, (value, _) in found.items()}
