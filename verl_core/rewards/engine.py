"""RewardEngine: a batch in, a RewardTable out."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_core.config.rewards import RewardsConfig
from verl_core.config.secrets import without
from verl_core.rewards.answer import Answer
from verl_core.rewards.build import MountBuilder, NodeFactory
from verl_core.rewards.columns import TableColumns
from verl_core.rewards.fuser import Fuser
from verl_core.rewards.fusion import fusion_policy
from verl_core.rewards.learner import Learner
from verl_core.rewards.lease import Lease, StepLeases
from verl_core.rewards.mount import Mount
from verl_core.rewards.policy_rules import check_mounts, check_policy, mount_info
from verl_core.rewards.process_state import kept
from verl_core.rewards.raised import is_interrupt, told
from verl_core.rewards.reload.copies import SETTLE
from verl_core.rewards.reload.fingerprint import Stat
from verl_core.rewards.reload.places import Places
from verl_core.rewards.revisions import KeptWeights
from verl_core.rewards.schedules import parse_schedule, value_at
from verl_core.rewards.scoring import Scoring
from verl_core.rewards.streaming import StreamedScoring
from verl_core.rewards.table import RewardTable
from verl_core.rewards.weights import WeightError, WeightStore
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError, ProviderError, RewardError
from verl_reward_sdk.protocols import FusionPolicy

if TYPE_CHECKING:
    from verl_core.plugins import PluginRegistry


class RewardEngine:
    """Mounts, a fusion policy, and the weights between them. May be used from many threads.

    Made by `from_config`; `setup` loads the providers (the first scoring does, where it was not
    called), `close` releases them. It is a context manager.
    """

    def __init__(
        self,
        builders: Iterable[MountBuilder],
        policy: FusionPolicy,
        *,
        store: WeightStore | None,
        frozen: Mapping[str, float],
        registry: PluginRegistry,
        watch: bool = True,
        settle: float = SETTLE,
        stat: Stat = os.stat,
    ) -> None:
        self._places = Places(
            builders,
            check=self._check_generation,
            observe=self._changed,
            watch=watch,
            settle=settle,
            stat=stat,
        )
        self.policy = policy
        self.fuser = Fuser(
            policy, {m.name: m.config for m in self.mounts.values() if m.role == "reward"}
        )
        self.store = store
        self._own_store: WeightStore | None = None
        self._frozen = frozen
        self._registry = registry
        self._loading = threading.Lock()
        self._loaded = self._closed = False
        self._steps = StepLeases()
        self._observers: tuple[Callable[[RewardBatch, RewardTable], None], ...] = ()
        self._generation_observers: tuple[Callable[[str, Any, Any], None], ...] = ()

    @property
    def mounts(self) -> Mapping[str, Mount]:
        """Name -> mount, in config order, in the generations that serve now. What was taken out of
        here stays as it is; a lease has its own (`Lease.mounts`)."""
        return self._places.mounts

    @classmethod
    def from_config(
        cls,
        cfg: RewardsConfig,
        *,
        store: WeightStore | None = None,
        registry: PluginRegistry | None = None,
        node_factory: NodeFactory | None = None,
        frozen_weights: bool = False,
        store_path: Path | None = None,
        store_shared: bool = False,
        run_id: str | None = None,
        kept_weights: KeptWeights | None = None,
        watch: bool = True,
        settle: float = SETTLE,
        stat: Stat = os.stat,
    ) -> RewardEngine:
        """Build and check everything; load nothing heavy.

        Args:
            cfg: the mounts and the fusion.
            store: the live weights; by default the engine makes a `WeightStore` of its own with
                those of `cfg`, and closes it.
            registry: the plugins; by default those that are installed.
            node_factory: makes the providers of mounts that name a `node_class`.
            frozen_weights: keep the weights that `cfg` gives at step 0 for good (for
                `eval_reward:`); leases then carry revision 0.
            store_path: the file of the engine's own store; without one it is in memory.
            store_shared: that file is meant to be open in several processes, which is not warned
                of.
            run_id: the run whose revisions the engine's own store keeps.
            kept_weights: of a run that is resumed: what its checkpoint knows of its weights.
            watch: have leases look whether files changed; without it a mount's generation changes
                by `reload` alone.
            settle: seconds for which a changed file must stand still before it is taken.
            stat: tells when a file changed last; another than `os.stat` stands for a file system
                whose clock is coarse.

        Raises:
            ConfigError: something in `cfg` cannot be used; it names the YAML path.
        """
        if sum((frozen_weights, store is not None, store_path is not None)) > 1:
            raise ValueError("weights are frozen, or in a store, or in a file: give one of them")
        registry = registry or _installed()
        policy = fusion_policy(cfg.fusion, registry)
        builders = (
            MountBuilder(config, cfg.base_dir, registry, node_factory) for config in cfg.mounts
        )
        settings = {m.name: parse_schedule(m.setting()) for m in cfg.mounts if not m.is_gate}
        engine = cls(
            builders,
            policy,
            store=store,
            frozen={name: value_at(setting, 0) for name, setting in settings.items()},
            registry=registry,
            watch=watch,
            settle=settle,
            stat=stat,
        )
        check_mounts(policy, engine.mounts.values())
        engine.check_weights(engine._frozen)
        if store is not None:
            engine._check_store(store)
        elif not frozen_weights:
            engine.store = engine._own_store = WeightStore(
                settings,
                run_id=run_id,
                path=store_path,
                shared=store_shared,
                gates=[m.name for m in cfg.mounts if m.is_gate],
                allow_zero=cfg.fusion.allow_zero,
                check=engine.check_weights,
                kept=kept_weights,
            )
        return engine

    # -- life ----------------------------------------------------------------------------------

    def setup(self) -> None:
        """Load every provider, one after the other. Does nothing the second time.

        Raises:
            ProviderError: one cannot be loaded; it names the mount.
            ConfigError: the same, where the provider itself says so.
        """
        with self._loading:
            if self._closed:
                raise ProviderError("the engine was closed: make a new one")
            if self._loaded:
                return
            for name, mount in self.mounts.items():
                try:
                    with kept(f"mount {mount.name!r} ({mount.source})"):
                        self._places.setup(name)
                except ConfigError as error:
                    raise error.with_location(path=mount.path) from error
                except BaseException as error:
                    if is_interrupt(error):
                        raise
                    said = str(error) if isinstance(error, ProviderError) else told(error)
                    said = without(said, mount.config.secrets)
                    raise ProviderError(
                        f"mount {mount.name!r} ({mount.source}) cannot be loaded: {said}"
                    ) from error
            check_mounts(self.policy, self.mounts.values())  # as the files are that were loaded
            self._keep({})
            self._loaded = True

    def close(self) -> None:
        """Release every provider. A thread that hangs is left behind."""
        with self._loading:
            self._closed = True
            self._places.close()
            if self._own_store is not None:
                self._own_store.close()

    def __enter__(self) -> RewardEngine:
        try:
            self.setup()
        except BaseException:
            self.close()  # what was loaded before: nobody else will
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what it is ----------------------------------------------------------------------------

    @property
    def reads(self) -> frozenset[str]:
        """Every column that a mount needs."""
        return frozenset().union(*(mount.reads for mount in self.mounts.values()))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The texts among the mounts' arguments that may be shown nowhere."""
        return tuple(text for mount in self.mounts.values() for text in mount.config.secrets)

    def describe(self) -> list[dict[str, Any]]:
        """The mounts as ``GET …/providers`` shows them, JSON-ready, in config order."""
        weights = self._frozen if self.store is None else self.store.snapshot().weights
        return [place.describe(weights.get(place.name)) for place in self._places]

    def reload(self, name: str) -> dict[str, Any]:
        """Look at a mount's files now and wait for what comes of it, as `describe` shows the mount
        with ``outcome`` (``unchanged | swapped | refused | restarted``) and ``detail``.

        Unlike what leases do by themselves, it tries a refused content once more, and starts a
        fresh worker for an `execution: process` mount, which runs the code that is installed now.

        Raises:
            UnknownMount: there is none of that name; the nearest is named.
            ProviderError, ConfigError: the engine was closed, or could not be set up.
        """
        place = self._places.place(name)
        self.setup()
        result = self._places.reload(name)
        weights = self._frozen if self.store is None else self.store.snapshot().weights
        shown = place.describe(weights.get(name))
        return {**shown, "outcome": result.outcome, "detail": result.detail}

    def generation(self, name: str, lease: Lease | None = None) -> dict[str, Any]:
        """What a mount runs, now or under `lease`: ``{number, digests, version}``.

        Raises:
            UnknownMount: there is none of that name.
        """
        place = self._places.place(name)
        mounts = (None if lease is None else lease.mounts) or self.mounts
        return place.shown(mounts[name])

    def check_weights(self, weights: Mapping[str, float]) -> None:
        """Raise `ConfigError` where the fusion policy cannot serve these weights.

        Args:
            weights: every rewarding mount's weight.
        """
        infos = [
            mount_info(mount, weights.get(name, 0.0))
            for name, mount in self.mounts.items()
            if mount.role == "reward"
        ]
        check_policy(self.policy, infos)

    def _check_store(self, store: WeightStore) -> None:
        snapshot = store.snapshot()
        ours = [name for name, mount in self.mounts.items() if mount.role == "reward"]
        if set(snapshot.weights) != set(ours):
            odd = sorted(set(snapshot.weights) ^ set(ours))
            raise ConfigError(
                f"the weight store and the mounts differ in: {', '.join(odd)}", path="reward"
            )
        try:
            store.require(self.check_weights)
        except WeightError as error:
            raise ConfigError(str(error), path="reward") from error

    # -- scoring ---------------------------------------------------------------------------------

    def lease(self, step: int | None = None) -> Lease:
        """Fix the weights' revision and every mount's generation.

        With `step`: the step's own lease, the same whenever it is asked for (a synchronous run
        scores a whole step under it). Without: whatever holds now. Files are looked at first, and
        a mount with ``reload: blocking`` whose files changed is waited for.
        """
        return self.lease_of(*self._in_force(step), step)

    def running(self) -> Lease:
        """The generations that serve now, on no weights; no file is looked at."""
        mounts = self.mounts
        generations = {name: mount.generation for name, mount in mounts.items()}
        return Lease(0, {}, generations, None, mounts)

    def catch_up(self) -> bool:
        """Look at files, and wait for every new generation, ``reload_wait`` at most, also where a
        mount's ``reload`` is ``background``; whether none is missing."""
        return not self._loaded or self._places.catch_up()

    def before_swap(self, observer: Callable[[], None]) -> None:
        """Call `observer` before a generation is replaced, while it still serves, in the thread
        that made the new one. It must not raise."""
        self._places.before_swap(observer)

    @property
    def quiet(self) -> bool:
        """Whether `lease` would return at once: no file has changed that it would wait for."""
        return not self._loaded or self._places.quiet

    def lease_of(
        self, revision: int, weights: Mapping[str, float] | None, step: int | None = None
    ) -> Lease:
        """As `lease`, with weights from elsewhere.

        Args:
            revision: of the weights; 0 where they are frozen.
            weights: every rewarding mount's weight; None: those that are frozen.
            step: the step it is for, whose generations are the same whatever the weights.
        """
        weights = self._frozen if weights is None else weights
        if step is None:
            return self._lease_now(revision, weights, None)
        found = self._steps.get(step, lambda: self._lease_now(revision, weights, step))
        if found.revision == revision and found.weights == weights:
            return found
        return Lease(revision, weights, found.generations, step, found.mounts)

    def _lease_now(self, revision: int, weights: Mapping[str, float], step: int | None) -> Lease:
        if self._loaded:
            self._places.look()
        mounts = self.mounts
        generations = {name: mount.generation for name, mount in mounts.items()}
        return Lease(revision, weights, generations, step, mounts)

    def _in_force(self, step: int | None) -> tuple[int, Mapping[str, float] | None]:
        if self.store is None:
            return 0, None
        snapshot = self.store.snapshot() if step is None else self.store.lease(step)
        return snapshot.revision, snapshot.weights

    def open(self, batch: RewardBatch, *, lease: Lease | None = None) -> Scoring:
        """Begin to score `batch`: run the mounts stage by stage, then `Scoring.finish`.

        Without a lease it is one of its own: the newest weights, at the batch's step.
        """
        if not self._loaded or self._closed:
            self.setup()
        lease = self._own_lease(batch) if lease is None else lease
        return Scoring(batch, lease, self._mounts_of(lease), self.fuser, self._seen)

    def stream(
        self,
        sample_ids: Sequence[str],
        group_ids: Sequence[Hashable] | None = None,
        *,
        lease: Lease | None = None,
        slice_groups: int = 1,
        early: Collection[str] | None = None,
    ) -> StreamedScoring:
        """Begin to score a step of which no row is there yet: `StreamedScoring.submit` its rows as
        they end, then run the mounts and finish as with `open`. The same rows give the same bits
        in whatever order they come.

        Args:
            sample_ids: of the step's B rows, in the order of prompts.
            group_ids: B of them, or None: each row is a group.
            lease: without one, the newest weights.
            slice_groups: so many groups are scored together.
            early: mounts that may begin as soon as rows are in; by default all. One whose
                provider learns while it scores is asked once, about the whole step, all the same:
                else it would learn in the order in which rows came.
        """
        if not self._loaded or self._closed:
            self.setup()
        lease = self.lease() if lease is None else lease
        early = set(self.mounts if early is None else early) - self._learners().keys()
        return StreamedScoring(
            sample_ids,
            group_ids,
            self._mounts_of(lease),
            partial(self.open, lease=lease),
            slice_groups=slice_groups,
            early=early,
        )

    def score(self, batch: RewardBatch, *, lease: Lease | None = None) -> RewardTable:
        """Score and fuse `batch`; all mounts run at once.

        Raises:
            ConfigError: a column is missing, or holds what a condition cannot compare.
            RewardError: the batch may not be trained on.
        """
        scoring = self.open(batch, lease=lease)
        scoring.run(self.mounts)
        return scoring.finish()

    async def ascore(self, batch: RewardBatch, *, lease: Lease | None = None) -> RewardTable:
        """`score` for a coroutine, on whatever event loop it runs; nothing blocks that loop but
        the first call's `setup` and inline mounts."""
        if lease is None and not self.quiet:
            lease = await asyncio.to_thread(self._own_lease, batch)
        scoring = self.open(batch, lease=lease)
        await scoring.arun(self.mounts)
        return scoring.finish()

    # -- learning --------------------------------------------------------------------------------

    def step_end(self, table: TableColumns) -> None:
        """Learn from a finished training step: multipliers, running statistics, and what providers
        have learnt while they scored it. A step counts once, whenever this is called for it.

        Raises:
            ProviderError: a provider's state cannot be had.
            ValueError: the table is not of training.
        """
        self.fuser.step_end(table)
        self._keep(table.generations)

    def step_again(self) -> None:
        """Forget what providers have learnt since the last `step_end`: their step is scored again,
        and what they learnt from it the first time does not count."""
        for learner in self._learners(self._steps.newest).values():
            learner.back()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps of the rewards: as it was at the last `step_end`.

        ``{fusion: JSON-ready, providers: {mount: plain values and arrays}}``.
        """
        learnt = {name: learner.state() for name, learner in self._learners().items()}
        kept = {name: state for name, state in learnt.items() if state is not None}
        return {"fusion": self.fuser.state(), "providers": kept}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a checkpoint's `state`; loads the providers first.

        Raises:
            ConfigError: it holds what a mount or the policy cannot take.
            ProviderError: a provider's `load_state` raises.
        """
        self.setup()
        self.fuser.load_state(state["fusion"])
        for name, learner in self._learners().items():
            if name in state["providers"]:
                learner.load_state(state["providers"][name])

    def _learners(self, lease: Lease | None = None) -> dict[str, Learner]:
        """Those of a lease's generations; by default of those that serve now."""
        mounts = (None if lease is None else lease.mounts) or self.mounts
        found = {name: mount.learner for name, mount in mounts.items()}
        return {name: one for name, one in found.items() if one is not None and one.learns}

    def _keep(self, generations: Mapping[str, int]) -> None:
        """Note what these generations have learnt; one that serves by now goes on from there."""
        for name, learner in self._learners().items():
            scored = self._places.generation(name, generations.get(name)).learner or learner
            scored.keep()
            if scored is not learner:
                learner.back()

    # -- inside ----------------------------------------------------------------------------------

    def _own_lease(self, batch: RewardBatch) -> Lease:
        if self.store is None:
            return self._lease_now(0, self._frozen, batch.step)
        snapshot = self.store.snapshot(batch.step)
        return self._lease_now(snapshot.revision, snapshot.weights, batch.step)

    def _mounts_of(self, lease: Lease) -> Mapping[str, Mount]:
        if lease.mounts is None:
            return self.mounts
        if not lease.mounts:
            raise RewardError("the lease was ended: take another")
        return lease.mounts

    def _check_generation(self, mounts: Iterable[Mount]) -> None:
        """Raise `ConfigError` where the fusion policy cannot have these mounts."""
        found = list(mounts)
        check_mounts(self.policy, found)
        weights = self._frozen if self.store is None else self.store.snapshot().weights
        infos = [mount_info(m, weights.get(m.name, 0.0)) for m in found if m.role == "reward"]
        check_policy(self.policy, infos)

    def _changed(self, name: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        for observer in self._generation_observers:
            observer(name, before, after)
        self._registry.notify(
            "verl_reward_generation_changed", mount=name, before=before, after=after
        )

    def subscribe(self, observer: Callable[[RewardBatch, RewardTable], None]) -> None:
        """Call ``observer(batch, table)`` with every batch scored from now on, in the thread
        that scores: it must be quick, and must not raise."""
        self._observers = (*self._observers, observer)

    def subscribe_answers(self, observer: Callable[[str, Answer], None]) -> None:
        """Call ``observer(mount, answer)`` with every answer of a mount from now on, also where the
        batch is refused for it: in the place of who was told so far."""
        for mount in self.mounts.values():
            mount.record.observer = observer

    def subscribe_generations(self, observer: Callable[[str, Any, Any], None]) -> None:
        """Call ``observer(mount, before, after)``, as the hook ``verl_reward_generation_changed``,
        when a new generation serves: it must be quick, and must not raise."""
        self._generation_observers = (*self._generation_observers, observer)

    def _seen(self, batch: RewardBatch, table: RewardTable) -> None:
        for observer in self._observers:
            observer(batch, table)
        self._registry.notify("verl_reward_batch_scored", table=table)


def _installed() -> PluginRegistry:
    from verl_core.plugins import PluginRegistry

    return PluginRegistry()
