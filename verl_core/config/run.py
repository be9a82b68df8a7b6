"""A whole run: `RunConfig`, and `load_run_config` that reads it."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, PrivateAttr, ValidationError, model_validator
from typing_extensions import Self

from verl_core.config.base import Items, Model
from verl_core.config.dataflow import Dataflow, completed, gdpo_findings
from verl_core.config.document import dump_yaml, load_yaml
from verl_core.config.interpolate import interpolate
from verl_core.config.mount import MountConfig
from verl_core.config.mount_rules import GATE_KEYS, REWARD_KEYS
from verl_core.config.names import composed, run_name_problem
from verl_core.config.overrides import apply_overrides
from verl_core.config.places import error_at, shown_value, shows_its_defaults, tree_path
from verl_core.config.problems import Finding, problems_of, raise_all, refuse
from verl_core.config.rewards import (
    EvalRewardConfig,
    FusionConfig,
    Mounts,
    RewardsConfig,
    mount_findings,
)
from verl_core.config.sections import (
    AlgorithmConfig,
    DataConfig,
    ModelConfig,
    OptimConfig,
    RolloutConfig,
    ServerConfig,
    TrackingConfig,
    TrainerConfig,
)
from verl_core.config.tree import Node, Origin, YamlPath, wrap
from verl_reward_sdk.errors import ConfigError

#: Relative paths that count from the current folder when they come from the command line.
_PATHS: tuple[YamlPath, ...] = (("data", "train"), ("data", "eval"))
_MODELS: tuple[YamlPath, ...] = (("model", "path"), ("model", "critic"))

#: Advantage estimators that compare the responses of a prompt.
_COMPARING = ("grpo", "gdpo")


@shows_its_defaults
class RunConfig(Model):
    """The YAML of a run."""

    name: Annotated[str, AfterValidator(composed)]
    """The run's name, and its folder's under `output`. By default the file's name."""
    seed: int = Field(default=0, ge=0, lt=1 << 32)
    """Of every random draw."""
    base_dir: Annotated[Path, Field(strict=False)]
    """What relative paths count from. By default the YAML's own folder."""
    model: ModelConfig
    """What is trained."""
    data: DataConfig
    """Its prompts."""
    reward: Mounts
    """The mounts: one mapping, or a list of them."""
    eval_reward: EvalRewardConfig | None = None
    """What evaluation scores by: a mount, a list of mounts, or ``{reward: …, fusion: …}``. By
    default `reward` and `fusion` with the weights of step 0."""
    fusion: FusionConfig = FusionConfig()
    """How mounts become one reward."""
    dataflow: Dataflow | None = None
    """Stages and their nodes; left out, they follow from the rest."""
    rollout: RolloutConfig = RolloutConfig()
    """How responses are sampled."""
    algorithm: AlgorithmConfig = AlgorithmConfig()
    """How the policy is updated."""
    optim: OptimConfig = OptimConfig()
    """The optimizer."""
    trainer: TrainerConfig = TrainerConfig()
    """The loop."""
    server: ServerConfig = ServerConfig()
    """The control plane."""
    tracking: TrackingConfig = TrackingConfig()
    """What is written beside the metrics."""
    plugins: Items[str] = ()
    """Extension plugins to load."""
    output: str = Field(default="runs", min_length=1)
    """Where run folders are made; relative to the current folder."""

    _root: Node | None = PrivateAttr(default=None)
    _source: Path | None = PrivateAttr(default=None)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        self._complete_dataflow()
        findings = mount_findings(self.reward, self.fusion, ("reward",))
        problem = run_name_problem(self.name)
        if problem:
            findings.append(Finding(("name",), problem, "write name: in the file, or name=…"))
        if all(mount.is_gate for mount in self.reward):
            findings.append(Finding(("reward",), "there are only gates, nothing gives a reward"))
        if self.eval_reward is not None:
            fusion = self.eval_reward.fusion or self.fusion
            findings += mount_findings(self.eval_reward.reward, fusion, ("eval_reward", "reward"))
        findings += gdpo_findings(
            self.dataflow or {},
            {m.name: i for i, m in enumerate(self.reward) if m.normalize != "none"},
            self.fusion.policy,
            kl_in_reward=self.algorithm.kl_coef > 0 and self.algorithm.kl_in == "reward",
        )
        findings += _group_findings(self.dataflow, self.rollout.n)
        refuse(findings)
        return self

    def _complete_dataflow(self) -> None:
        if self.dataflow is None:
            return
        needs_reference = self.algorithm.kl_coef > 0 or any(m.node_class for m in self.reward)
        flow = completed(self.dataflow, self.reward, needs_reference=needs_reference)
        # The model is frozen for those who get it, and this is before anybody does.
        object.__setattr__(self, "dataflow", flow)

    @property
    def source(self) -> Path:
        """The file that it was read from; `base_dir` where it was built in Python."""
        return self._source or self.base_dir

    @property
    def root(self) -> Node:
        """The tree that it was read from (overrides included), for places of errors."""
        return self._root or wrap(self.model_dump(mode="json"), Origin(str(self.source)))

    def rewards(self) -> RewardsConfig:
        """What training scores by."""
        return RewardsConfig(mounts=self.reward, fusion=self.fusion, base_dir=self.base_dir)

    def eval_rewards(self) -> RewardsConfig:
        """What evaluation scores by: `eval_reward`, or `reward` where there is none.

        Schedules are kept; evaluation reads them at step 0.
        """
        if self.eval_reward is None:
            return self.rewards()
        fusion = self.eval_reward.fusion or self.fusion
        return RewardsConfig(mounts=self.eval_reward.reward, fusion=fusion, base_dir=self.base_dir)

    def locate(self, path: str | YamlPath) -> tuple[int, int] | None:
        """Line and column of a YAML path (``reward.tone.weight``), or of its nearest parent.

        None where it came from the command line, or the config from Python.
        """
        problem = self.error(path, "")
        if problem.line is None or problem.column is None:
            return None
        return problem.line, problem.column

    def error(self, path: str | YamlPath, message: str, *, hint: str = "") -> ConfigError:
        """A `ConfigError` that points at a YAML path: file, line, column, mounts by name."""
        root = self.root
        keys = tree_path(root, path) if isinstance(path, str) else path
        return error_at(root, keys, message, hint=hint)

    def to_yaml(self) -> str:
        """The resolved config; `load_run_config` reads the same values back, from any folder.

        Secrets among the arguments of plugins are left out, once `provider_config` has read them
        (`verl_core.config.secrets`): they must be given again.
        """
        data = self.model_dump(mode="json", exclude={"reward", "eval_reward", "dataflow"})
        written: dict[str, Any] = {}
        for key, value in data.items():
            written[key] = value
            if key == "data":
                written["reward"] = [_mount_form(mount) for mount in self.reward]
                written["eval_reward"] = self._eval_form()
        if self.dataflow is not None:
            written["dataflow"] = {
                stage: [
                    entry if isinstance(entry, str) else entry.model_dump(mode="python")
                    for entry in entries
                ]
                for stage, entries in self.dataflow.items()
            }
        return dump_yaml(written)

    def _eval_form(self) -> dict[str, Any] | None:
        if self.eval_reward is None:
            return None
        mounts = [_mount_form(mount) for mount in self.eval_reward.reward]
        fusion = self.eval_reward.fusion
        return {"reward": mounts} | ({"fusion": fusion.model_dump()} if fusion else {})


def _group_findings(flow: Dataflow | None, responses: int) -> list[Finding]:
    """Refuse advantages that compare the responses of a prompt where there is one of each."""
    if responses > 1:
        return []
    entries = ["grpo"] if flow is None else [entry for stage in flow.values() for entry in stage]
    name = next((entry for entry in entries if entry in _COMPARING), None)
    if name is None:
        return []
    message = (
        f"must be at least 2 for {name}, got {responses}: it compares the responses of a prompt,"
        " and every advantage would be 0"
    )
    return [Finding(("rollout", "n"), message, "or take gae, which needs no group, in dataflow:")]


def _mount_form(mount: MountConfig) -> dict[str, Any]:
    """A mount as YAML; keys of the other role, and those that say nothing, are left out."""
    other_role = REWARD_KEYS if mount.is_gate else GATE_KEYS
    data = mount.model_dump(mode="json", exclude_none=True, exclude=set(other_role))
    if mount.init_kwargs:
        data["init_kwargs"] = mount.shown_kwargs()
    return {key: value for key, value in data.items() if value not in ([], {})}


def load_run_config(path: Path, overrides: Sequence[str] = ()) -> RunConfig:
    """Read a run's YAML, then ``key=value`` overrides.

    Args:
        path: the YAML file.
        overrides: as they were typed, in order; the last one of a key wins.

    Raises:
        ConfigError: all that is wrong with them, one line each: ``file:line:column: path: …``.
    """
    path = Path(os.path.abspath(path))
    root = load_yaml(path)
    if not isinstance(root.value, dict):
        message = f"expected a mapping (key: value) of a run's settings, got {shown_value(root)}"
        raise root.origin.error(message)
    problems = apply_overrides(root, overrides)
    problems += interpolate(root, os.environ)
    base_dir = _complete(root, path)
    _from_current_folder(root)
    try:
        config = RunConfig.model_validate(root.unwrap(), context={"base_dir": base_dir})
    except ValidationError as error:
        known = {(one.file, one.line, one.column) for one in problems}
        problems += [
            one
            for one in problems_of(error, RunConfig, root)
            if (one.file, one.line, one.column) not in known
        ]
        raise_all(problems)
        raise
    raise_all(problems)
    config._root, config._source = root, path
    return config


def _complete(root: Node, path: Path) -> Path:
    """Put in what follows from the file's own place; gives the base folder."""
    assert isinstance(root.value, dict)
    origin = Origin(str(path), 1, 1)
    for section in ("model", "data"):
        # so that the error names the key that is missing: model.path, data.train
        if root.value.get(section) is None:
            root.value[section] = Node({}, origin)
    stem = re.sub(r"[^\w.-]+", "-", composed(path.stem)).lstrip(".-").rstrip(".") or "run"
    root.value.setdefault("name", Node(stem, origin))
    given = root.value.get("base_dir")
    text = given.value if given is not None and isinstance(given.value, str) else "."
    typed = given is not None and given.origin.path is not None
    above = Path.cwd() if typed else path.parent
    base_dir = Path(os.path.normpath(above / Path(text).expanduser()))
    if given is None or isinstance(given.value, str):
        root.value["base_dir"] = Node(str(base_dir), given.origin if given else origin)
    return base_dir


def _from_current_folder(root: Node) -> None:
    """Make paths absolute that were typed on the command line."""
    for path in (*_PATHS, *_MODELS):
        node, depth = root.find(path)
        if depth < len(path) or node.origin.path is None or not isinstance(node.value, str):
            continue
        typed = Path(node.value).expanduser()
        if path in _PATHS or typed.is_dir():
            node.value = os.path.abspath(typed)
