"""GDPO beside verl's own function, where verl is installed."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from verl_core.trainer.advantage.gdpo import gdpo_advantages

core_algos = pytest.importorskip("verl.trainer.ppo.core_algos")
if not hasattr(core_algos, "compute_gdpo_outcome_advantage"):
    pytest.skip("this verl has no GDPO", allow_module_level=True)


@pytest.mark.parametrize("weights", [[1.0, 1.0, 1.0], [0.5, 3.0, 1.0]])
def test_it_is_verls_where_all_responses_are_equally_long_scored_and_live(weights):
    """Equally long, since verl whitens over tokens and ours over responses."""
    rng = np.random.default_rng(11)
    scores = (rng.normal(size=(5 * 4, 3)) * [1.0, 40.0, 0.3]).astype(np.float32)
    groups, length = np.repeat(np.arange(5), 4), 6
    names = ["a", "b", "c"]
    mask = torch.ones(20, length)
    theirs, _ = core_algos.compute_gdpo_outcome_advantage(
        token_level_rewards=torch.zeros(20, length),
        response_mask=mask,
        index=groups,
        config={"gdpo_reward_keys": names, "gdpo_reward_weights": weights},
        non_tensor_batch={name: scores[:, m] for m, name in enumerate(names)},
        batch={"prompts": torch.zeros(20, 2), "attention_mask": torch.ones(20, 2 + length).long()},
    )
    live = torch.ones(20, dtype=torch.bool)
    ours = gdpo_advantages(
        torch.from_numpy(scores).double(),
        torch.tensor(weights),
        torch.from_numpy(groups),
        live,
        live,
    )
    # Over 120 tokens (n - 1) is another divisor than over 20 responses.
    divisor = np.sqrt((19 / 20) / (119 / 120))
    np.testing.assert_allclose(theirs[:, 0].numpy(), ours.values.numpy() / divisor, atol=2e-5)
