"""A run, put together: checks -> folder -> rewards -> port -> prompts -> models -> `Run`.

The order matters: everything that can be wrong with what a person wrote is found before a model
is loaded, and the port is taken before a folder is made.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any

import torch

from verl_core.config import MountConfig, RunConfig
from verl_core.config.data import DataRow
from verl_core.config.rewards import RewardsConfig
from verl_core.control.run import RunFiles
from verl_core.control.scoring.admission import ScoringLimits
from verl_core.control.server import ControlServer
from verl_core.control.state import ControlState
from verl_core.plugins import PluginRegistry
from verl_core.rewards.engine import RewardEngine
from verl_core.rewards.lease_book import LeaseBook
from verl_core.trainer import checkpoint, reward_state
from verl_core.trainer.checkpoint import Checkpoint
from verl_core.trainer.config_changes import config_changes
from verl_core.trainer.display import Display, make_display
from verl_core.trainer.encoding import encode_and_open
from verl_core.trainer.evaluate import Evaluator
from verl_core.trainer.memory import keep_large_blocks_apart
from verl_core.trainer.model_set import ModelSet
from verl_core.trainer.model_source import ModelSource, resolve_model
from verl_core.trainer.near import near
from verl_core.trainer.node_assets import opened_files, paths_among, stamps_of
from verl_core.trainer.node_loader import build, load_class
from verl_core.trainer.preflight import Preflight, placed, preflight
from verl_core.trainer.prompts import PromptOrder, PromptRow
from verl_core.trainer.resuming import (
    kept_weights,
    nothing_left,
    refuse_other_critic,
    refuse_other_model,
    weights_in_force,
)
from verl_core.trainer.reward import NodeProvider, RewardNode, TensorShelf, refuse_kl_penalty
from verl_core.trainer.run import Run
from verl_core.trainer.run_folder import RunFolder
from verl_core.trainer.state_file import CONFIG, now, seconds_trained
from verl_core.trainer.tracking import Tracker
from verl_core.trainer.written import write_whole
from verl_reward_sdk import ConfigError

#: Requests to score that a run holds; the first is scored, the others wait.
_LIVE_REQUESTS = 4
_LIVE_SLICE = 64


def _live_limits(cfg: RunConfig) -> ScoringLimits:
    """What others may have scored by a run's own engine.

    One batch at a time, of few rows, in a thread of its own: a mount that is asked by the step
    waits for one such call at most.
    """
    rows = max(1, cfg.server.live_rows)
    return ScoringLimits(
        requests=_LIVE_REQUESTS,
        rows=rows,
        body_bytes=min(4, cfg.server.max_body_mib) << 20,
        deadline=cfg.server.deadline,
        slice_rows=min(_LIVE_SLICE, rows),
        aside=True,
    )


def _learning(engine: RewardEngine) -> str | None:
    """Why a run does not score for others, if it does not."""
    names = [
        name
        for name, mount in engine.mounts.items()
        if mount.learner is not None and mount.learner.learns
    ]
    if not names:
        return None
    return (
        f"{', '.join(names)} learns while it scores, and would learn from this; `verl-reward serve`"
        " with the same config scores beside the run"
    )


class Session:
    """Opens a run's resources in the right order and closes them in the reverse one.

    Args:
        cfg: the run.
        resume: None for a new run; a run's folder, or ``"newest"``, to go on with an earlier one.
        plain: print lines rather than a live display.
        checked: of `preflight`, where that was called already.
    """

    def __init__(
        self,
        cfg: RunConfig,
        *,
        resume: Path | str | None = None,
        plain: bool = False,
        checked: Preflight | None = None,
    ) -> None:
        self.cfg, self.resume, self.plain, self.checked = cfg, resume, plain, checked
        self._stack = ExitStack()
        self._made: RunFolder | None = None

    def __enter__(self) -> Run:
        try:
            return self._open()
        except BaseException:
            self._stack.close()
            if self._made is not None:  # a run that never began leaves no folder behind
                shutil.rmtree(self._made.path, ignore_errors=True)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _open(self) -> Run:
        cfg, began = self.cfg, now()
        checked = self.checked or preflight(cfg, PluginRegistry(), resume=self.resume)
        registry = checked.registry
        warnings: list[str] = []
        folder, resumed = self._folder(warnings.append)
        first_step = resumed.step + 1 if resumed else 1
        shelf = TensorShelf() if checked.needs_tensors else None
        engine = self._engine(registry, folder, shelf, resumed, warnings.append)
        status = {"ready": False, "step": first_step - 1, "steps": cfg.trainer.steps}
        server = self._serve(folder, engine, status, registry)
        display = self._display(folder, first_step, server)
        display.say(_announced(checked, folder))
        for text in warnings:
            display.say(f"warning: {text}")
        if server is not None:
            display.say(f"weights can be changed at {server.url} (its routes: /docs)")
        if resumed is not None:
            done = resumed.step == cfg.trainer.steps
            text = f"resuming {folder.path.name} after step {resumed.step}"
            display.say(nothing_left(resumed) if done else text)
        with display.phase("loading models"):
            policy = resolve_model(cfg.model.path, base_dir=cfg.base_dir, say=display.say)
            if resumed is not None:
                refuse_other_model(cfg, resumed, policy)
            checked.models.read(policy)
            rows = prompt_rows(cfg, checked.models, checked.train)
            held_out = prompt_rows(cfg, checked.models, checked.held_out)
            engine.setup()
            if resumed is not None:
                self._restore_rewards(engine, resumed)
            self._load_models(policy, checked, resumed, display)
        seconds = seconds_trained(folder.path) if resumed else None
        tracker = self._tracker(folder, first_step)
        in_force = weights_in_force(cfg, engine.store)
        evaluator = self._evaluator(in_force, checked, held_out, shelf)
        self._note(folder, in_force, first_step, session=began, train_seconds=seconds)
        status["ready"] = True
        return Run(
            cfg=cfg,
            folder=folder,
            first_step=first_step,
            engine=engine,
            models=checked.models,
            pipeline=checked.pipeline,
            rows=rows,
            order=PromptOrder(
                len(rows), cfg.rollout.prompts_per_step, seed=cfg.seed, shuffle=cfg.data.shuffle
            ),
            evaluator=evaluator,
            shelf=shelf,
            tracker=tracker,
            display=display,
            status=status,
            server=server,
        )

    # -- parts -------------------------------------------------------------------------------

    def _serve(
        self,
        folder: RunFolder,
        engine: RewardEngine,
        status: dict[str, Any],
        registry: PluginRegistry,
    ) -> ControlServer | None:
        store = engine.store
        if not self.cfg.server.enabled or store is None:
            return None
        state = ControlState(
            run_id=folder.run_id,
            store=store,
            leases=LeaseBook(
                store, engine.lease, generations=engine, ttl=self.cfg.server.lease_ttl
            ),
            engine=engine if self.cfg.server.live_rows else None,
            counted=engine,
            scoring=_live_limits(self.cfg),
            cannot_score=lambda: _learning(engine),
            providers=engine.describe,
            reload=engine.reload,
            status=lambda: status,
            routes=registry.routes(),
            allowed_hosts=self.cfg.server.allowed_hosts,
            run=RunFiles(
                folder.path,
                facts={
                    "name": folder.path.name,
                    "model": Path(self.cfg.model.path).name,
                    "status": "running",
                    "started": folder.state().get("started"),
                },
            ),
        )
        try:
            server = ControlServer(state, self.cfg.server.host, self.cfg.server.port)
        except ConfigError as error:
            raise placed(self.cfg, error) from error
        return self._stack.enter_context(server)

    def _folder(self, warn: Callable[[str], object]) -> tuple[RunFolder, Checkpoint | None]:
        output = Path(self.cfg.output)
        if self.resume is None:
            try:
                self._made = RunFolder.create(output, self.cfg.name)
            except ConfigError as error:
                raise placed(self.cfg, error) from error
            self._stack.enter_context(self._made.held())
            return self._made, None
        folder = RunFolder.to_resume(self.resume, output, self.cfg.name)
        if folder.warning:
            warn(folder.warning)
        self._stack.enter_context(folder.held())
        resumed = checkpoint.latest(folder.path, warn)
        if changes := config_changes(self.cfg, folder.path):
            warn(changes)
        if resumed.step > self.cfg.trainer.steps:
            raise self.cfg.error(
                "trainer.steps",
                f"the run's checkpoint is of step {resumed.step}, beyond the last step that is "
                f"asked for: {self.cfg.trainer.steps}",
                hint=f"set trainer.steps to {resumed.step} or more, or start another run",
            )
        return folder, resumed

    def _engine(
        self,
        registry: PluginRegistry,
        folder: RunFolder,
        shelf: TensorShelf | None,
        resumed: Checkpoint | None,
        warn: Callable[[str], object],
    ) -> RewardEngine:
        engine = self._build(
            self.cfg.rewards(),
            shelf,
            pays_kl=self.cfg.algorithm.nodes_may_pay_kl,
            registry=registry,
            run_id=folder.run_id,
            store_path=folder.path / "weights.db",
            kept_weights=kept_weights(folder.path, resumed) if resumed else None,
        )
        self._stack.callback(engine.close)
        if engine.store is not None:
            if engine.store.lost:
                warn(engine.store.lost)
            engine.store.subscribe(
                lambda before, after: registry.notify(
                    "verl_reward_weights_changed", before=before, after=after
                )
            )
        return engine

    def _build(
        self, rewards: RewardsConfig, shelf: TensorShelf | None, *, pays_kl: bool, **options: Any
    ) -> RewardEngine:
        factory = None if shelf is None else NodeFactory(shelf, pays_kl=pays_kl)
        try:
            return RewardEngine.from_config(rewards, node_factory=factory, **options)
        except ConfigError as error:
            raise placed(self.cfg, error) from error

    def _display(self, folder: RunFolder, first_step: int, server: ControlServer | None) -> Display:
        display = make_display(
            folder.path.name,
            self.cfg.trainer.steps,
            start_step=first_step - 1,
            url=server.url if server else None,
            plain=self.plain,
        )
        return self._stack.enter_context(display)

    def _restore_rewards(self, engine: RewardEngine, resumed: Checkpoint) -> None:
        try:
            reward_state.restore(engine, resumed)
        except ConfigError as error:
            raise placed(self.cfg, error) from error

    def _load_models(
        self,
        policy: ModelSource,
        checked: Preflight,
        resumed: Checkpoint | None,
        display: Display,
    ) -> None:
        cfg = self.cfg
        if cfg.trainer.threads:
            torch.set_num_threads(cfg.trainer.threads)
        critic = None
        if checked.pipeline.has("gae"):
            name = cfg.model.critic or cfg.model.path
            critic = resolve_model(name, base_dir=cfg.base_dir, say=display.say)
            if resumed is not None:
                refuse_other_critic(cfg, resumed, critic)
        keep_large_blocks_apart()  # not before: a conversion uses its blocks again
        checked.models.load(
            policy,
            critic=critic,
            reference=policy
            if checked.pipeline.has("ref_model") or checked.needs_tensors
            else None,
            resume=resumed,
        )
        for text in checked.models.notices:
            display.say(f"warning: {text}")

    def _evaluator(
        self,
        cfg: RunConfig,
        checked: Preflight,
        rows: Sequence[PromptRow],
        shelf: TensorShelf | None,
    ) -> Evaluator | None:
        """None where there are no held-out prompts.

        Args:
            cfg: with the weights in force: evaluations of a run all have those of its step 0.
        """
        if not rows:
            return None
        engine = self._build(
            cfg.eval_rewards(),
            shelf,
            pays_kl=True,
            registry=checked.registry,
            frozen_weights=True,
            watch=False,  # each evaluation of a run has the same measure
        )
        self._stack.callback(engine.close)
        engine.setup()
        return Evaluator(cfg, checked.models, engine, rows, shelf)

    def _tracker(self, folder: RunFolder, first_step: int) -> Tracker:
        tracker = Tracker(
            folder.path,
            start_step=first_step - 1,
            tensorboard=self.cfg.tracking.tensorboard,
            samples_per_step=self.cfg.tracking.samples_per_step,
        )
        return self._stack.enter_context(tracker)

    def _note(self, folder: RunFolder, cfg: RunConfig, first_step: int, **facts: Any) -> None:
        """Note what is in force, and take out how an earlier session ended."""
        write_whole(folder.path / CONFIG, cfg.to_yaml())
        facts |= {"model": cfg.model.path, "steps": cfg.trainer.steps}
        if self.resume is not None:  # of a later step than its checkpoint nothing is left
            facts |= {"resumed": now(), "name": cfg.name, "step": first_step - 1}
        folder.note(status="running", error=None, ended=None, **facts)


def _announced(checked: Preflight, folder: RunFolder) -> str:
    """What is going to happen, in a line."""
    cfg = checked.cfg
    rollout, trainer = cfg.rollout, cfg.trainer
    steps = f"{trainer.steps} step{'s' if trainer.steps > 1 else ''}"
    text = (
        f"{near(folder.path)}: {steps} of {rollout.prompts_per_step} prompts x "
        f"{rollout.n} responses"
    )
    when = [word for word in ("before", "after") if getattr(trainer, f"eval_{word}")]
    if checked.held_out and when:
        text += f", evaluation on {len(checked.held_out)} held-out prompts {' and '.join(when)}"
    return text


class NodeFactory:
    """Builds the `RewardNode`s among the mounts; the reward engine knows no torch.

    Args:
        shelf: where they find their tensors.
        pays_kl: whether they may subtract a KL penalty.
    """

    def __init__(self, shelf: TensorShelf, *, pays_kl: bool) -> None:
        self.shelf, self.pays_kl = shelf, pays_kl

    def __call__(self, mount: MountConfig, base_dir: Path) -> NodeProvider:
        assert mount.node_class is not None
        cls = load_class(mount.node_class, RewardNode, base_dir)
        named = paths_among(mount.init_kwargs, base_dir.absolute())
        stamps = stamps_of(named)
        with opened_files(base_dir.absolute()) as opened:
            node = build(cls, dict(mount.init_kwargs), mount.safe_globals, base_dir)
        if not self.pays_kl:
            refuse_kl_penalty(node)
        stamps |= {str(path): stamp for path, stamp in opened.items()}
        return NodeProvider(
            node,
            self.shelf,
            mount.reads,
            (*opened, *named),
            stamps=stamps,
            owner=(self, mount.name),
        )


def prompt_rows(cfg: RunConfig, models: ModelSet, rows: Sequence[DataRow]) -> list[PromptRow]:
    """Data-set rows with their token ids.

    Raises:
        ConfigError: a prompt is longer than ``data.max_prompt_tokens`` or the model's context; it
            names the file and the line.
    """
    encoded, opened = encode_and_open(
        models.tokenizer,
        [row.prompt for row in rows],
        cfg.data.max_prompt_tokens,
        row_ids=[f"{row.source.name}:{row.line}" for row in rows],
        context=models.context,
        max_new_tokens=cfg.rollout.max_new_tokens,
    )
    return [
        PromptRow(
            row_id=str(row.columns.get("id", row.line)),
            prompt=row.prompt,
            ids=ids,
            columns=dict(row.columns),
            opened=thinking,
        )
        for row, ids, thinking in zip(rows, encoded, opened, strict=True)
    ]
