"""What must hold between the keys of one mount."""

from __future__ import annotations

import re

from verl_core.config.condition import ConditionError, parse_condition
from verl_core.config.limits import MAX_RETRY_WAIT
from verl_core.config.mount_keys import MountKeys
from verl_core.config.names import RESERVED, mount_name_problem
from verl_core.config.problems import Finding

#: Keys that say something about a gate only, and about a summed reward only.
GATE_KEYS = (
    "penalty",
    "threshold",
    "severity",
    "skip_update",
    "in_baseline",
    "fail_open",
)
REWARD_KEYS = ("weight", "missing", "on_error", "max_error_rate", "normalize")
RETRY_WAIT = MountKeys.model_fields["retry_wait"].default
DOTTED = re.compile(r"^[^\W\d]\w*(\.[^\W\d]\w*)+$")


def findings_of(mount: MountKeys) -> list[Finding]:
    """All that is inconsistent in a mount whose keys are right one by one."""
    return [
        *_name_findings(mount),
        *_source_findings(mount),
        *_role_findings(mount),
        *_condition_findings(mount),
        *_value_findings(mount),
        *_call_findings(mount),
        *_reload_findings(mount),
        *execution_findings(mount, mount.execution),
    ]


def _name_findings(mount: MountKeys) -> list[Finding]:
    problem = mount_name_problem(mount.name)
    if not problem:
        return []
    other = f"{mount.name}_score" if mount.name in RESERVED else "tone"
    return [Finding((), problem, f"call it something else, as in name: {other}")]


def _source_findings(mount: MountKeys) -> list[Finding]:
    if mount.plugin is not None and mount.node_class is not None:
        return [Finding(("node_class",), "plugin: and node_class: exclude each other")]
    if mount.plugin is None and mount.node_class is None:
        return [
            Finding(
                (),
                f"nothing says what scores {mount.name!r}",
                "give plugin: (verl-reward list shows what is installed) or node_class:",
            )
        ]
    if mount.node_class is not None and not DOTTED.match(mount.node_class):
        return [Finding(("node_class",), f"expected module.Class, got {mount.node_class!r}")]
    return []


def _role_findings(mount: MountKeys) -> list[Finding]:
    given = mount.model_fields_set
    if not mount.is_gate:
        return [
            Finding(
                (key,), f"{key}: is a gate's, and {mount.name!r} is none", "role: gate makes it one"
            )
            for key in GATE_KEYS
            if key in given
        ]
    findings = [
        Finding(
            (key,),
            f"a gate has no {key}",
            "its penalty: is what counts" if key == "weight" else "fail_open: decides for a gate",
        )
        for key in REWARD_KEYS
        if key in given
    ]
    if mount.penalty is None:
        hint = "give penalty: a number below 0, in units of the fused reward"
        findings.append(Finding((), f"the gate {mount.name!r} has no penalty", hint))
    return findings


def _condition_findings(mount: MountKeys) -> list[Finding]:
    findings = []
    for key in ("applies_to", "when", "only_if"):
        text = getattr(mount, key)
        if text is None or (key == "only_if" and text == "open"):
            continue
        try:
            parse_condition(text)
        except ConditionError as error:
            findings.append(Finding((key,), f"no condition: {error}"))
    if mount.only_if is not None and not mount.after:
        hint = "after: [names of the mounts that it asks first]"
        findings.append(Finding(("only_if",), "only_if: needs after:", hint))
    return findings


def _value_findings(mount: MountKeys) -> list[Finding]:
    findings = []
    if mount.scale == 0:
        findings.append(Finding(("scale",), "must not be 0", "weight: 0 turns a mount off"))
    if mount.clip is not None and mount.clip[0] >= mount.clip[1]:
        low, high = mount.clip
        findings.append(Finding(("clip",), f"{low:g} is not below {high:g}"))
    findings += [
        Finding(("safe_globals", index), f"expected module.Class, got {name!r}")
        for index, name in enumerate(mount.safe_globals)
        if not DOTTED.match(name)
    ]
    return findings


def execution_findings(mount: MountKeys, execution: str | None) -> list[Finding]:
    """What a mount that runs as `execution` cannot have.

    Args:
        execution: as written, or None; or, once the provider is known, where it really runs.
    """
    findings = []
    if execution == "inline":
        findings += _inline_findings(mount)
    if mount.node_class is not None and execution == "process":
        why = "a node_class is given the step's tensors, which stay in the trainer's process"
        findings.append(Finding(("execution",), why, "write thread or inline, or make it a plugin"))
    return findings


def _inline_findings(mount: MountKeys) -> list[Finding]:
    wrong = {
        "workers": (mount.workers, "it has no workers: it runs in its caller's thread"),
        "retries": (mount.retries, "it has no deadline to retry within, and its caller would wait"),
        "host": (mount.host, "it would hold its caller up until the host has a free slot"),
    }
    hint = "execution: thread gives it threads of its own"
    return [
        Finding((key,), f"{key}: is not for an inline mount: {why}", hint)
        for key, (value, why) in wrong.items()
        if value
    ]


def _call_findings(mount: MountKeys) -> list[Finding]:
    findings = []
    if mount.retry_wait != RETRY_WAIT and not mount.retries:
        hint = "retries: 2 tries a failed call twice more"
        findings.append(Finding(("retry_wait",), "retry_wait: needs retries:", hint))
    if mount.retries:
        findings += _retry_findings(mount)
    if mount.node_class is not None and mount.cache is not None:
        why = "a node_class is given the step's tensors, which are no part of what is cached"
        findings.append(Finding(("cache",), why, "leave cache: out, or make it a plugin"))
    return findings


def _reload_findings(mount: MountKeys) -> list[Finding]:
    if mount.node_class is None or mount.reload == "blocking":
        return []
    why = (
        "a node_class is built with the config's folder as working directory, which is the whole"
        " process's: the run waits for it"
    )
    return [Finding(("reload",), why, "leave reload: out, or make it a plugin")]


def _retry_findings(mount: MountKeys) -> list[Finding]:
    """A pause that would not be as it is written, or that leaves no time for a retry."""
    wait, timeout = mount.retry_wait, mount.timeout
    at = "retry_wait" if "retry_wait" in mount.model_fields_set else "retries"
    ends = f"timeout ends the call, its retries included, after {timeout:g} s"
    if min(wait, MAX_RETRY_WAIT) >= timeout:
        what = f"no retry can begin in time: the first waits at least {wait:g} s, and {ends}"
        return [Finding((at,), what, "shorten retry_wait:, or raise timeout:")]
    if wait > MAX_RETRY_WAIT:
        what = f"no retry waits longer than {MAX_RETRY_WAIT:g} s, got {wait:g} ({ends})"
        return [Finding((at,), what, f"write {MAX_RETRY_WAIT:g} or less")]
    return []
