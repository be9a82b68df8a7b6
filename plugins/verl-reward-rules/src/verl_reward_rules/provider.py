"""The reward ``rules``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ConfigDict

from verl_reward_sdk import AssetPath, ProviderConfig, RewardBatch, RewardProvider, RewardResult

if TYPE_CHECKING:
    from verl_reward_rules.ruleset import RuleSet


class RulesConfig(ProviderConfig):
    """Where the rules are."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    rules: AssetPath
    """The rule file (YAML); its form is in the plugin's README."""


class Rules(RewardProvider[RulesConfig]):
    """A score from rules in a YAML file: points for what holds, and duties that must be kept.

    Every row is scored: a response that no rule likes is a bad one, not an unknown one. The row's
    reason names the rules that fired; the extra columns tell for each rule where it holds (1 or 0).
    """

    name = "rules"

    def __init__(self, config: RulesConfig) -> None:
        super().__init__(config)
        self._ruleset: RuleSet | None = None

    @property
    def score_range(self) -> tuple[float, float]:
        """``min`` and ``max`` of the rule file, which is read for it if it was not yet."""
        rules = self._ruleset or self._load()
        return rules.low, rules.high

    def assets(self) -> tuple[Path, ...]:
        return (self.config.rules,)

    def setup(self) -> None:
        self._load()

    def score(self, batch: RewardBatch) -> RewardResult:
        rules = self._ruleset or self._load()
        outcome = rules.evaluate(batch)
        return RewardResult(
            scores=outcome.scores,
            reasons={
                row: "; ".join(rule.told for rule in fired) or "no rule fired"
                for row, fired in enumerate(outcome.fired)
            },
            extras={name: held.astype(float).tolist() for name, held in outcome.holds.items()},
        )

    def _load(self) -> RuleSet:
        # PyYAML and RE2 come with this import, hence not before it is needed.
        from verl_reward_rules.load import load_rules

        self._ruleset = load_rules(self.config.rules)
        return self._ruleset
