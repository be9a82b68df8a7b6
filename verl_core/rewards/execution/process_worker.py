"""What runs in a worker process of an `execution: process` mount.

It is started by `process_child.Child`, in a session of its own, with one end of a connection. The
first frame is a `Recipe`; then each frame is a batch, and an empty one means: close and go.
Standard output and standard error belong to the provider.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import importlib
import io
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_core.rewards.execution.process_wire import pack_answer, pack_error, pack_ready
from verl_core.rewards.execution.recipe import Recipe
from verl_core.rewards.execution.work import scorer
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.errors import ConfigError
from verl_reward_sdk.provider import RewardProvider

if TYPE_CHECKING:
    import psutil

    from verl_core.rewards.reload.copies import Taken

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_WATCH_SECONDS = 1.0
_MAX_DEAD = 64
_TIDY_SECONDS = 10.0


def provider_of_plugin(
    plugin: str, init_kwargs: Mapping[str, Any], base_dir: Path, taken: Taken | None = None
) -> RewardProvider[Any]:
    """The installed reward `plugin`, with its config as it was written.

    The config is validated here once more rather than sent: secrets and paths survive that as they
    are, which their JSON form does not.

    Args:
        plugin: its name, as ``verl-reward list`` shows it.
        init_kwargs: the mount's `init_kwargs`.
        base_dir: what relative paths in it count from.
        taken: its assets' copies, which it is to load in their place.

    Raises:
        PluginError: there is no such plugin, or it cannot be loaded.
        ValidationError: the config does not fit (it did when the run was loaded).
    """
    from verl_core.plugins import PluginRegistry

    return _configured(PluginRegistry().provider(plugin), init_kwargs, base_dir, taken)


def provider_of_class(
    target: str, init_kwargs: Mapping[str, Any], base_dir: Path
) -> RewardProvider[Any]:
    """The provider class ``module:Class``, with its config as it was written.

    Raises:
        ConfigError: there is no such class, or it is no `RewardProvider`.
        ValidationError: the config does not fit.
    """
    module, _, name = target.partition(":")
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    if not (isinstance(found, type) and issubclass(found, RewardProvider)):
        raise ConfigError(f"{target} is no RewardProvider class", hint="write module:Class")
    return _configured(found, init_kwargs, base_dir)


def _configured(
    cls: type[RewardProvider[Any]],
    init_kwargs: Mapping[str, Any],
    base_dir: Path,
    taken: Taken | None = None,
) -> RewardProvider[Any]:
    config = cls.Config.model_validate(dict(init_kwargs), context={"base_dir": base_dir})
    if taken is None:
        return cls(config)
    from verl_core.rewards.reload.rebase import rebased

    return cls(rebased(config, taken))


def main(descriptor: int, parent: int) -> None:
    """A worker's life.

    Args:
        descriptor: its end of the connection.
        parent: the process that started it; it never outlives that.
    """
    os.set_inheritable(descriptor, False)
    _die_with(parent)
    if sys.platform == "linux":
        _adopt()
    connection = Connection(descriptor)
    # A fork that kept it open would hide this process's death from the other end.
    os.register_at_fork(after_in_child=connection.close)
    faulthandler.enable()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    try:
        _serve(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        sys.exit(0)  # the other end is gone: nobody is left to be told


def _serve(connection: Connection) -> None:
    try:
        recipe: Recipe = pickle.loads(connection.recv_bytes())
        provider = recipe.make(*recipe.args)
        provider.setup()
        low, high = (float(bound) for bound in provider.score_range)
        score = scorer(provider, recipe.retries)
        labels = provider.labels
    except BaseException as error:  # noqa: BLE001 - a boundary: the parent gets it as text
        connection.send_bytes(pack_error(error))
        return
    connection.send_bytes(pack_ready(labels))
    tidied = time.monotonic()
    while frame := connection.recv_bytes():
        connection.send_bytes(_scored(frame, score, recipe.name, (low, high)))
        if time.monotonic() >= tidied + _TIDY_SECONDS:
            _tidy()
            tidied = time.monotonic()
    provider.close()


def _scored(
    frame: bytes,
    score: Callable[[RewardBatch], object],
    name: str,
    score_range: tuple[float, float],
) -> bytes:
    """The answer to the batch in `frame`, or what was raised, ``sys.exit`` included."""
    try:
        batch: RewardBatch = pickle.loads(frame)
        answer = score(batch)
        return pack_answer(answer, provider=name, n=len(batch), score_range=score_range)
    except BaseException as error:  # noqa: BLE001 - a boundary: the parent gets it as text
        return pack_error(error)


def _die_with(parent: int) -> None:
    """End when `parent` does, kill -9 included, even while a call hangs.

    Linux sends the signal when the *thread* that started this process ends; that thread outlives
    it by design. Elsewhere a thread looks once a second, and an idle worker sees its connection
    close.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it died before the line above
        os._exit(1)


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os.killpg(0, signal.SIGKILL)


def _adopt() -> None:
    """Become the parent of descendants whose own parent ends (daemons), so that they are found, and
    killed with this process. What is left of them at an orderly end, this process kills itself."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Registered first, it runs last.
    atexit.register(_end_family, os.getpid())


def _children(*, recursive: bool) -> list[psutil.Process]:
    """This process's children, or all its descendants; dead ones that nobody reaped among them."""
    if sys.platform != "linux":
        return []
    try:
        dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return []
    if dead is None and not recursive:
        return []
    import psutil

    return list(psutil.Process().children(recursive=recursive))


def _tidy() -> None:
    """Reap adopted children that are dead: nobody else will, and they would add up.

    They look like the provider's own, whose exit code it may still ask for. So that many are left,
    and the oldest go.
    """
    dead = []
    for child in _children(recursive=False):
        with contextlib.suppress(Exception):  # gone between two looks
            if child.status() == "zombie":
                dead.append((child.create_time(), child.pid))
    for _, pid in sorted(dead)[:-_MAX_DEAD]:
        with contextlib.suppress(ChildProcessError):  # the provider has just asked for it
            os.waitpid(pid, os.WNOHANG)


def _end_family(own: int) -> None:
    if os.getpid() != own:
        return  # a fork, with a family of its own
    for process in _children(recursive=True):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(process.pid, signal.SIGKILL)
