"""One mount's place: the generation that serves, and the candidate that may follow it."""

from __future__ import annotations

import logging
import threading
import time
import traceback
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal

from verl_core.config.secrets import without
from verl_core.rewards.build import MountBuilder
from verl_core.rewards.mount import Mount
from verl_core.rewards.process_state import Culprit, watch
from verl_core.rewards.raised import told
from verl_core.rewards.reload.closing import Retired, release
from verl_core.rewards.reload.copies import Moving, Taken, take
from verl_core.rewards.reload.digests import WrongDigest
from verl_core.rewards.reload.fingerprint import Missing, Stat, Watched, scan
from verl_core.rewards.reload.proof import own_rows, prove, try_on
from verl_core.rewards.reload.rebase import original_error
from verl_reward_sdk.errors import ConfigError, ProviderError, VerlRewardError

logger = logging.getLogger(__name__)

#: Candidates are loaded one at a time in this process: what a library changes for everybody while
#: it loads a model (a default dtype, torch's meta device) never meets another load.
LOADING = threading.RLock()

Outcome = Literal["unchanged", "swapped", "refused", "restarted"]

_ASKED_SECONDS = 600.0  # that whoever asks for a reload waits
_REFUSED = 16  # digests that are remembered
_REDONE = 3  # times that a candidate is begun anew because its files changed while it was loaded


@dataclass(frozen=True)
class Result:
    """What became of a candidate, and why, in words."""

    outcome: Outcome
    detail: str


@dataclass(eq=False)
class Candidate:
    """A generation in the making.

    Args:
        asked: a person asks for it: a refused digest is tried once more.
    """

    asked: bool = False
    state: str = "waiting for its files to stand still"
    since: float = field(default_factory=time.time)
    begun: float = field(default_factory=monotonic)
    done: Future[Result] = field(default_factory=Future)

    def as_dict(self) -> dict[str, Any]:
        """JSON-ready; `since` is seconds of the epoch."""
        return {"state": self.state, "since": self.since}


@dataclass(frozen=True)
class Outside:
    """What a place is told by its engine.

    Args:
        publish: have `mount` take its predecessor's place, in one assignment.
        check: raise `ConfigError` where the engine cannot have the mount: its fusion policy.
        leaving: called before a generation is replaced, while it still serves; must not raise.
        observe: the mount's name, and what it was and is; called once it serves.
        settle: seconds between two looks at files that must agree.
        stat: tells a path's stamp.
    """

    publish: Callable[[Mount], None]
    check: Callable[[Mount], None]
    leaving: Callable[[], None]
    observe: Callable[[str, Mapping[str, Any], Mapping[str, Any]], None]
    settle: float
    stat: Stat


class Place:
    """See above. From any thread.

    Args:
        builder: makes the mount's generations.
        draft: the mount before anything was loaded.
        outside: the engine's part.
    """

    def __init__(self, builder: MountBuilder, draft: Mount, outside: Outside) -> None:
        self.builder = builder
        self.config = builder.config
        self.name = builder.config.name
        self.active = draft
        self.candidate: Candidate | None = None
        self.last_error: str | None = None
        self.retired = Retired(self.name)
        self._outside = outside
        self._watched: Watched | None = None
        self._gone: str | None = None
        self._refused: OrderedDict[tuple[str, ...], str] = OrderedDict()
        self._lock = threading.Lock()
        self._loaded = self._closed = False

    # -- life --------------------------------------------------------------------------------------

    @property
    def watches(self) -> bool:
        """Whether it has files whose change makes another generation."""
        return self._watched is not None

    def setup(self) -> None:
        """Load generation 1, out of private copies. Raises what loading raises."""
        if self._loaded:
            return
        draft = self.active
        assets = self.builder.assets(draft)
        if not assets:
            draft.setup()
            self._loaded = True
            return
        self.active = self._first(draft, assets)
        self._outside.publish(self.active)
        self.active.record.want_rows()
        self._loaded = True

    def _first(self, draft: Mount, assets: tuple[str, ...]) -> Mount:
        end = monotonic() + self.config.reload_wait
        taken = None
        try:
            taken = take(
                assets,
                name=self.name,
                copy=self.builder.copies,
                settle=self._outside.settle,
                first_waits=False,
                until=lambda: monotonic() > end,
                stat=self._outside.stat,
            )
            taken.check()
            mount = self.builder.following(draft, taken, 1) if self.builder.copies else draft
            mount.setup()
            if (rows := own_rows(mount)) is not None:
                try_on(mount, rows)
        except BaseException as error:
            if taken is not None:
                original_error(error, taken.folder)
                taken.drop()
            told_error = _named(error, taken, assets)
            if told_error is error:
                raise
            raise told_error from error
        self._watched = Watched(assets, self._outside.stat)
        if not self.builder.copies and not _as_built(draft, taken):
            self._watched.took(taken.scan, None)  # it was built of other files than these
        else:
            mount.taken = taken
            self._watched.took(taken.scan, taken.files)
        return mount

    def close(self) -> None:
        """Release every generation. A candidate that is loading is left behind."""
        self._closed = True
        candidate = self.candidate
        if candidate is not None:
            candidate.done.cancel()
        self.active.close()
        if self.active.taken is not None:
            self.active.taken.drop()
        self.retired.close()

    # -- looking -----------------------------------------------------------------------------------

    def quiet(self) -> bool:
        """Whether a lease has nothing to look at closer: one `stat` a file."""
        if self._watched is None:
            return True
        if self.candidate is not None:
            return not self._waits_for(self.candidate)
        return self._watched.calm()

    def look(self) -> Candidate | None:
        """Begin a candidate where files have changed; the one that a lease should wait for."""
        candidate = self.next_one()
        return candidate if candidate is not None and self._waits_for(candidate) else None

    def next_one(self) -> Candidate | None:
        """Begin a candidate where files have changed; the one that is being made."""
        if self.candidate is None and (self._watched is None or self._watched.calm()):
            return None
        with self._lock:
            if self.candidate is None and not self._closed and self._changed():
                self._begin(Candidate())
            return self.candidate

    def _changed(self) -> bool:
        assert self._watched is not None  # who else looks
        try:
            changed = self._watched.changed()
        except Missing as gone:
            self._vanished(gone)
            return False
        if not changed and self._gone is not None:
            self._gone = None
        return changed

    def _waits_for(self, candidate: Candidate) -> bool:
        if self.config.reload != "blocking":
            return False
        if not self.builder.copies and candidate.state == "loading":
            return True  # the working folder is the whole process's while a node is built
        return monotonic() < candidate.begun + self.config.reload_wait

    def reload(self) -> Result:
        """Look at once, and wait for what comes of it."""
        restarts = self.active.execution == "process"
        if self._watched is None and not restarts:
            return Result("unchanged", self._with_advice("it reads no files"))
        while True:
            with self._lock:
                if self._closed:
                    raise ProviderError("the engine was closed")
                running = self.candidate
                if running is None:
                    mine = Candidate(asked=True)
                    self._begin(mine)
            try:
                if running is None:
                    return mine.done.result(_ASKED_SECONDS)
                running.done.result(_ASKED_SECONDS)  # begun by a lease, before the last change
            except FutureTimeout as error:
                said = "waiting" if self.candidate is None else self.candidate.state
                raise ProviderError(
                    f"mount {self.name!r}: its new generation is still {said}, after"
                    f" {_ASKED_SECONDS:g} s; the old one serves on"
                ) from error

    def _begin(self, candidate: Candidate) -> None:
        """Make the candidate in a thread of its own; the lock is held."""
        self.candidate = candidate
        threading.Thread(
            target=self._run, args=(candidate,), name=f"reload-{self.name}", daemon=True
        ).start()

    # -- making a candidate ------------------------------------------------------------------------

    def _run(self, candidate: Candidate) -> None:
        result = Result("unchanged", "it was given up")
        try:
            result = self._attempt(candidate)
        except BaseException as error:  # noqa: BLE001 - a boundary: whoever waits is told
            self.last_error = told(error)
            result = Result("refused", self.last_error)
            _forget_frames(error)
        finally:
            self.candidate = None
            if candidate.done.set_running_or_notify_cancel():
                candidate.done.set_result(result)

    def _attempt(self, candidate: Candidate) -> Result:
        redone = 0
        while True:
            try:
                taken = self._take()
            except Missing as gone:
                self._vanished(gone)
                return Result("unchanged", f"{gone}: the old generation serves on")
            except Moving:
                return Result("unchanged", "the engine was closed")
            except (OSError, WrongDigest) as error:
                return self._cannot_take(error)
            self._gone = None
            before = self._known(taken, candidate)
            if before is not None:
                self._drop(taken)
                return before
            try:
                mount, rows = self._loaded_mount(taken, candidate)
            except BaseException as error:  # noqa: BLE001 - a boundary: a candidate may raise anything
                result = self._refuse(taken, error)
                _forget_frames(error)
                self._drop(taken)
                return result
            if self._moved_since(taken) and (redone < _REDONE or not self.builder.copies):
                redone += 1  # the newest wins
                release(self.name, mount.runner, taken)
                candidate.state = "waiting for its files to stand still"
                continue
            return self._swap(mount, rows)

    def _take(self) -> Taken | None:
        if self._watched is None:
            return None  # a process mount without files, whose workers are replaced
        assets = self.builder.assets(self.active)
        if assets != self._watched.assets:
            self._watched = Watched(assets, self._outside.stat)
        return take(
            assets,
            name=self.name,
            copy=self.builder.copies,
            settle=self._outside.settle,
            until=lambda: self._closed,
            stat=self._outside.stat,
        )

    def _cannot_take(self, error: Exception) -> Result:
        """Its files cannot be read or copied: not tried again until they change."""
        assert self._watched is not None  # it has files
        said = str(error) if isinstance(error, WrongDigest) else told(error)
        try:
            self._watched.took(scan(self._watched.assets, stat=self._outside.stat), {})
        except Missing as gone:
            self._vanished(gone)
        return self._said(f"its files cannot be taken: {said}")

    def _known(self, taken: Taken | None, candidate: Candidate) -> Result | None:
        """What can be told without loading it."""
        if taken is None:
            return None
        assert self._watched is not None  # it has files
        try:
            taken.check()
        except WrongDigest as error:
            self._watched.took(taken.scan, taken.files)
            return self._said(str(error))
        if taken.key in self._refused and not candidate.asked:
            self._watched.took(taken.scan, taken.files)
            return self._said(self._refused[taken.key])
        active = self.active.taken
        restarts = candidate.asked and self.active.execution == "process"
        if active is not None and active.digests == taken.digests and not restarts:
            self._watched.took(taken.scan, taken.files)
            self.last_error = None
            return Result("unchanged", self._with_advice("its files are those that it runs"))
        return None

    def _loaded_mount(self, taken: Taken | None, candidate: Candidate) -> tuple[Mount, str]:
        """A mount that is set up and proved, and on which rows it was."""
        candidate.state = "waiting for another mount to load"
        with LOADING:
            candidate.state = "loading"
            end = watch.begin(Culprit(f"mount {self.name!r} ({self.active.source})"))
            try:
                mount = self.builder.following(self.active, taken, self.active.generation + 1)
                try:
                    mount.setup()
                    candidate.state = "being proved"
                    rows = prove(mount, self.active)
                    self._outside.check(mount)
                except BaseException:
                    mount.runner.close()
                    raise
            finally:
                end()
        return mount, rows

    def _moved_since(self, taken: Taken | None) -> bool:
        if taken is None:
            return False
        try:
            now = scan(tuple(taken.digests), tuple(taken.manifests), self._outside.stat)
        except Missing:
            return False  # that changes nothing
        return not now.same_files(taken.scan)

    def _swap(self, mount: Mount, rows: str) -> Result:
        before, taken = self.active, mount.taken
        files = _changes(before, mount, self.builder.written)
        if mount.learner is not None and mount.learner.learns:
            mount.learner.back()  # the proof is not learnt from, and the old one may have learnt
        self._outside.leaving()
        with self._lock:
            if self._closed:
                release(self.name, mount.runner, taken)
                return Result("unchanged", "the engine was closed")
            if self._watched is not None and taken is not None:
                self._watched.took(taken.scan, taken.files)
            self.active, self.last_error = mount, None
            mount.record.began_anew()
            self._outside.publish(mount)
            self.retired.add(before)
        what = ", ".join(files) or "its worker was started anew"
        logger.info("mount %s: generation %d: %s", self.name, mount.generation, what)
        self._outside.observe(self.name, self.shown(before), self.shown(mount))
        outcome: Outcome = "swapped" if files else "restarted"
        return Result(outcome, f"generation {mount.generation}: {what}; proved on {rows}")

    # -- what is told ------------------------------------------------------------------------------

    def _vanished(self, gone: Missing) -> None:
        if self._gone is None:
            logger.warning("mount %s: %s; the old generation serves on", self.name, gone)
        self._gone = str(gone)

    def _refuse(self, taken: Taken | None, error: BaseException) -> Result:
        if taken is not None:
            original_error(error, taken.folder)
            assert self._watched is not None  # it has files
            self._watched.took(taken.scan, taken.files)
        said = str(error) if isinstance(error, VerlRewardError) else told(error)
        if taken is not None and taken.folder is not None:
            said = said.replace(str(taken.folder), "")
        said = without(said, self.config.secrets)
        if taken is not None:
            names = ", ".join(self._differing(taken)) or ", ".join(taken.digests)
            said = said if any(asset in said for asset in taken.files) else f"{names}: {said}"
            self._refused[taken.key] = said
            while len(self._refused) > _REFUSED:
                self._refused.popitem(last=False)
        return self._said(said)

    def _differing(self, taken: Taken) -> list[str]:
        active = self.active.taken
        return [a for a, d in taken.digests.items() if active is None or active.digests.get(a) != d]

    def _said(self, why: str) -> Result:
        logger.warning(
            "mount %s: a new generation is refused, %d serves on: %s",
            self.name,
            self.active.generation,
            why,
        )
        self.last_error = why
        return Result("refused", why)

    def _drop(self, taken: Taken | None) -> None:
        if taken is not None:
            taken.drop()

    def _with_advice(self, said: str) -> str:
        code = self.active.code
        change = None if code is None else code.change(restarts=False)
        return said if change is None else f"{said}; {change}"

    def shown(self, mount: Mount) -> dict[str, Any]:
        """A generation, JSON-ready: ``{number, digests, version}``."""
        return {
            "number": mount.generation,
            "digests": self.digests(mount),
            "version": str(mount.code or ""),
        }

    def digests(self, mount: Mount) -> dict[str, str]:
        """Asset, as the config names it -> SHA-256."""
        taken = mount.taken
        if taken is None:
            return {}
        return {self.builder.written(asset): digest for asset, digest in taken.digests.items()}

    def describe(self, weight: float | None) -> dict[str, Any]:
        """What ``GET …/providers`` shows of the mount, JSON-ready."""
        active, candidate = self.active, self.candidate
        shown = active.describe(weight)
        if self._gone is not None and shown["state"] == "ready":
            shown["state"] = "degraded"
        code = active.code
        return {
            **shown,
            "last_error": self.last_error or self._gone or shown["last_error"],
            "digests": self.digests(active),
            "candidate": None if candidate is None else candidate.as_dict(),
            "reload": self.config.reload,
            "retired": len(self.retired),
            "code": str(code or "") or None,
            "code_changed": None
            if code is None
            else code.change(restarts=active.execution == "process"),
        }


def _as_built(mount: Mount, taken: Taken) -> bool:
    """Whether what a node opened is what was found afterwards. Files of ``watch:`` it may not have
    opened by itself."""
    stamps = getattr(mount.provider, "stamps", {})
    return all(
        stamps.get(path, taken.scan.files[path]) == taken.scan.files[path] for path in taken.files
    )


def _changes(before: Mount, after: Mount, written: Callable[[str], str]) -> list[str]:
    """Which assets are others now, in words."""
    old = {} if before.taken is None else before.taken.digests
    new = {} if after.taken is None else after.taken.digests
    names = [
        asset
        for asset in (*new, *(a for a in old if a not in new))
        if old.get(asset) != new.get(asset)
    ]
    return [f"{written(asset)} changed" for asset in names]


def _named(error: BaseException, taken: Taken | None, assets: tuple[str, ...]) -> BaseException:
    """What kept generation 1 from being loaded, naming its files where it does not by itself."""
    if isinstance(error, Missing):
        return ConfigError(f"no such file or folder ({error.why})", file=error.path)
    if isinstance(error, Moving):
        return ProviderError(f"{', '.join(assets)}: still being written")
    if not isinstance(error, Exception):
        return error
    said = str(error) if isinstance(error, VerlRewardError) else told(error)
    if taken is not None and taken.folder is not None:
        said = said.replace(str(taken.folder), "")
    known = assets if taken is None else (*assets, *taken.files)
    if isinstance(error, VerlRewardError) and any(path in said for path in known):
        return error
    if isinstance(error, ConfigError):
        error.message = f"{error.message} (its files: {', '.join(assets)})"
        return error
    return ProviderError(said if any(p in said for p in known) else f"{', '.join(assets)}: {said}")


def _forget_frames(error: BaseException) -> None:
    """Let go of what the frames of a traceback hold: the weights of a model that was refused."""
    seen: set[int] = set()
    stack: list[BaseException | None] = [error]
    while stack:
        one = stack.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = None
        stack += [one.__cause__, one.__context__]
