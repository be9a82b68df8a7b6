"""``--check``: what can be found wrong from config, data and plugins, with no model loaded.

`check_run` collects; it raises nothing. What needs a model or a port (token counts, a taken port, a
hub id that nobody knows, a fusion policy) is checked by the trainer before it loads weights.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from verl_core.config.condition import ConditionError, parse_condition
from verl_core.config.data import DataRow, read_rows, require_columns
from verl_core.config.dataflow import NodeConfig, dataflow_findings
from verl_core.config.mount import MountConfig
from verl_core.config.node_class import node_class_problem
from verl_core.config.places import error_at
from verl_core.config.provider import provider_config
from verl_core.config.run import RunConfig
from verl_core.config.tree import Node, YamlPath
from verl_reward_sdk.errors import ConfigError, nearest

if TYPE_CHECKING:
    from verl_core.plugins import PluginRegistry

_HUB_ID = re.compile(r"[\w][\w.-]*(/[\w][\w.-]*)?")


@dataclass(frozen=True)
class Examined:
    """A run that was looked at.

    Args:
        problems: everything that is wrong with it, each with its place.
        train: rows of the training file; none where it cannot be read.
        held_out: rows of the evaluation file; none where there is no such file.
    """

    problems: Sequence[ConfigError]
    train: Sequence[DataRow]
    held_out: Sequence[DataRow]


def examine(config: RunConfig, registry: PluginRegistry) -> Examined:
    """`check_run`, and the rows that it has read for that, so that nobody reads them again."""
    check = _Check(config, registry)
    problems = check.problems()
    return Examined(problems, check.rows.get("train", ()), check.rows.get("eval", ()))


def check_run(config: RunConfig, registry: PluginRegistry) -> list[ConfigError]:
    """Everything that is wrong with a run, each with its place; empty where nothing is.

    Plugins that the config names are imported; models are not, nor is torch.
    """
    return _Check(config, registry).problems()


class _Check:
    def __init__(self, config: RunConfig, registry: PluginRegistry) -> None:
        self.config = config
        self.registry = registry
        self.root: Node = config.root
        self.found: list[ConfigError] = []
        self.rows: dict[str, Sequence[DataRow]] = {}

    def problems(self) -> list[ConfigError]:
        self.extensions()
        train = self.mounts(self.config.reward, ("reward",))
        evaluation = train
        if self.config.eval_reward is not None:
            evaluation = self.mounts(self.config.eval_reward.reward, ("eval_reward", "reward"))
        self.dataflow()
        for key in ("path", "critic"):
            self.model(key)
        self.data("train", train, self.config.reward)
        eval_mounts = self.config.eval_rewards().mounts
        self.data("eval", evaluation, eval_mounts)
        return self.found

    def say(self, path: YamlPath, message: str, hint: str = "") -> None:
        self.found.append(error_at(self.root, path, message, hint=hint))

    def keep(self, path: YamlPath, error: ConfigError) -> None:
        """Note an error of somebody else's, at `path` unless it names a place of its own."""
        for one in getattr(error, "problems", ()) or (error,):
            place = error_at(self.root, path, "")
            self.found.append(
                one.with_location(
                    file=place.file, line=place.line, column=place.column, path=place.path
                )
            )

    def extensions(self) -> None:
        for index, name in enumerate(self.config.plugins):
            self.extension(name, ("plugins", index))

    def extension(self, name: str, at: YamlPath) -> None:
        try:
            self.registry.load_extensions([name])
        except ConfigError as error:
            self.keep(at, error)

    def mounts(self, mounts: Sequence[MountConfig], at: YamlPath) -> dict[str, list[str]]:
        """Check every mount; gives the columns that are read, with the mounts that read them."""
        needed: dict[str, list[str]] = {}
        for index, mount in enumerate(mounts):
            place = (*at, index)
            columns = set(mount.reads)
            if mount.applies_to is not None:
                columns |= parse_condition(mount.applies_to).names
            try:
                if mount.plugin is not None:
                    columns |= self.plugin(mount, place)
                elif mount.node_class is not None:
                    self.node_class(mount.node_class, place)
            except ConfigError as error:
                self.keep(place, error)
            for column in sorted(columns):
                needed.setdefault(column, []).append(mount.name)
        return needed

    def plugin(self, mount: MountConfig, at: YamlPath) -> frozenset[str]:
        """The columns that a plugin's provider reads, once it is found and configured."""
        assert mount.plugin is not None
        try:
            self.registry.check(mount.plugin)
            provider = self.registry.provider(mount.plugin)
        except ConfigError as error:
            self.keep((*at, "plugin"), error)
            return frozenset()
        settings = provider_config(
            provider.Config, mount, self.config.base_dir, root=self.root, at=at
        )
        try:
            return frozenset(provider(settings).reads)
        except ConfigError:
            raise
        except Exception as error:
            message = f"the plugin {mount.plugin!r} raised {type(error).__name__}: {error}"
            raise ConfigError(message, hint="this is a fault of the plugin") from error

    def node_class(self, name: str, at: YamlPath) -> None:
        problem = node_class_problem(name, self.config.base_dir)
        if problem is not None:
            self.keep((*at, "node_class"), problem)

    def dataflow(self) -> None:
        flow = self.config.dataflow
        if flow is None:
            return
        try:
            nodes: Iterable[str] = self.registry.nodes()
        except ConfigError as error:
            self.keep(("dataflow",), error)
            nodes = ()
        names = [mount.name for mount in self.config.reward]
        for finding in dataflow_findings(flow, names, nodes):
            self.say(("dataflow", *finding.path), finding.message, finding.hint)
        for stage, entries in flow.items():
            for index, entry in enumerate(entries):
                if isinstance(entry, NodeConfig):
                    self.node_class(entry.node_class, ("dataflow", stage, index))

    def model(self, key: str) -> None:
        text = getattr(self.config.model, key)
        if text is None or Path(text).is_dir():
            return
        at = ("model", key)
        if Path(text).exists():
            self.say(at, f"{text!r} is a file", "a folder in Hugging Face format is needed")
        elif _HUB_ID.fullmatch(text) is None:
            message = f"{text!r} is neither a folder nor a hub id (owner/name)"
            self.say(at, message, _near_folder(self.config.base_dir / text))

    def data(
        self, key: str, needed: Mapping[str, Sequence[str]], mounts: Sequence[MountConfig]
    ) -> None:
        path: Path | None = getattr(self.config.data, key)
        if path is None:
            return
        try:
            rows = read_rows(path, prompt_key=self.config.data.prompt_key)
        except ConfigError as error:
            self.keep(("data", key), error)
            return
        self.rows[key] = rows
        try:
            require_columns(rows, sorted(needed), needed)
        except ConfigError as error:
            self.keep(("data", key), error)
        for mount in mounts:
            self.condition(mount, rows)

    def condition(self, mount: MountConfig, rows: Sequence[DataRow]) -> None:
        """Ask `applies_to` about every row: a value without an order shows here, not in step 90."""
        if mount.applies_to is None:
            return
        condition = parse_condition(mount.applies_to)
        row = rows[0]
        try:
            for row in rows:
                condition(row.columns)
        except ConditionError as error:
            message = f"{mount.name!r} cannot apply {mount.applies_to!r} to this row: {error}"
            self.found.append(ConfigError(message, file=row.source, line=row.line))


def _near_folder(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_dir()]
    except OSError:
        return f"there is no folder {path.parent}"
    match = nearest(path.name, names)
    return f"did you mean {str(path.parent / match)!r}?" if match else ""
