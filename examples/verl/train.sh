#!/usr/bin/env bash
# GRPO with verl on one GPU, with the rewards of run.yaml. Further settings of verl's go behind it:
#   examples/verl/train.sh trainer.total_epochs=3
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

exec "${PYTHON:-python}" -m verl.trainer.main_ppo \
    data.train_files="$here/train.jsonl" \
    data.val_files="$here/val.jsonl" \
    data.train_batch_size=16 \
    data.max_prompt_length=512 \
    data.max_response_length=64 \
    actor_rollout_ref.model.path=HuggingFaceTB/SmolLM2-135M-Instruct \
    actor_rollout_ref.actor.optim.lr=1e-5 \
    actor_rollout_ref.actor.ppo_mini_batch_size=16 \
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8 \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.n=8 \
    actor_rollout_ref.rollout.tensor_model_parallel_size=1 \
    actor_rollout_ref.rollout.gpu_memory_utilization=0.4 \
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 \
    algorithm.adv_estimator=grpo \
    reward.num_workers=2 \
    reward.reward_manager.source=importlib \
    reward.reward_manager.module.path=pkg://verl_core.integrations.verl \
    reward.reward_manager.name=VerlRewardManager \
    +reward.reward_kwargs.verl_reward.config="$here/run.yaml" \
    trainer.n_gpus_per_node=1 \
    trainer.nnodes=1 \
    trainer.logger=[console] \
    trainer.project_name=verl-reward \
    trainer.experiment_name=customer-service \
    trainer.test_freq=5 \
    trainer.total_epochs=1 \
    "$@"
