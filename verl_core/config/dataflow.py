"""``dataflow:``: which nodes run in which stage, in the order in which it is written."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator
from typing_extensions import Self

from verl_core.config.base import Items, Model, OrForm
from verl_core.config.mount import MountConfig
from verl_core.config.mount_rules import DOTTED
from verl_core.config.names import composed
from verl_core.config.problems import Finding, refuse
from verl_reward_sdk.errors import did_you_mean, nearest

#: Stages that every run has. Others are stages of the user's own.
STAGES = ("rollout", "reward", "advantage", "update")


class NodeConfig(Model):
    """A node of one's own: ``{name, node_class, init_kwargs}``."""

    name: Annotated[str, AfterValidator(composed)]
    """What it is called in messages and logs."""
    node_class: str
    """``module.Class``, from the config's folder or an installed package."""
    init_kwargs: dict[str, Any] = Field(default_factory=dict)
    """The arguments of its constructor. Taken as written."""

    @model_validator(mode="after")
    def _dotted(self) -> Self:
        if not DOTTED.match(self.node_class):
            refuse([Finding(("node_class",), f"expected module.Class, got {self.node_class!r}")])
        return self


def _form(value: Any) -> str:
    return "node" if isinstance(value, dict | NodeConfig) else "name"


Entry = Annotated[
    Annotated[str, AfterValidator(composed), Tag("name")] | Annotated[NodeConfig, Tag("node")],
    Discriminator(_form),
    OrForm("{name: …, node_class: module.Class}"),
]
Stage = Annotated[Items[Entry], Field(min_length=1)]


def entry_name(entry: str | NodeConfig) -> str:
    """The name of a stage's entry, in whichever form it is written."""
    return entry if isinstance(entry, str) else entry.name


Dataflow = dict[str, Stage]
#: The project's own nodes, by the stage in which the document has them. `fuse` is implied.
BUILT_IN: Mapping[str, tuple[str, ...]] = {
    "rollout": ("actor", "ref_model"),
    "advantage": ("grpo", "gdpo", "gae"),
    "update": ("ppo",),
}
#: Nodes that the design names and this release does not run yet.
LATER = ("rloo",)


def default_dataflow(
    mounts: Sequence[MountConfig], *, needs_reference: bool
) -> dict[str, list[str]]:
    """The stages of a run that writes none.

    Gates follow the rewards, but for those that a reward waits for, and those that they wait for.

    Args:
        mounts: the run's.
        needs_reference: a KL term or a node reads the reference model.
    """
    early = _waited_for(mounts)
    gates = [mount.name for mount in mounts if mount.is_gate and mount.name not in early]
    rewards = [mount.name for mount in mounts if mount.name not in gates]
    flow = {"rollout": ["actor", "ref_model"] if needs_reference else ["actor"]}
    flow["reward"] = rewards or gates
    if rewards and gates:
        flow["safety"] = gates
    return flow | {"advantage": ["grpo"], "update": ["ppo"]}


def _waited_for(mounts: Sequence[MountConfig]) -> set[str]:
    """The mounts that must have scored before some reward."""
    waits = {mount.name: mount.depends_on for mount in mounts}
    found: set[str] = set()
    ahead = [name for mount in mounts if not mount.is_gate for name in mount.depends_on]
    while ahead:
        name = ahead.pop()
        if name not in found:
            found.add(name)
            ahead += waits.get(name, ())
    return found


def completed(
    flow: Mapping[str, Sequence[str | NodeConfig]],
    mounts: Sequence[MountConfig],
    *,
    needs_reference: bool,
) -> dict[str, tuple[str | NodeConfig, ...]]:
    """`flow` with the stages that it leaves out as they are in a run that writes none.

    Written stages keep their order. `rollout` comes first, the rewards behind it, then the gates;
    `advantage` stands before `update`, which is last. Nothing is put in for a stage whose name is
    misspelt, or whose nodes stand in another stage: `dataflow_findings` tells of those.

    Args:
        flow: ``dataflow:`` as it is written.
        mounts, needs_reference: as in `default_dataflow`.
    """
    spare = [stage for stage in flow if stage not in STAGES]
    placed = {entry_name(entry) for entries in flow.values() for entry in entries}
    usual = default_dataflow(mounts, needs_reference=needs_reference)
    stages: list[tuple[str, tuple[str | NodeConfig, ...]]]
    stages = [(stage, tuple(entries)) for stage, entries in flow.items()]

    def rest(stage: str) -> tuple[str, ...]:
        return tuple(name for name in usual.get(stage, ()) if name not in placed)

    def put(stage: str, entries: tuple[str, ...], *, before: str = "", behind: str = "") -> None:
        elsewhere = placed.intersection(BUILT_IN.get(stage, ()))
        if not entries or stage in flow or elsewhere or nearest(stage, spare) is not None:
            return
        names = [name for name, _ in stages]
        at = 0
        if before:
            at = names.index(before) if before in names else len(names)
        elif behind in names:
            at = names.index(behind) + 1
        stages.insert(at, (stage, entries))

    put("rollout", rest("rollout"))
    rewards, gates = rest("reward"), rest("safety")
    if "safety" in flow:  # a stage of the user's own, which is left as it is written
        rewards, gates = rewards + gates, ()
    put("reward", rewards, behind="rollout")
    if "reward" not in flow:
        put("safety", gates, behind="reward")
    put("update", rest("update"), before="the end")
    put("advantage", rest("advantage"), before="update")
    return dict(stages)


def dataflow_findings(
    flow: Mapping[str, Sequence[str | NodeConfig]], mounts: Sequence[str], nodes: Iterable[str] = ()
) -> list[Finding]:
    """Unknown and missing stages, nodes and mounts; what runs twice; what runs nowhere.

    Args:
        flow: ``dataflow:``.
        mounts: names of the run's mounts.
        nodes: names of nodes that plugins offer.
    """
    own = [name for names in BUILT_IN.values() for name in names]
    known = [*own, *mounts, *nodes]
    findings = [*_missing_stages(flow), *_entry_findings(flow, known)]
    names = {entry_name(entry) for entries in flow.values() for entry in entries}
    findings += [
        Finding(
            (),
            f"no stage runs the mount {mount!r}",
            f"as in reward: [{', '.join(mounts)}], or leave reward: out",
        )
        for mount in mounts
        if mount not in names
    ]
    return findings


def gdpo_findings(
    flow: Mapping[str, Sequence[str | NodeConfig]],
    normalized: Mapping[str, int],
    policy: str,
    *,
    kl_in_reward: bool,
) -> list[Finding]:
    """What cannot stand beside the advantage estimator `gdpo`, with places in the whole run.

    Args:
        flow: ``dataflow:``.
        normalized: mounts with a ``normalize:``, and their numbers.
        policy: ``fusion.policy``.
        kl_in_reward: whether the KL is subtracted from rewards.
    """
    if not any(entry == "gdpo" for entries in flow.values() for entry in entries):
        return []
    findings = [
        Finding(
            ("reward", index, "normalize"),
            f"gdpo normalises every mount itself, {name} too",
            "leave normalize: out, or take grpo",
        )
        for name, index in normalized.items()
    ]
    if kl_in_reward:
        why = "gdpo reads the mounts' scores, in which no KL is"
        findings.append(Finding(("algorithm", "kl_in"), why, "kl_in: loss, or take grpo"))
    if policy != "weighted_sum":
        why = f"gdpo weighs and sums the mounts itself, and would not follow {policy}"
        findings.append(Finding(("fusion", "policy"), why, "leave it out, or take grpo"))
    return findings


def _missing_stages(flow: Mapping[str, Sequence[str | NodeConfig]]) -> list[Finding]:
    findings = []
    spare = [stage for stage in flow if stage not in STAGES]
    for stage in STAGES:
        if stage in flow:
            continue
        example = f"write {stage}: [{BUILT_IN[stage][0] if stage in BUILT_IN else 'your mounts'}]"
        meant = nearest(stage, spare)
        if meant is None:
            findings.append(Finding((), f"the stage {stage!r} is missing", example))
        else:
            hint = f"did you mean {stage!r}?"
            findings.append(Finding((meant,), f"the stage {stage!r} is missing", hint))
    return findings


def _entry_findings(
    flow: Mapping[str, Sequence[str | NodeConfig]], known: Sequence[str]
) -> list[Finding]:
    findings = []
    seen: dict[str, str] = {}
    for stage, entries in flow.items():
        for index, entry in enumerate(entries):
            name, at = entry_name(entry), (stage, index)
            if name in seen:
                message = f"{name!r} runs in the stage {seen[name]!r} already"
                findings.append(Finding(at, message, "a node runs once a step"))
            elif isinstance(entry, str) and name in LATER:
                findings.append(Finding(at, f"{name!r} comes in a later release"))
            elif isinstance(entry, str) and name not in known:
                findings.append(Finding(at, f"unknown node {name!r}", did_you_mean(name, known)))
            elif isinstance(entry, NodeConfig) and name in known:
                message = f"the name {name!r} belongs to another node"
                findings.append(Finding(at, message, "give it a name of its own"))
            seen.setdefault(name, stage)
    return findings
