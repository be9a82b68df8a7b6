"""What a config may ask for inside verl, whose reward loop hands over one row and takes one number.

What verl cannot carry is refused where the config asks for it by name. Defaults that it cannot
carry are replaced, and `Carried.notes` say by what: verl has no masks, so that a row without a
reward raises, and verl gives up its prompt group. (Read in verl 0.7.1 to 0.9.1.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from verl_core.config.mount import DefaultScore, MountConfig
from verl_core.config.places import located
from verl_core.config.problems import raise_all
from verl_core.config.rewards import RewardsConfig
from verl_core.config.run import RunConfig
from verl_core.integrations.fitting import asks, learns, needs_groups, refused, replaced
from verl_core.integrations.run_rules import Own, evaluation_refusal, run_refusals
from verl_core.rewards.engine import RewardEngine
from verl_core.rewards.fusion import POLICIES
from verl_reward_sdk.errors import ConfigError

TRAINER = "verl"
_ONE_ROW = "its reward loop hands over one row at a time"
_NO_MASK = "it cannot leave a single row out"
_OWN = Own(
    TRAINER,
    gdpo="leave dataflow: out, and choose algorithm.adv_estimator in verl's config",
    kl="algorithm.use_kl_in_reward and algorithm.kl_ctrl in verl's config",
)
_OWN_TRAINER = "train with verl-reward train, or choose another"


@dataclass(frozen=True)
class Carried:
    """A config as it runs inside verl.

    Args:
        rewards: the mounts with the settings that verl can carry.
        notes: what differs from the config's defaults, for people.
    """

    rewards: RewardsConfig
    notes: tuple[str, ...]


def carried(cfg: RunConfig) -> Carried:
    """The rewards of `cfg` as verl can carry them.

    Raises:
        ConfigError: all that it asks for by name and verl cannot carry, each with its place.
    """
    raise_all([located(cfg.root, error) for error in _refusals(cfg)])
    rewards = cfg.rewards()
    changes = {mount.name: _changes(mount) for mount in rewards.mounts if not mount.is_gate}
    return Carried(replaced(rewards, changes), tuple(_notes(rewards)))


def check_engine(cfg: RunConfig, engine: RewardEngine) -> None:
    """Refuse what only the constructed parts tell.

    Raises:
        ConfigError: a provider needs whole groups or scores tokens, or the policy needs groups or
            whole steps.
    """
    raise_all([located(cfg.root, error) for error in _engine_refusals(engine)])


# -- what is refused -------------------------------------------------------------------------------


def _refusals(cfg: RunConfig) -> Iterator[ConfigError]:
    for mount in cfg.reward:
        yield from _gate_refusals(mount) if mount.is_gate else _reward_refusals(mount)
        if mount.node_class is not None:
            reason = "a RewardNode reads the step's tensors, and a reward manager has tokens only"
            hint = "score by a plugin, or train with verl-reward train"
            yield refused(mount, "node_class", TRAINER, reason, hint)
    hint = "leave it out; validation shows every mount by itself, whatever its weight"
    evaluation = evaluation_refusal(cfg, TRAINER, hint)
    if evaluation is not None:
        yield evaluation
    yield from _policy_refusals(cfg.fusion.policy, POLICIES.get(cfg.fusion.policy))
    yield from run_refusals(cfg, _OWN)


def _reward_refusals(mount: MountConfig) -> Iterator[ConfigError]:
    if asks(mount, "missing") and mount.missing != "zero":
        mean = f"it takes the mean of the row's group, and {_ONE_ROW}"
        reason = mean if mount.missing == "neutral" else _NO_MASK
        hint = "leave it out, and an abstention fails the prompt group; or write zero"
        yield refused(mount, "missing", TRAINER, reason, hint)
    if asks(mount, "on_error") and mount.on_error == "mask":
        hint = "leave it out, and a failure fails the prompt group; or write {default: x}"
        yield refused(mount, "on_error", TRAINER, _NO_MASK, hint)
    if asks(mount, "max_error_rate") and _survives_failures(mount):
        reason = f"it is a share of a step's rows, and {_ONE_ROW}"
        hint = "leave it out; under on_error: raise every failure counts"
        yield refused(mount, "max_error_rate", TRAINER, reason, hint)
    if asks(mount, "normalize") and mount.normalize != "none":
        reason = f"it needs the rows of a group or a step, and {_ONE_ROW}"
        yield refused(mount, "normalize", TRAINER, reason, "scale: brings mounts to one unit")


def _survives_failures(mount: MountConfig) -> bool:
    """Whether a failed row gets a number that the config asks for."""
    turned_zero = mount.on_error == "abstain" and mount.missing == "zero"
    return turned_zero or isinstance(mount.on_error, DefaultScore)


def _gate_refusals(gate: MountConfig) -> Iterator[ConfigError]:
    asked = [key for key in ("skip_update", "in_baseline") if getattr(gate, key)]
    asked += ["severity"] if gate.severity == "skip" else []
    for key in asked:
        reason = f"{_NO_MASK}, so that a skipped row would be trained on"
        hint = "leave it out: a veto gives the row the penalty as its reward"
        yield refused(gate, key, TRAINER, reason, hint)


def _engine_refusals(engine: RewardEngine) -> Iterator[ConfigError]:
    for name, mount in engine.mounts.items():
        if mount.provider.scope == "group":
            yield ConfigError(
                f"verl cannot carry a reward that compares the responses of a group"
                f" ({mount.source}): {_ONE_ROW}",
                path=f"reward.{name}",
                hint=_OWN_TRAINER,
            )
        if mount.provider.token_scores:
            yield ConfigError(
                f"verl cannot carry token rewards ({mount.source}): it takes one number a row",
                path=f"reward.{name}",
                hint=_OWN_TRAINER,
            )
    yield from _policy_refusals(engine.policy.name, engine.policy)


def _policy_refusals(name: str, policy: object) -> Iterator[ConfigError]:
    """Args: a policy, its class, or None."""
    if needs_groups(policy):
        reason = f"it compares the rows of a group, and {_ONE_ROW}"
    elif learns(policy):
        reason = f"it learns from the means of whole steps, and {_ONE_ROW}, in several processes"
    else:
        return
    yield ConfigError(
        f"verl cannot carry policy: {name}: {reason}",
        path="fusion.policy",
        hint="weighted_sum, weighted_mean, product and min look at one row",
    )


# -- what is replaced ------------------------------------------------------------------------------


def _changes(mount: MountConfig) -> dict[str, object]:
    """Every row without a reward is masked, and no bound is left that a batch could trip.

    Rows of unrelated prompts share a batch: one must neither lend its score to another nor fail it.
    The manager raises for masked rows, one by one.
    """
    changes: dict[str, object] = {"max_error_rate": 1.0}
    if mount.missing == "neutral":
        changes["missing"] = "mask"
    if mount.on_error == "raise":
        changes["on_error"] = "mask"
    return changes


def _notes(rewards: RewardsConfig) -> Iterator[str]:
    summed = [mount for mount in rewards.mounts if not mount.is_gate]
    raising = [mount.name for mount in summed if mount.on_error == "mask"]
    missing = [mount.name for mount in summed if mount.missing == "neutral"]
    unbound = [mount.name for mount in summed if _survives_failures(mount)]
    shut = [mount.name for mount in rewards.mounts if mount.is_gate and not mount.fail_open]
    if raising:
        yield (
            f"on_error: raise in place of mask ({', '.join(raising)}): {_NO_MASK}, so that a failed"
            " row fails its prompt group"
        )
    if missing:
        yield (
            f"an abstention fails its prompt group likewise ({', '.join(missing)}), unless"
            " missing: zero is written"
        )
    if unbound:
        yield f"no max_error_rate ({', '.join(unbound)}): {_ONE_ROW}"
    if shut:
        yield f"a row that a gate could not judge fails its prompt group ({', '.join(shut)})"
