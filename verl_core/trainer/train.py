"""Training, from top to bottom: what a run does, and what one step of it does.

A step, for P prompts with n responses each (B = P * n rows, R response tokens at most):

1. rollout    prompts (P) -> responses (B), token ids, masks (B, R)          nodes: actor, ref_model
2. reward     every mount scores every row, in parallel, under one lease of the weights
3. fusion     scores (B, mounts) -> fused reward (B) -> gates -> token_level_rewards (B, R)
4. advantage  token_level_rewards -> advantages (B, R)                       nodes: grpo or gae
5. update     advantages -> loss -> gradients -> new weights                 node: ppo

Which nodes those are, and what stands between them, is the config's ``dataflow:``.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from verl_core.dataflow import StepBatch
from verl_core.rewards import Lease
from verl_core.trainer import checkpoint
from verl_core.trainer.evaluate import evaluated_step
from verl_core.trainer.interrupt import Interrupt
from verl_core.trainer.memory import release_free_memory
from verl_core.trainer.reward import reward_batch
from verl_core.trainer.run import Run
from verl_reward_sdk import RewardError, VerlRewardError


def train(run: Run) -> str:
    """Train from ``run.first_step`` to the last step; evaluate before and after.

    Returns:
        ``finished``, or ``stopped`` where Ctrl-C asked for it. Either way the last step is
        checkpointed.

    Raises:
        VerlRewardError: a step cannot be trained on, as where rewards failed beyond repair; the
            step before it is checkpointed.
    """
    steps = run.cfg.trainer.steps
    if run.cfg.trainer.eval_before and run.first_step == 1:
        evaluate(run, "before", step=0)

    with Interrupt(run.display.say) as interrupt:
        for step in range(run.first_step, steps + 1):
            try:
                metrics = train_step(run, step)
            except VerlRewardError:
                save(run, step - 1)
                raise
            run.record(step, metrics)
            if interrupt.asked and step < steps:
                save(run, step)
                return "stopped"
            if run.due(step, run.cfg.trainer.eval_every) and step < steps:
                evaluate(run, f"step_{step:06d}", step=step)
            if run.due(step, run.cfg.trainer.checkpoint_every) and step < steps:
                save(run, step)

    save(run, steps)
    if run.cfg.trainer.eval_after:
        evaluate(run, "after", step=steps)
    return "finished"


def train_step(run: Run, step: int) -> dict[str, float]:
    """One step; its figures by name."""
    start = time.perf_counter()
    lease = run.engine.lease(step)  # weights and generations of the whole step, fixed now
    batch = StepBatch(step, {"rows": run.prompts_of(step)})

    for stage in run.pipeline.rollout:
        run.display.stage(stage.name)
        run.pipeline.graph.run_stage(stage, batch)

    score(run, batch, lease)

    release_free_memory()  # what generation took, before the update wants its own
    for stage in run.pipeline.learn:
        run.display.stage(stage.name)
        run.pipeline.graph.run_stage(stage, batch)

    release_free_memory()

    run.keep_samples(batch)
    batch.metrics["timing_s/step"] = time.perf_counter() - start
    return run.with_throughput(batch)


def score(run: Run, batch: StepBatch, lease: Lease) -> None:
    """Run the stages from the first mount to fusion; rescore the same responses if they fail."""
    rows = reward_batch(batch, training=True)
    if run.shelf is not None:
        run.shelf.lay_batch(batch)

    def attempt() -> None:
        batch.write({"scoring": run.engine.open(rows, lease=lease)})
        for stage in run.pipeline.reward:
            run.display.stage(stage.name)
            run.pipeline.graph.run_stage(stage, batch)

    with_retries(attempt, run.cfg.trainer.reward_retries, run.display.say)


def with_retries(attempt: Callable[[], None], retries: int, say: Callable[[str], Any]) -> None:
    """Call `attempt` until it raises no `RewardError`, at most ``retries + 1`` times."""
    for number in range(retries + 1):
        try:
            attempt()
            return
        except RewardError as error:
            if number == retries:
                raise
            pause = min(2.0**number, 30.0)
            say(f"rewards failed ({error}); scoring the same responses again in {pause:.0f} s")
            time.sleep(pause)


def evaluate(run: Run, label: str, step: int) -> None:
    """Held-out evaluation into ``eval/<label>.jsonl``; one of the same step is kept."""
    path = run.folder.path / "eval" / f"{label}.jsonl"
    if run.evaluator is None or evaluated_step(path) == step:
        return
    total = len(run.evaluator.rows)
    with run.display.phase(f"evaluating ({label})", total=total, unit="prompts") as phase:
        found = run.evaluator.run(path, step, phase.advance)
        fused = found.get("eval/reward/fused/mean")
        phase.result = "no row has a reward" if fused is None else f"fused {fused:.3f}"
    release_free_memory()


def save(run: Run, step: int) -> None:
    """Checkpoint the state after `step`; one that is there already is kept."""
    with run.display.phase(f"saving the checkpoint of step {step}"):
        checkpoint.save(
            run.folder.path,
            step,
            policy=run.models.policy,
            tokenizer=run.models.tokenizer,
            objects=run.models.objects(),
            info={"run_id": run.folder.run_id, **run.models.info()},
            keep=run.cfg.trainer.keep_checkpoints,
        )
