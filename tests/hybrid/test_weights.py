"""The rollout's copy of the policy."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from verl_core.hybrid.weights import rollout_copy, sync_rollout_weights
from verl_core.trainer.model_source import ModelSource
from verl_core.trainer.models import load_policy


def test_a_copy_is_cast_but_for_its_buffers_and_keeps_tied_weights_tied(
    tiny_model_dir: Path,
) -> None:
    policy = load_policy(ModelSource(tiny_model_dir, "folder", "tiny"), torch.float32, seed=0)
    copy = rollout_copy(policy, torch.bfloat16)
    assert {parameter.dtype for parameter in copy.parameters()} == {torch.bfloat16}
    assert not any(parameter.requires_grad for parameter in copy.parameters())
    assert copy.lm_head.weight is copy.model.embed_tokens.weight
    assert copy.model.rotary_emb.inv_freq.dtype == torch.float32
    assert {parameter.dtype for parameter in policy.parameters()} == {torch.float32}


def test_the_trained_weights_arrive_in_place(tiny_model_dir: Path) -> None:
    policy = load_policy(ModelSource(tiny_model_dir, "folder", "tiny"), torch.float32, seed=0)
    copy = rollout_copy(policy, torch.bfloat16)
    places = [parameter.data_ptr() for parameter in copy.parameters()]
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.25)
    sync_rollout_weights(policy, copy)
    assert places == [parameter.data_ptr() for parameter in copy.parameters()]
    for ours, theirs in zip(copy.parameters(), policy.parameters(), strict=True):
        assert torch.equal(ours, theirs.to(torch.bfloat16))
    ids = torch.arange(9)[None]
    with torch.no_grad():
        torch.testing.assert_close(
            copy(input_ids=ids).logits.float(), policy(input_ids=ids).logits, atol=0.5, rtol=0.1
        )


def test_a_model_of_the_wanted_type_is_its_own_rollout_model(tiny_model_dir: Path) -> None:
    policy = load_policy(ModelSource(tiny_model_dir, "folder", "tiny"), torch.float32, seed=0)
    assert rollout_copy(policy, torch.float32) is policy
    before = policy.model.norm.weight.clone()
    sync_rollout_weights(policy, policy)
    assert torch.equal(policy.model.norm.weight, before)


def test_models_that_do_not_match_are_refused() -> None:
    with pytest.raises(ValueError, match="other parameters than the policy"):
        sync_rollout_weights(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False))
