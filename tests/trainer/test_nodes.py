"""The built-in nodes, one by one: what each writes, from what it reads."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_core.config import load_run_config
from verl_core.rewards.engine import RewardEngine
from verl_core.trainer.kl import kl_estimate
from verl_core.trainer.nodes.actor import ActorNode, RefModelNode, lay_out, row_names, step_seed
from verl_core.trainer.nodes.advantage import GAENode, GRPONode
from verl_core.trainer.nodes.fuse import FuseNode, place_on_last_token
from verl_core.trainer.nodes.update import UpdateNode
from verl_core.trainer.prompts import PromptRow
from verl_core.trainer.reward import ProviderNode, reward_batch

#: Two prompts, two responses each; the second holds the gate's word.
TEXTS = ["a b", "zq", "hello there", "e"]


def run(node, batch):
    """The node's columns, which must be those that it declares, from those that it declares."""
    written = node.run(batch)
    assert set(written) == node.writes
    assert node.reads <= set(batch.columns)
    batch.write(written)
    return written


# -- actor and reference --------------------------------------------------------------------------


def actor(models, **options):
    sampling = {"n": 3, "max_new_tokens": 6}
    return ActorNode(models, sampling, seed=5, with_log_probs=True, **options)


@pytest.fixture
def rollout(tiny_models, tiny_step):
    """A step of the actor's own, of two prompts."""
    models = tiny_models()
    batch = tiny_step(models, ["x", "y"], n=1)
    rows = [
        PromptRow(str(i), batch["prompts"][i], batch["prompt_ids"][i], {"k": i}) for i in range(2)
    ]
    batch.columns = {"rows": rows}
    return models, batch


def test_the_actor_lays_out_n_rows_a_prompt_in_prompt_order(rollout):
    models, batch = rollout
    run(actor(models), batch)
    assert batch["group_index"].tolist() == [0, 0, 0, 1, 1, 1]
    assert batch["columns"] == {"k": [0, 0, 0, 1, 1, 1]}
    assert len(set(batch["sample_ids"])) == 6
    assert batch["input_ids"].shape == batch["attention_mask"].shape
    width = batch["generated_ids"].shape[1]
    assert torch.equal(batch["input_ids"][:, -width:], batch["generated_ids"])
    lengths = [len(ids) for ids in batch["response_ids"]]
    assert batch["response_mask"].sum(dim=1).tolist() == lengths
    assert not batch["old_log_probs"][batch["response_mask"] == 0].any()


def test_a_step_is_sampled_again_to_the_same_tokens_and_another_step_to_others(rollout):
    models, batch = rollout
    rows = batch["rows"]

    def sampled(step):
        batch.step, batch.columns = step, {"rows": rows}
        return [ids.tolist() for ids in run(actor(models), batch)["response_ids"]]

    assert sampled(1) == sampled(1)
    assert sampled(1) != sampled(2)


@given(st.integers(0, 2**32 - 1), st.integers(1, 10**6), st.integers(1, 10**6))
def test_seeds_of_two_steps_differ_and_fit_into_63_bits(seed, one, other):
    assert (step_seed(seed, one) == step_seed(seed, other)) == (one == other)
    assert 0 <= step_seed(seed, one) < 2**63


def test_before_the_first_update_the_reference_model_agrees_with_the_policy(rollout):
    models, batch = rollout
    run(actor(models), batch)
    run(RefModelNode(models), batch)
    assert torch.equal(batch["ref_log_prob"], batch["old_log_probs"])
    assert (batch["ref_log_prob"][batch["response_mask"] == 1] < 0).all()


def test_a_column_that_only_some_rows_have_is_null_in_the_others(tiny_models):
    ids = np.array([1, 2])
    rows = [PromptRow("0", "p", ids, {"a": 1}), PromptRow("1", "q", ids, {"b": 2})]
    laid = lay_out(rows, 1, [ids, ids], ["stop"] * 2, row_names(1, 2, 1), tiny_models().tokenizer)
    assert laid["columns"] == {"a": [1, None], "b": [None, 2]}


# -- fusion ---------------------------------------------------------------------------------------


@given(
    st.lists(
        st.tuples(st.integers(0, 7), st.floats(-9, 9, allow_nan=False)), min_size=1, max_size=6
    )
)
def test_a_value_lies_on_the_last_token_of_its_response_and_nowhere_else(rows):
    lengths = torch.tensor([length for length, _ in rows])
    values = torch.tensor([value for _, value in rows], dtype=torch.float64)
    mask = (torch.arange(7) < lengths[:, None]).long()
    placed = place_on_last_token(values, mask)
    for row, (length, value) in enumerate(rows):
        expected = [0.0] * 7
        if length:
            expected[length - 1] = value
        assert placed[row].tolist() == expected


@pytest.fixture
def fused(tiny_run, tiny_models, tiny_step):
    """``fused(gate={…}, references=[…], kl_coef=…)``: the batch behind fusion, of real mounts."""
    engines = []

    def fuse(*, gate=None, overlap=None, references=("a b", "hello"), **kl):
        style, chrf, guard = tiny_run.config["reward"]
        tiny_run.config["reward"] = [style, {**chrf, **(overlap or {})}, {**guard, **(gate or {})}]
        models = tiny_models()
        engine = RewardEngine.from_config(models.cfg.rewards())
        engines.append(engine)
        batch = tiny_step(models, TEXTS, n=2, ground_truth=references)
        batch.write({"scoring": engine.open(reward_batch(batch, training=True))})
        run(ProviderNode(["style", "overlap", "guard"]), batch)
        if kl:
            generator = torch.Generator().manual_seed(0)
            for name in ("old_log_probs", "ref_log_prob"):
                noise = -torch.rand(batch["response_mask"].shape, generator=generator)
                batch.write({name: noise * batch["response_mask"]})
        run(FuseNode(["style", "overlap", "guard"], models, **kl), batch)
        return batch

    yield fuse
    for engine in engines:
        engine.close()


def test_the_fused_reward_is_the_tables_and_lies_on_the_last_tokens(fused):
    batch = fused()
    table = batch["table"]
    rewards = batch["token_level_rewards"]
    assert rewards.sum(dim=1).tolist() == table.fused.tolist()
    assert (rewards != 0).sum(dim=1).tolist() == [1, 1, 1, 1]
    assert table.fused[0] == pytest.approx(1.0 + 0.5 * table.columns["overlap"].scores[0])
    assert batch.metrics["reward/fused/mean"] == pytest.approx(table.fused.mean())


def test_a_vetoed_row_is_worth_the_penalty_and_keeps_its_gradient(fused):
    batch = fused()
    assert batch["token_level_rewards"].sum(dim=1)[1] == -1.0
    assert batch["live"].tolist() == [True] * 4
    assert batch["in_baseline"].tolist() == [True] * 4
    assert torch.equal(batch["actor_mask"], batch["response_mask"])
    assert torch.equal(batch["loss_mask"], batch["response_mask"])


@pytest.mark.parametrize(
    "gate", [{"skip_update": True}, {"in_baseline": True, "skip_update": True}]
)
def test_a_skipped_row_is_out_of_the_actors_mask_alone(fused, gate):
    batch = fused(gate=gate)
    assert not batch["actor_mask"][1].any()
    assert torch.equal(batch["loss_mask"], batch["response_mask"])
    assert batch["live"].tolist() == [True] * 4
    assert batch["in_baseline"].tolist() == [True, gate.get("in_baseline", False), True, True]
    assert batch["token_level_rewards"].sum(dim=1)[1] == -1.0


def test_a_masked_row_is_out_of_every_mask_and_has_no_reward(fused):
    """The second group has no reference to be compared with."""
    batch = fused(overlap={"missing": "mask"}, references=("a b", ""))
    assert batch["live"].tolist() == [True, True, False, False]
    for name in ("loss_mask", "actor_mask", "token_level_rewards"):
        assert not batch[name][2:].any()
        assert batch[name][:2].any()
    assert not batch["in_baseline"][2:].any()


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_kl_in_the_reward_is_taken_off_each_token_once(fused, estimator):
    batch = fused(
        overlap={"missing": "mask"}, references=("a b", ""), kl_coef=0.3, estimator=estimator
    )
    old, ref = batch["old_log_probs"].double(), batch["ref_log_prob"].double()
    log_r = ref - old
    by_hand = {"k1": -log_r, "k2": log_r**2 / 2, "k3": torch.exp(log_r) - 1 - log_r}[estimator]
    for row in range(4):
        length = int(batch["response_mask"][row].sum())
        expected = torch.zeros(batch["response_mask"].shape[1], dtype=torch.float64)
        if row < 2:  # the others are masked
            expected[:length] = -0.3 * by_hand[row, :length]
            expected[length - 1] += batch["table"].fused[row]
        assert torch.allclose(batch["token_level_rewards"][row], expected, atol=1e-6)
    tokens = batch["loss_mask"].bool()
    assert batch.metrics["reward/kl"] == pytest.approx(float(by_hand[tokens].mean()), rel=1e-5)


# -- advantages -----------------------------------------------------------------------------------


def test_grpo_gives_each_token_of_a_response_its_rows_advantage(fused):
    batch = fused(gate={"skip_update": True})
    advantages = run(GRPONode(norm_by_std=True), batch)["advantages"]
    mask = batch["response_mask"]
    assert not advantages[mask == 0].any()
    fused_rewards = torch.from_numpy(batch["table"].fused.copy())
    # Of the first group only row 0 is in the baseline: nothing to compare with.
    assert not advantages[:2].any()
    assert batch.metrics["reward/groups_dropped"] == 1.0
    centred = fused_rewards[2:] - fused_rewards[2:].mean()
    expected = centred / (fused_rewards[2:].std() + 1e-6)
    for row in (0, 1):
        of_row = advantages[2 + row][mask[2 + row] == 1]
        assert torch.allclose(of_row, expected[row].expand_as(of_row))


def test_gae_with_a_new_critic_spreads_the_reward_back_and_whitens_it(tiny_models, fused):
    batch = fused(overlap={"missing": "mask"}, references=("a b", ""))
    written = run(GAENode(tiny_models(), gamma=0.9, lam=0.8), batch)
    assert not written["values"].any()  # the head starts at zero
    for row in range(4):
        length = int(batch["loss_mask"][row].sum())
        reward = batch["token_level_rewards"][row].sum()
        expected = torch.zeros_like(written["returns"][row])
        for t in range(length):
            expected[t] = reward * (0.9 * 0.8) ** (length - 1 - t)
        assert torch.allclose(written["returns"][row], expected)
    on = batch["loss_mask"].bool()
    assert float(written["advantages"][on].mean()) == pytest.approx(0.0, abs=1e-9)
    assert float(written["advantages"][on].std()) == pytest.approx(1.0, abs=1e-6)
    assert not written["advantages"][~on].any()
    assert batch.metrics["critic/explained_variance"] == 0.0


# -- update ---------------------------------------------------------------------------------------


@pytest.fixture
def update(tiny_models, tiny_step):
    """``update(advantages, *overrides, …)``: the models, the batch, and log-probabilities of its
    responses before and after one update. Six rows, three groups of two."""

    def go(advantages, *overrides, before=None, actor_mask=None, with_critic=False):
        models = tiny_models(*overrides)
        batch = tiny_step(models, ["ab", "cde", "f", "ghij", "kl", "m"], n=2)
        mask = batch["response_mask"]
        old = models.policy_log_probs(batch.columns)
        rows = torch.tensor(advantages, dtype=torch.float64)
        batch.write(
            {
                "old_log_probs": old,
                "ref_log_prob": models.reference_log_probs(batch.columns),
                "advantages": rows[:, None] * mask,
                "loss_mask": mask,
                "actor_mask": mask if actor_mask is None else mask * actor_mask[:, None],
            }
        )
        if before is not None:
            before(models, batch)
        run(UpdateNode(models, models.cfg, with_critic=with_critic, old_log_probs=True), batch)
        return models, batch, old, models.policy_log_probs(batch.columns)

    return go


def weights(models):
    return [parameter.detach().clone() for parameter in models.policy.parameters()]


def test_an_update_makes_good_responses_likelier_and_bad_ones_less_so(update):
    _, batch, old, new = update([1.0, -1.0, 2.0, -2.0, 1.0, -1.0])
    moved = (new - old).sum(dim=1)
    assert (moved[::2] > 0).all()
    assert (moved[1::2] < 0).all()
    assert batch.metrics["actor/grad_norm"] > 0
    assert batch.metrics["actor/lr"] == pytest.approx(1e-3)


def test_a_row_outside_the_actors_mask_moves_nothing(update):
    kept = torch.tensor([1, 0, 1, 1, 1, 1])
    plain, *_ = update([1.0, -1.0, 0.5, -0.5, 2.0, -2.0], actor_mask=kept)
    other, *_ = update([1.0, 99.0, 0.5, -0.5, 2.0, -2.0], actor_mask=kept)
    assert all(torch.equal(a, b) for a, b in zip(weights(plain), weights(other), strict=True))


@pytest.mark.parametrize(("epochs", "minibatches", "steps"), [(1, 1, 1), (2, 3, 6), (3, 9, 9)])
def test_mini_batches_are_whole_groups_and_each_is_one_optimiser_step(
    update, epochs, minibatches, steps
):
    """Three groups: more than three mini-batches an epoch there cannot be."""
    settings = (f"algorithm.epochs={epochs}", f"algorithm.minibatches={minibatches}")
    models, *_ = update([1.0, -1.0] * 3, *settings)
    (taken,) = {int(state["step"]) for state in models.optimizer.state.values()}
    assert taken == steps


def test_in_the_second_epoch_the_policy_has_left_the_one_that_sampled(update):
    far = ("optim.lr=0.05", "algorithm.clip_ratio=0.01")
    _, once, *_ = update([1.0, -1.0] * 3, *far)
    _, twice, *_ = update([1.0, -1.0] * 3, "algorithm.epochs=2", *far)
    assert once.metrics["actor/clip_fraction"] == 0.0
    assert twice.metrics["actor/clip_fraction"] > 0.0


def test_a_step_without_any_signal_leaves_the_weights_and_has_no_loss_to_log(update):
    started = []
    models, batch, *_ = update([0.0] * 6, before=lambda m, b: started.extend(weights(m)))
    assert all(torch.equal(a, b) for a, b in zip(started, weights(models), strict=True))
    assert "actor/loss" not in batch.metrics
    assert "actor/grad_norm" not in batch.metrics


def test_a_step_without_any_signal_still_follows_a_kl_in_the_loss(update):
    """Rows of flat groups are in the loss's count and in its gradient."""

    def leave_the_reference(models, batch):
        batch.write({"ref_log_prob": batch["ref_log_prob"] - 0.5 * batch["response_mask"]})

    settings = ("algorithm.kl_coef=0.4", "algorithm.kl_estimator=k2")
    _, batch, old, new = update([0.0] * 6, *settings, before=leave_the_reference)
    on = batch["response_mask"].bool()
    expected = kl_estimate(old, batch["ref_log_prob"], "k2")[on].mean()
    assert batch.metrics["actor/kl"] == pytest.approx(float(expected), rel=1e-5)
    assert batch.metrics["actor/loss"] == pytest.approx(0.4 * float(expected), rel=1e-5)
    assert new[on].mean() < old[on].mean()  # towards the reference, which thinks less of them


def test_entropy_is_logged_over_the_tokens_that_were_looked_at(update):
    """A flat group is left out of the work; it must not count as a group of entropy 0."""
    flat = update([1.0, -1.0, 0.0, 0.0, 2.0, -2.0])[1].metrics
    whole = update([1.0, -1.0, 1e-9, -1e-9, 2.0, -2.0])[1].metrics
    assert flat["actor/entropy"] == pytest.approx(whole["actor/entropy"], rel=0.2)
    assert flat["actor/loss"] == pytest.approx(whole["actor/loss"], abs=1e-6)


def test_a_gradient_that_is_not_finite_is_logged_and_not_taken(update):
    started = []
    models, batch, *_ = update(
        [float("inf"), -1.0, 1.0, -1.0, 1.0, -1.0],
        before=lambda m, b: started.extend(weights(m)),
    )
    assert not np.isfinite(batch.metrics["actor/grad_norm"])
    assert all(torch.equal(a, b) for a, b in zip(started, weights(models), strict=True))


def test_the_critic_moves_towards_the_returns_of_every_live_row(update):
    """Row 1 is skipped: the actor does not learn from it, the critic does."""

    def returns(models, batch):
        values = models.values(batch.columns)
        batch.write({"values": values, "returns": (values + 1.0) * batch["response_mask"]})

    models, batch, *_ = update(
        [1.0, -1.0] * 3,
        "optim.critic_lr=0.01",
        before=returns,
        actor_mask=torch.tensor([1, 0, 1, 1, 1, 1]),
        with_critic=True,
    )
    after = models.values(batch.columns).sum(dim=1) / batch["response_mask"].sum(dim=1)
    assert after[1] > 0.05
    assert after.mean() > 0.1
    assert batch.metrics["critic/loss"] == pytest.approx(0.5, rel=1e-4)
    assert batch.metrics["critic/grad_norm"] > 0


def test_what_the_update_reads_follows_from_the_config(tiny_run):
    cfg = load_run_config(tiny_run.write(), ["algorithm.kl_coef=0.1"])
    plain = load_run_config(tiny_run.write())
    needs = {"ref_log_prob", "old_log_probs", "values", "returns"}
    everything = UpdateNode(None, cfg, with_critic=True, old_log_probs=True)
    assert needs <= everything.reads
    assert not needs & UpdateNode(None, plain, with_critic=False, old_log_probs=False).reads
