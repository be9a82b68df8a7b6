"""Training, from top to bottom: what a run does, and what one step of it does.

A step, for P prompts with n responses each (B = P * n rows, R response tokens at most):

1. rollout    prompts (P) -> responses (B), token ids, masks (B, R)          nodes: actor, ref_model
              the actor hands responses on as they end: mounts begin while others are generated
2. reward     every mount scores every row, in parallel, under one lease of the weights
3. fusion     scores (B, mounts) -> fused reward (B) -> gates -> token_level_rewards (B, R)
4. advantage  token_level_rewards -> advantages (B, R)                       nodes: grpo, gdpo, gae
5. update     advantages -> loss -> gradients -> new weights                 node: ppo

Which nodes those are, and what stands between them, is the config's ``dataflow:``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from verl_core.dataflow import StepBatch
from verl_core.rewards import Lease, StreamedScoring
from verl_core.rewards.failures import LastingRewardError
from verl_core.trainer import checkpoint, reward_state
from verl_core.trainer.checkpoint import CheckpointError
from verl_core.trainer.evaluate import evaluated_step
from verl_core.trainer.interrupt import Interrupt
from verl_core.trainer.masked import masked_figures
from verl_core.trainer.memory import release_free_memory
from verl_core.trainer.nodes.actor import row_names
from verl_core.trainer.reward import reward_batch
from verl_core.trainer.run import Run
from verl_core.trainer.split import source_figures
from verl_core.trainer.written import naming
from verl_reward_sdk import RewardError, VerlRewardError


def train(run: Run, interrupt: Interrupt | None = None) -> str:
    """Train from ``run.first_step`` to the last step; evaluate before, on the way and after.

    What is checkpointed is so before the evaluation that is due beside it: one that was cut, or
    failed, is made when the run goes on.

    Args:
        interrupt: entered already; None for one that ends with the training.

    Returns:
        ``finished``, or ``stopped`` where Ctrl-C, SIGTERM or SIGHUP left something undone. Either
        way the last step that was trained is checkpointed, be it step 0.

    Raises:
        VerlRewardError: a step cannot be trained on, or an evaluation made, as where rewards failed
            beyond repair; or the machine refused, as where a disk is full. The last whole step is
            checkpointed where that is possible, whatever is raised; a second Ctrl-C does not wait.
    """
    steps, trained, evaluated = run.cfg.trainer.steps, run.first_step - 1, True
    if run.streams and run.early.barrier is not None:
        run.display.say(
            f"mounts behind the node {run.early.barrier} score when the step's responses are all in"
        )
    listening = Interrupt(run.display.stopping) if interrupt is None else nullcontext(interrupt)
    with listening as interrupt, last_step_saved(run):
        for step in range(run.first_step, steps + 1):
            evaluate_between(run, trained, interrupt)
            if interrupt.asked:
                break
            run.record(step, train_step(run, step))
            trained = step
            if run.due(step, run.cfg.trainer.checkpoint_every):
                save(run, step)

        save(run, trained)
        if trained < steps:
            return "stopped"
        if run.cfg.trainer.eval_after:
            evaluated = evaluate(run, "after", steps, interrupt)
    return "finished" if evaluated else "stopped"


def train_step(run: Run, step: int) -> dict[str, float]:
    """One step; its figures by name."""
    start = time.perf_counter()
    lease = run.engine.lease(step)  # weights and generations of the whole step, fixed now
    run.note_generations(lease)
    batch = StepBatch(step, {"rows": run.prompts_of(step)})
    if run.streams:  # the actor hands each response on to it, while others are still sampled
        names = row_names(step, len(batch["rows"]), run.cfg.rollout.n)
        batch.write({"scoring": run.open_scoring(*names, lease)})

    for stage in run.pipeline.rollout:
        run.display.stage(stage.name)
        run.pipeline.graph.run_stage(stage, batch)

    score(run, batch, lease)

    release_free_memory()  # what generation took, before the update wants its own
    for stage in run.pipeline.learn:
        run.display.stage(stage.name)
        run.pipeline.graph.run_stage(stage, batch)

    release_free_memory()

    run.whole.broken()  # where no weight moved too: what the rewards have learnt does
    run.engine.step_end(batch["table"])  # the step is done: now the rewards learn from it
    run.whole.step = step
    run.keep_samples(batch)
    batch.metrics["timing_s/step"] = time.perf_counter() - start
    return run.with_throughput(batch)


def score(run: Run, batch: StepBatch, lease: Lease) -> None:
    """Run the stages from the first mount to fusion; rescore the same responses if they fail."""
    rows = reward_batch(batch, training=True)
    if run.shelf is not None:
        run.shelf.lay_batch(batch)

    def attempt() -> None:
        if "scoring" not in batch:  # nothing was handed on, or the attempt before failed
            run.engine.step_again()  # what providers learnt in it does not count
            names = rows.sample_ids, rows.group_ids
            batch.write({"scoring": run.open_scoring(*names, lease)})
        scoring: StreamedScoring = batch["scoring"]
        try:
            scoring.complete(rows)
            for stage in run.pipeline.reward:
                run.display.stage(stage.name)
                run.pipeline.graph.run_stage(stage, batch)
        except RewardError:
            scoring.cancel()
            del batch.columns["scoring"]
            raise
        batch.metrics.update(hidden_share(*scoring.seconds()))
        batch.metrics.update(source_figures(batch["table"], batch["columns"]))
        fail_open = {name for name, mount in run.engine.mounts.items() if mount.config.fail_open}
        batch.metrics.update(masked_figures(batch["table"], fail_open))

    again = "scoring the same responses again"
    with_retries(attempt, run.cfg.trainer.reward_retries, run.display.say, again)


def hidden_share(hidden: float, exposed: float) -> dict[str, float]:
    """Figures of a step: rewards that were computed behind generation, and those it waited for."""
    return {
        "timing_s/reward_hidden": hidden,
        "timing_s/reward_exposed": exposed,
        "perf/reward_hidden_share": hidden / max(hidden + exposed, 1e-9),
    }


def with_retries(
    attempt: Callable[[], None], retries: int, say: Callable[[str], Any], again: str
) -> None:
    """Call `attempt` until it raises no `RewardError`, at most ``retries + 1`` times; `again` says
    what the next attempt does. There is none where every failure would come again."""
    for number in range(retries + 1):
        try:
            attempt()
            return
        except RewardError as error:
            if number == retries or isinstance(error, LastingRewardError):
                raise
            pause = min(2.0**number, 30.0)
            say(f"rewards failed ({error}); {again} in {pause:.0f} s")
            time.sleep(pause)


def evaluate_between(run: Run, step: int, interrupt: Interrupt) -> None:
    """Make the evaluation that is due after `step` and before the next one."""
    if step == 0 and run.cfg.trainer.eval_before:
        evaluate(run, "before", step, interrupt)
    elif step > 0 and run.due(step, run.cfg.trainer.eval_every):
        evaluate(run, f"step_{step:06d}", step, interrupt)


def evaluate(run: Run, label: str, step: int, interrupt: Interrupt) -> bool:
    """Held-out evaluation into ``eval/<label>.jsonl``; one of the same step is kept, and the same
    is made again where rewards fail. False where Ctrl-C cut it."""
    path = run.folder.path / "eval" / f"{label}.jsonl"
    evaluator = run.evaluator
    if evaluator is None or evaluated_step(path) == step:
        return True

    def attempt() -> None:
        title, total = f"evaluating ({label})", len(evaluator.rows)
        with run.display.phase(title, total=total, unit="prompts") as phase:
            with naming(path):
                found = evaluator.run(path, step, phase.advance, lambda: interrupt.asked)
            if found is None:
                phase.result = "cut short, nothing is kept of it"
                return
            run.tracker.board(step, found)
            fused = found.get("eval/reward/fused/mean")
            phase.result = "no row has a reward" if fused is None else f"fused {fused:.3f}"

    with_retries(attempt, run.cfg.trainer.reward_retries, run.display.say, "evaluating again")
    release_free_memory()
    return evaluated_step(path) == step


@contextmanager
def last_step_saved(run: Run) -> Iterator[None]:
    """Where training fails, checkpoint the last whole step. Between the first weight that a step's
    update moves and the step's end there is none: what was checkpointed before then has to do."""
    try:
        yield
    except (CheckpointError, KeyboardInterrupt):
        raise
    except BaseException as error:
        _save_whole(run)
        if isinstance(error, OSError):
            raise VerlRewardError(f"training cannot go on: {error}") from error
        if isinstance(error, SystemExit):  # else the command would end as if all had gone well
            raise VerlRewardError(
                f"training was ended from within: code of the run called sys.exit({error.code!r})"
            ) from error
        raise


def _save_whole(run: Run) -> None:
    """Checkpoint the last whole step, if these weights are one; say so where that fails."""
    if run.whole.step is None:
        run.display.say("it failed within a step's update: these weights are not saved")
        return
    try:
        save(run, run.whole.step)
    except Exception as unsaved:  # noqa: BLE001  (the error that brought us here is the one to tell)
        run.display.say(f"the last whole step is not saved: {unsaved}")


def save(run: Run, step: int) -> None:
    """Checkpoint the state after `step`; one that is there already is kept."""
    if checkpoint.holds(run.folder.path, step):
        return
    with run.display.phase(f"saving the checkpoint of step {step}"):
        checkpoint.save(
            run.folder.path,
            step,
            policy=run.models.policy,
            tokenizer=run.models.tokenizer,
            objects={**run.models.objects(), reward_state.NAME: reward_state.saved(run.engine)},
            info={"run_id": run.folder.run_id, **run.models.info()},
            keep=run.cfg.trainer.keep_checkpoints,
        )
