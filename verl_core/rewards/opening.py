"""What a run begins with when the file of its weights is opened: the first time, again, or lost.

When a store is opened again:

- the same run: the store's weights, bases and pins stand, whatever the config says now. A mount
  that is new in the config joins with the config's weight, one that is gone leaves, both as one
  revision by the author ``config``; a base that differs is logged, and not taken.
- another run in the same file: it starts from its own config, as the next revision.
- a run whose file was lost, or put back from an old copy (`KeptWeights` tells): its checkpoint's
  weights, as a revision above every one that the run is known to have had.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from datetime import datetime, timezone

from verl_core.rewards.persistence import RevisionLog
from verl_core.rewards.revisions import Dial, Dials, KeptWeights, Record
from verl_core.rewards.schedules import Setting, parse_schedule, setting_form
from verl_core.rewards.setting_text import setting_text
from verl_core.rewards.weight_rules import WeightError, WeightRules
from verl_reward_sdk.errors import ConfigError

logger = logging.getLogger(__name__)

_CONFIG, _CHECKPOINT = "config", "checkpoint"


class Opening:
    """Finds or makes the revision that a run begins with, inside a transaction.

    Args:
        log: the file.
        rules: what the weights may be.
        run_id: the run.

    Attributes:
        lost: what a person must be told where the file lacked revisions of the run, else None.
    """

    def __init__(self, log: RevisionLog, rules: WeightRules, run_id: str) -> None:
        self.log, self.rules, self.run_id = log, rules, run_id
        self.lost: str | None = None

    def begin(self, config: Dials, kept: KeptWeights | None) -> tuple[Record, int]:
        """The run's newest revision, written now where it has none or its mounts have changed; and
        the step in progress."""
        own = self.log.latest(self.run_id)
        last = self.log.last_step(self.run_id)
        step = 0 if last is None else last
        missed = None if kept is None else self._missed(own, kept)
        if kept is not None and missed is not None:
            return self._recover(config, own, kept, missed), max(step, kept.step)
        if own is None:
            self._accept(config, 0)
            return append(self.log, self.run_id, config, _CONFIG, "start of the run", 0), step
        dials = {name: own.dials.get(name, dial) for name, dial in config.items()}
        _warn_of_bases(config, own.dials)
        effective = 0 if last is None else last + 1
        self._accept(dials, effective)
        if list(dials) == list(own.dials):
            return own, step
        said = _mounts_changed(own.dials, dials)
        return append(self.log, self.run_id, dials, _CONFIG, said or "reordered", effective), step

    def _missed(self, own: Record | None, kept: KeptWeights) -> str | None:
        same = None if kept.record is None else self.log.get(kept.record.revision)
        return kept.missed(own, same if same is None or same.run_id == self.run_id else None)

    def _recover(self, config: Dials, own: Record | None, kept: KeptWeights, missed: str) -> Record:
        """A new revision with the checkpoint's weights, above all that the run had.

        It is in force from step 0 where it is the run's first, so that an earlier checkpoint can
        be resumed from too.
        """
        whose = f"the checkpoint of step {kept.step}"
        if kept.record is not None:
            dials = {name: kept.record.dials.get(name, dial) for name, dial in config.items()}
            source = f"revision {kept.record.revision} from {whose}"
            _warn_of_bases(config, kept.record.dials)
            changed = _mounts_changed(kept.record.dials, dials)
        else:
            dials, changed = dict(config), ""
            source = f"the config ({whose} keeps no weights)"
        last = None if own is None else self.log.last_step(self.run_id)
        effective = 0 if last is None else last + 1
        self._accept(dials, max(effective, kept.step + 1))
        reason = f"weights.db was lost ({missed}): the weights are those of {source}"
        reason = "; ".join(filter(None, (reason, changed)))
        record = append(
            self.log, self.run_id, dials, _CHECKPOINT, reason, effective, above=kept.revision
        )
        self.lost = (
            f"weights.db was lost: {missed}. The run goes on with the weights of {source}, as "
            f"revision {record.revision}; what was changed after step {kept.step} is gone"
        )
        return record

    def _accept(self, dials: Dials, step: int) -> None:
        try:
            self.rules.judge(dials, step)
        except WeightError as error:
            kept = self.log.latest(self.run_id)
            if kept is None:
                raise ConfigError(str(error), path="reward") from error
            raise ConfigError(
                f"revision {kept.revision}, with which the run would go on, is refused: {error}",
                file=self.log.path,
                hint="resume with the config that it ran with, or begin a new run",
            ) from error


def append(
    log: RevisionLog,
    run_id: str,
    dials: Dials,
    author: str,
    reason: str | None,
    effective: int,
    *,
    above: int = 0,
) -> Record:
    """Write the next revision, inside a transaction; its number is also higher than `above`."""
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    record = Record(
        revision=max(log.newest_revision(), above) + 1,
        run_id=run_id,
        time=now.replace("+00:00", "Z"),
        author=author,
        reason=reason,
        effective_step=effective,
        dials=dials,
    )
    log.append(record)
    return record


def _warn_of_bases(config: Dials, ours: Dials) -> None:
    for name, dial in config.items():
        if name in ours and ours[name].base != dial.base:
            pin, started = ours[name].pin, setting_text(setting_form(ours[name].base))
            kept = f"{started}, with which it started"
            if pin is not None:
                kept = f"the live weight {pin:g}, which is pinned over {started}"
            logger.warning(
                "reward.%s.weight is %s in the config now; the run keeps %s: change it with"
                " `verl-reward weights set`",
                name,
                setting_text(setting_form(dial.base)),
                kept,
            )


def _mounts_changed(before: Dials, after: Dials) -> str:
    """Which mounts came and went, in words; empty where none did."""
    added = [name for name in after if name not in before]
    gone = [name for name in before if name not in after]
    said = [f"{what}: {', '.join(n)}" for what, n in (("added", added), ("removed", gone)) if n]
    return "; ".join(said)


def config_dials(weights: Mapping[str, Setting]) -> dict[str, Dial]:
    """The weights of a config, in its order.

    Raises:
        ConfigError: one is no weight.
    """
    return {name: Dial(_config_setting(name, setting)) for name, setting in weights.items()}


def _config_setting(name: str, setting: object) -> Setting:
    try:
        return parse_schedule(setting)
    except ValueError as error:
        raise ConfigError(str(error), path=f"reward.{name}.weight") from error
