"""The seam for rewards of one's own: what a node is given, and what becomes of what it returns."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.trainer.reward import NodeProvider, RewardNode, TensorShelf, uses_kl_penalty
from verl_reward_sdk import ContractError, RewardBatch

IDS = ["s0", "s1", "s2", "s3"]


class Says(RewardNode):
    """Answers what a test wants, and remembers what it was given."""

    def __init__(self, answer):
        self.answer = answer

    def compute_reward(self, batch):
        self.given = batch
        return self.answer(batch)


class PaysKL(RewardNode):
    def compute_reward(self, batch):
        return self._penalty(batch)

    def _penalty(self, batch):
        return -self._compute_kl_penalty(batch)


class PaysToo(PaysKL):
    def compute_reward(self, batch):
        return torch.zeros(len(batch["responses"]))


@pytest.fixture
def shelf():
    shelf = TensorShelf()
    shelf.lay(IDS, {"response_mask": torch.arange(8).reshape(4, 2)})
    return shelf


def batch_of(ids, **columns):
    texts = [f"answer {sample_id}" for sample_id in ids]
    return RewardBatch(sample_ids=ids, prompts=texts, responses=texts, columns=columns)


@given(st.lists(st.sampled_from(IDS), unique=True, min_size=1))
def test_any_slice_in_any_order_finds_its_own_rows(ids):
    shelf = TensorShelf()
    shelf.lay(IDS, {"x": torch.arange(4)})
    assert shelf.take(ids)["x"].tolist() == [IDS.index(sample_id) for sample_id in ids]


def test_what_a_node_does_to_its_tensors_stays_with_the_node(shelf):
    shelf.take(["s1"])["response_mask"].zero_()
    assert shelf.take(["s1"])["response_mask"].tolist() == [[2, 3]]


def test_rows_that_no_rollout_made_are_refused_by_their_id(shelf):
    with pytest.raises(ContractError, match="s9"):
        shelf.take(["s0", "s9"])


def test_a_node_gets_tensors_responses_and_the_columns_that_it_asked_for(shelf):
    node = Says(lambda batch: torch.tensor([0.5, 0.25]))
    provider = NodeProvider(node, shelf, ("topic",))
    assert provider.reads == {"topic"}
    result = provider.score(batch_of(["s2", "s0"], topic=["a", "b"]))
    assert result.scores.tolist() == [0.5, 0.25]
    assert node.given["responses"] == ["answer s2", "answer s0"]
    assert node.given["topic"] == ["a", "b"]
    assert node.given["response_mask"].tolist() == [[4, 5], [0, 1]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_rewards_of_any_type_with_or_without_gradient_become_float64(shelf, dtype):
    weight = torch.ones(2, requires_grad=True)
    node = Says(lambda batch: (weight * torch.tensor([1.0, 2.0])).to(dtype))
    scores = NodeProvider(node, shelf).score(batch_of(["s0", "s1"])).scores
    assert scores.dtype == "float64"
    assert scores.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("answer", [[0.5, 0.5], None, 0.5])
def test_what_is_no_tensor_is_refused_with_the_class_that_returned_it(shelf, answer):
    with pytest.raises(ContractError, match="Says") as caught:
        NodeProvider(Says(lambda batch: answer), shelf).score(batch_of(["s0", "s1"]))
    assert "did not return a tensor" in str(caught.value)


def test_the_kl_penalty_is_k1_summed_over_the_responses_tokens():
    batch = {
        "old_log_probs": torch.tensor([[-1.0, -2.0, 9.0], [-3.0, -1.0, -1.0]]),
        "ref_log_prob": torch.tensor([[-1.5, -1.0, 0.0], [-3.0, -2.0, -4.0]]),
        "response_mask": torch.tensor([[1, 1, 0], [1, 1, 1]]),
    }
    assert RewardNode()._compute_kl_penalty(batch).tolist() == [-0.5, 4.0]


def test_a_class_that_pays_kl_is_known_wherever_it_calls_it():
    assert uses_kl_penalty(PaysKL)
    assert uses_kl_penalty(PaysToo)
    assert not uses_kl_penalty(Says)


def test_a_node_without_compute_reward_says_what_is_missing():
    with pytest.raises(TypeError, match=r"RewardNode does not define compute_reward\(batch\)"):
        RewardNode().compute_reward({})


def test_complex_rewards_are_refused_and_not_cut_to_their_real_part(shelf):
    node = Says(lambda batch: torch.tensor([1 + 2j, 0j]))
    with pytest.raises(ContractError, match=r"complex.*\(1\+2j\)"):
        NodeProvider(node, shelf).score(batch_of(["s0", "s1"]))
