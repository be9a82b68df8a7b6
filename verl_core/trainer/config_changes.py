"""What the config of a resumed run says otherwise than the one that it was trained with.

Most of it may differ, and holds from then on; a person who names the wrong file must see it. Left
out are weights, which the store keeps and speaks of itself, and what changes no answer and no
gradient.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from verl_core.config import RunConfig
from verl_core.trainer.near import near
from verl_core.trainer.state_file import CONFIG

_SECTIONS = ("data", "rollout", "algorithm", "optim", "fusion")
#: How fast, not what; `optim.autocast` is told by `ModelSet`.
_ASIDE = frozenset(
    {"rollout.backend", "rollout.batch_rows", "rollout.stream", "rollout.slice_prompts"}
    | {"optim.autocast"}
)
_MOUNT_KEYS = (
    *("init_kwargs", "role", "penalty", "threshold", "severity", "skip_update", "in_baseline"),
    *("fail_open", "missing", "on_error", "normalize", "reads", "applies_to", "when", "after"),
    *("only_if", "scale", "clip"),
)
_SHORT = 40


def config_changes(cfg: RunConfig, run_dir: Path) -> str | None:
    """A line that names what `cfg` says otherwise than the config in `run_dir`; None where nothing
    is, or that file cannot be read.

    Values of a mount's keys are not shown: among them may be secrets.
    """
    try:
        was = yaml.safe_load((run_dir / CONFIG).read_bytes())
        is_now = yaml.safe_load(cfg.to_yaml())
    except (OSError, yaml.YAMLError, RecursionError):
        return None
    if not isinstance(was, Mapping):
        return None
    found = [*_mounts(was, is_now), *_settings(was, is_now)]
    if not found:
        return None
    return (
        f"the config is not the one that the run was trained with, and holds from here on: "
        f"{'; '.join(found)}"
    )


def _mounts(was: Mapping[str, Any], is_now: Mapping[str, Any]) -> Iterator[str]:
    old, new = _by_name(was), _by_name(is_now)
    for what, ours, theirs in (("added", new, old), ("removed", old, new)):
        if names := [name for name in ours if name not in theirs]:
            yield f"mounts {what}: {', '.join(names)}"
    for name in new:
        if name not in old:
            continue
        if _plugin(old[name]) != _plugin(new[name]):
            yield f"mount {name} is {_plugin(new[name])}, was {_plugin(old[name])}"
        elif keys := [key for key in _MOUNT_KEYS if old[name].get(key) != new[name].get(key)]:
            yield f"mount {name}: other {', '.join(keys)}"


def _settings(was: Mapping[str, Any], is_now: Mapping[str, Any]) -> Iterator[str]:
    if "seed" in was and was["seed"] != is_now["seed"]:
        yield f"seed is {is_now['seed']}, was {was['seed']}"
    for section in _SECTIONS:
        old, new = was.get(section), is_now[section]
        if not isinstance(old, Mapping):
            continue
        for key in new:
            path = f"{section}.{key}"
            # A key that is not there is of an older version, which did what is the default now.
            if path not in _ASIDE and key in old and old[key] != new[key]:
                yield _change(path, old[key], new[key])
    for key in ("eval_reward", "dataflow"):
        if was.get(key) != is_now.get(key):
            yield f"other {key}"


def _change(path: str, old: Any, new: Any) -> str:
    shown = [_shown(path, value) for value in (old, new)]
    if max(map(len, shown)) > _SHORT and not path.startswith("data."):
        return f"other {path}"
    return f"{path} is {shown[1]}, was {shown[0]}"


def _shown(path: str, value: Any) -> str:
    if value is None:
        return "none"
    return near(Path(str(value))) if path in ("data.train", "data.eval") else str(value)


def _by_name(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Its mounts; what is none, as in a file that somebody has edited, is passed over."""
    found = config.get("reward") or ()
    entries = [found] if isinstance(found, Mapping) else found
    return {
        str(entry.get("name") or entry.get("type")): entry
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, Mapping)
    }


def _plugin(mount: Mapping[str, Any]) -> str:
    return str(mount.get("plugin") or mount.get("node_class") or mount.get("type"))
