"""KL in reward is paid once: a RewardNode that pays it too is refused, however it is written."""

from __future__ import annotations

import pytest

from verl_core.trainer.reward import RewardNode, uses_kl_penalty
from verl_reward_sdk import ConfigError, RewardError

KL = ("algorithm.kl_coef=0.1", "algorithm.kl_in=reward", "trainer.steps=1")
SEEN = {
    "plain": """
    def compute_reward(self, batch):
        return -self._compute_kl_penalty(batch)
""",
    "decorated": """
    @torch.no_grad()
    def compute_reward(self, batch):
        return -self._compute_kl_penalty(batch)
""",
    "decorated without a trace": """
    @quiet
    def compute_reward(self, batch):
        return -self._compute_kl_penalty(batch)
""",
    "in a comprehension": """
    def compute_reward(self, batch):
        return sum([-self._compute_kl_penalty(batch) for _ in range(1)])
""",
    "in a closure": """
    def compute_reward(self, batch):
        pay = lambda: -self._compute_kl_penalty(batch)
        return pay()
""",
    "by name": """
    def compute_reward(self, batch):
        return -getattr(self, "_compute_kl_penalty")(batch)
""",
    "in a property": """
    @property
    def penalty(self):
        return self._compute_kl_penalty

    def compute_reward(self, batch):
        return -self.penalty(batch)
""",
    "in a static method": """
    @staticmethod
    def pay(node, batch):
        return -node._compute_kl_penalty(batch)

    def compute_reward(self, batch):
        return self.pay(self, batch)
""",
}
HEAD = """
import torch
from verl_core.trainer.reward import RewardNode

def pay(node, batch):
    return -node._compute_kl_penalty(batch)

def quiet(method):
    def called(self, batch):
        return method(self, batch)
    return called

class PaysNode(RewardNode):
"""
BY_ANOTHER = """
    def compute_reward(self, batch):
        return pay(self, batch)
"""


@pytest.fixture
def node_run(tiny_run, fresh_imports):
    """Trains one step with a node of that body."""

    def train(body, *settings):
        (tiny_run.folder / "pays.py").write_text(HEAD + body, "utf-8")
        tiny_run.config["reward"] = [{"type": "custom", "node_class": "pays.PaysNode"}]
        return tiny_run.train(*KL, *settings)

    return train


@pytest.mark.parametrize("form", SEEN)
def test_a_node_that_pays_kl_is_refused_before_a_model_is_loaded(node_run, form):
    with pytest.raises(ConfigError, match=r"PaysNode subtracts a KL penalty.*allow_double_kl"):
        node_run(SEEN[form])


def test_one_whose_helper_pays_it_is_refused_when_it_does(node_run):
    with pytest.raises(RewardError, match="the KL would be paid twice"):
        node_run(BY_ANOTHER, "trainer.reward_retries=0")


def test_it_may_pay_where_the_config_allows_it_or_the_trainer_does_not(node_run):
    assert node_run(BY_ANOTHER, "algorithm.allow_double_kl=true").is_dir()
    assert node_run(BY_ANOTHER, "algorithm.kl_in=loss").is_dir()


def test_a_node_that_does_not_pay_is_none_that_does():
    class Plain(RewardNode):
        factor = property(lambda self: 2.0)

        def compute_reward(self, batch):
            return batch["response_mask"].sum(dim=1) * self.factor

    assert not uses_kl_penalty(Plain)
