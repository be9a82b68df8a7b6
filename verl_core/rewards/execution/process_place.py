"""One worker's place in an `execution: process` mount: a thread that starts a process, gives it
calls, and replaces it."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from concurrent.futures import Future
from multiprocessing.connection import wait
from time import monotonic

from verl_core.rewards.execution.call import Call, WorkerLost
from verl_core.rewards.execution.process_child import Child
from verl_core.rewards.execution.process_line import Down, Line
from verl_core.rewards.execution.process_wire import pack_batch, unpack
from verl_core.rewards.execution.slots import Slot, Ticket
from verl_core.rewards.raised import told
from verl_reward_sdk.errors import (
    ContractError,
    ProviderError,
    ProviderTimeout,
    VerlRewardError,
)
from verl_reward_sdk.result import RewardResult

logger = logging.getLogger(__name__)

_CLOSE_SECONDS = 5.0
_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.5, 30.0


class Place:
    """A place for one worker at a time.

    Args:
        line: where its calls come from; its lock guards all public attributes.
        number: of the place in it.
    """

    def __init__(self, line: Line, number: int) -> None:
        self._line = line
        self._number = number
        self.thread: threading.Thread | None = None
        self.child: Child | None = None
        self.call: Call | None = None
        self.starts = 0  # workers that were set up here
        self._failures = 0  # starts in a row that came to nothing
        self._attempt: Future[None] = Future()
        self._pipe: tuple[int, int] | None = None
        self._ticket: Ticket | None = None

    # -- from any thread; the lock is held ---------------------------------------------------------

    def start(self) -> Future[None]:
        """Begin, or begin again at once; ends when the worker is set up or has failed."""
        if self.thread is None:
            self._begin()
        elif self._line.down.pop(self._number, None) is not None:
            self._attempt = Future()
            self.wake()
        return self._attempt

    def _begin(self) -> None:
        self._pipe = os.pipe()
        for end in self._pipe:
            os.set_blocking(end, False)
        name = f"reward-{self._line.name}-{self._number}"
        thread = threading.Thread(target=self._run, name=name, daemon=True)
        try:
            thread.start()
        except BaseException:
            self._close_pipe()
            raise
        self.thread = thread

    def ask(self) -> None:
        """There is a call in line.

        Raises:
            OSError, RuntimeError: the system has no more descriptors or threads.
        """
        down = self._line.down.get(self._number)
        if self.thread is None or (down is not None and down.retry_at <= monotonic()):
            self.start()
        elif self.call is None:
            self.wake()

    def wake(self) -> None:
        """Have the thread look round."""
        if self._pipe is not None:
            with contextlib.suppress(BlockingIOError):  # it has been woken often enough
                os.write(self._pipe[1], b"\0")

    def _close_pipe(self) -> None:
        if self._pipe is not None:
            ends, self._pipe = self._pipe, None
            for end in ends:
                os.close(end)

    # -- its thread's life -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._may_start():
                try:
                    child = self._start()
                    if child is not None:
                        self._serve(child)
                except Exception as error:  # noqa: BLE001 - a boundary: the place outlives it
                    self._give_up(error)
        finally:
            with self._line.lock:
                self._close_pipe()
                self.thread = None
                if not self._attempt.done():
                    self._attempt.set_exception(ProviderError("the mount was closed"))

    def _give_up(self, error: Exception) -> None:
        """End the worker after what nobody foresaw; another is tried after a pause."""
        logger.exception("mount %s: its worker is given up", self._line.name)
        self._leave()
        with self._line.lock:
            call, child = self.call, self.child
            self.call = None
        if call is not None:
            call.fail(error)
        if child is not None:
            self._end(child)
        self._failed(ProviderError(f"its worker was given up: {told(error)}"))

    def _may_start(self) -> bool:
        """Wait until a process is wanted; False once the mount is closed."""
        while True:
            with self._line.lock:
                if self._line.closed:
                    return False
                if self._number not in self._line.down:
                    return True
            self._sleep()

    def _sleep(self) -> None:
        """Until `wake`."""
        assert self._pipe is not None  # this thread closes it
        wait([self._pipe[0]])
        self._rest()

    def _rest(self) -> None:
        """Forget that somebody called `wake`."""
        assert self._pipe is not None  # this thread closes it
        with contextlib.suppress(BlockingIOError):
            os.read(self._pipe[0], 4096)

    def _start(self) -> Child | None:
        """A worker that is set up; None where it could not be."""
        try:
            child = Child(self._line.name, self._line.secrets)
        except OSError as error:
            self._failed(ProviderError(f"no process can be started: {told(error)}"))
            return None
        with self._line.lock:
            self._line.children.add(child)
        failure = self._set_up(child)
        if failure is not None:
            self._failed(failure)
            return None
        self._ready(child)
        return child

    def _set_up(self, child: Child) -> Exception | None:
        """Have it build its provider; what went wrong, where something did: then it has ended."""
        until = monotonic() + self._line.setup_timeout
        try:
            child.send(self._line.recipe)
            frame = child.receive(until, lambda: self._line.closed)
            if frame is None:
                self._end(child)
                seconds = f"{self._line.setup_timeout:g} s"
                return ProviderTimeout(f"its worker was not set up within {seconds}: it was killed")
            labels = unpack(frame)
            assert not isinstance(labels, RewardResult)  # it was asked nothing yet
            self._line.labels = labels
        except (EOFError, OSError):
            return ProviderError(f"{self._end(child, dying=True)} while it was set up")
        except ValueError as error:
            self._end(child)
            return ProviderError(str(error))
        except VerlRewardError as error:
            self._end(child)
            return error
        except Exception as error:  # noqa: BLE001 - a boundary: whoever waits gets the error
            self._end(child)
            return ProviderError(f"its worker cannot be set up: {told(error)}")
        return None

    def _ready(self, child: Child) -> None:
        with self._line.lock:
            self.child = child
            self.starts += 1
            if not self._attempt.done():
                self._attempt.set_result(None)

    def _failed(self, error: Exception) -> None:
        """Stay down for a while: longer after each start that comes to nothing."""
        pause = min(_MAX_PAUSE_SECONDS, _PAUSE_SECONDS * 2.0 ** min(self._failures, 10))
        with self._line.lock:
            self._failures += 1
            now = monotonic()
            self._line.down[self._number] = Down(now + pause, str(error))
            self._line.give_up_waiting(now)
            if not self._attempt.done():
                self._attempt.set_exception(error)

    def _end(self, child: Child, *, dying: bool = False) -> str:
        """Kill and reap it; how it ended."""
        said = child.end(dying=dying)
        with self._line.lock:
            self.child = None
            self._line.children.discard(child)
        return said

    # -- calls -------------------------------------------------------------------------------------

    def _serve(self, child: Child) -> None:
        """Give it calls, as long as it lives and the mount is open."""
        while True:
            call, slot = self._next()
            if call is not None:
                try:
                    alive = self._execute(child, call)
                except BaseException as error:  # noqa: BLE001 - a boundary: the place lives on
                    call.fail(error)
                    self._end(child)
                    alive = False
                finally:
                    if slot is not None:
                        slot.release()
                    with self._line.lock:
                        self.call = None
                if not alive:
                    return
                child.sum_up()
                continue
            if self._line.closed:
                self._leave()
                child.close(_CLOSE_SECONDS)
                self._end(child)
                return
            assert self._pipe is not None  # this thread closes it
            pause = None if self._ticket is None else self._ticket.pause
            if child.wait(pause, self._pipe[0]):
                self._leave()
                self._died_idle(self._end(child, dying=True))
                return
            self._rest()

    def _next(self) -> tuple[Call | None, Slot | None]:
        """The next call, begun, and its host's slot; neither where there is nothing to do yet."""
        slot = self._slot_or_fail()
        with self._line.lock:
            if self._line.slots is None or slot is not None:
                while self._line.queue:
                    call = self._line.queue.popleft()
                    if call.begin():
                        self.call = call
                        return call, slot
        if slot is not None:
            slot.release()
        return None, None

    def _slot_or_fail(self) -> Slot | None:
        """`_slot`; where none can be had at all, the first in line fails, and then the next."""
        while True:
            try:
                return self._slot()
            except Exception as error:  # noqa: BLE001 - a boundary: the place outlives it
                self._leave()
                with self._line.lock:
                    if self._line.queue:
                        self._line.queue.popleft().fail(error)

    def _slot(self) -> Slot | None:
        """A slot of the host, where there is a call for it; this thread stands in line for it."""
        if self._line.slots is None:
            return None
        if not self._line.queue:
            self._leave()
            return None
        if self._ticket is None:
            self._ticket = self._line.slots.line_up(self._wake_safely)
        slot = self._ticket.take()
        if slot is not None:
            self._ticket = None
        return slot

    def _leave(self) -> None:
        if self._ticket is not None:
            self._ticket.leave()
            self._ticket = None

    def _wake_safely(self) -> None:
        with self._line.lock:
            self.wake()

    def _execute(self, child: Child, call: Call) -> bool:
        """One call, to its end; whether the worker lives on."""
        assert call.started is not None  # begun
        child.sum_up()  # of what it printed while it was idle
        try:
            frame = pack_batch(call.batch)
        except ProviderError as error:
            call.fail(error)
            return True
        try:
            child.send(frame)
            answer = child.receive(call.started + self._line.limits.timeout)
            if answer is None:
                call.fail(self._line.too_late())
                self._end(child)
                return False
            result = unpack(answer)
        except (EOFError, OSError):
            call.fail(WorkerLost(self._end(child, dying=True)))
            return False
        except ValueError as error:
            self._end(child)
            call.fail(ContractError(str(error), provider=self._line.name, bound="an answer"))
            return False
        except VerlRewardError as error:
            call.fail(error)
        else:
            call.succeed(result)
        self._failures = 0
        return True

    def _died_idle(self, said: str) -> None:
        """Nobody asked anything of it: replaced at once, but not again and again."""
        logger.warning("mount %s: %s while it was idle", self._line.name, said)
        if self._failures == 0:
            self._failures = 1
            return
        self._failed(ProviderError(f"{said} while it was idle"))
