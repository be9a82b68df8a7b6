"""Changes of the weights as server-sent events, to a bounded number of listeners.

Nothing is queued for a listener: each has the revision that it was told last, and reads on from the
audit log when something is new. So a slow one costs no memory, and one that was away has missed
nothing. What this process changes is told at once; what others write to the same file is found by
one look every quarter second for all listeners together.

``sse-starlette`` is not used: it exchanges a method of uvicorn's ``Server`` for the whole process,
which here is the trainer's, and learns that a server stops from signal handlers, which this one
does not have. What is left of it is the form of an event, three lines.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from verl_core.control.answers import json_text
from verl_core.control.connection import STOPPING
from verl_core.control.head import IS_HEAD
from verl_core.control.problem import Problem
from verl_core.control.routers.weights import weights_answer
from verl_core.control.state import ControlState
from verl_core.rewards.persistence import StoreBusy, StoreError
from verl_core.rewards.weights import WeightSnapshot

logger = logging.getLogger(__name__)

_PAGE = 100  # revisions that are read at once
_RETRY_MILLISECONDS = 2000
_HEARTBEAT = b": still here\n\n"
_HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class WeightEvents:
    """Who listens to one run's weights. All methods are for the server's event loop.

    Args:
        state: the run, and the bounds.
    """

    def __init__(self, state: ControlState) -> None:
        self.run_id = state.run_id
        self.bounds = state.listening
        self._store = state.store
        self._listeners: set[asyncio.Event] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: asyncio.Task[None] | None = None
        state.store.subscribe(lambda before, after: self._tell())

    def join(self) -> asyncio.Event:
        """A place for one more listener: an event that is set when there is something new.

        Raises:
            Problem: 503, all places are taken.
        """
        if len(self._listeners) >= self.bounds.listeners:
            raise Problem(
                503,
                "too-many-listeners",
                f"{self.bounds.listeners} clients listen to the weights already; close one, or read"
                " them with GET now and then",
                headers={"Retry-After": "5"},
            )
        news = asyncio.Event()
        self._listeners.add(news)
        if self._looking is None:
            self._loop = asyncio.get_running_loop()
            self._looking = self._loop.create_task(self._look())
        return news

    def leave(self, news: asyncio.Event) -> None:
        """Give a place back."""
        self._listeners.discard(news)
        if not self._listeners and self._looking is not None:
            self._looking.cancel()
            self._loop = self._looking = None

    async def after(self, revision: int | None) -> list[WeightSnapshot]:
        """The changes after a revision, the oldest first, not all at once; None, and a number that
        was never given: the newest one alone.

        Raises:
            StoreError: the file cannot be read.
        """
        newest = await run_in_threadpool(self._store.refresh)
        if revision is None or revision > newest.revision:
            return [newest]
        if revision == newest.revision:
            return []
        return await run_in_threadpool(self._store.since, revision, _PAGE)

    def _tell(self) -> None:
        """Called in the thread that made a change."""
        loop = self._loop
        if loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and all listeners with it
                loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        for news in self._listeners:
            news.set()

    async def _look(self) -> None:
        """See what other processes have written."""
        seen = None
        while True:
            try:
                newest = (await run_in_threadpool(self._store.refresh)).revision
            except StoreError as error:  # those who listen find it too, and say so
                logger.debug("%s", error)
                newest = None
            if newest != seen:
                seen = newest
                self._wake()
            await asyncio.sleep(self.bounds.look_seconds)


class EventStream(Response):
    """The answer: one event a revision, until the client or the server goes.

    Args:
        events: whom to ask.
        last: the revision that the client knows; None: none.
    """

    media_type = "text/event-stream"

    def __init__(self, events: WeightEvents, last: int | None) -> None:
        super().__init__(headers=_HEADERS)
        del self.headers["content-length"]
        self._events, self._last = events, last

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # The place is taken and given back here and nowhere else, whatever happens in between.
        try:
            news = self._events.join()
        except Problem as problem:
            await problem.response(run_id=self._events.run_id)(scope, receive, send)
            return
        try:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            if not scope.get(IS_HEAD):
                stopping = scope.get("state", {}).get(STOPPING)
                ends = [_gone(receive)] if stopping is None else [_gone(receive), stopping.wait()]
                await _first_of(self._write(send, news), *ends)
            await send({"type": "http.response.body", "body": b""})
        finally:
            self._events.leave(news)

    async def _write(self, send: Send, news: asyncio.Event) -> None:
        async def put(part: bytes) -> None:
            await send({"type": "http.response.body", "body": part, "more_body": True})

        await put(f"retry: {_RETRY_MILLISECONDS}\n\n".encode())
        while True:
            news.clear()
            try:
                found = await self._events.after(self._last)
            except StoreBusy:
                await asyncio.sleep(self._events.bounds.look_seconds)
                continue
            except StoreError as error:
                logger.error("a stream of the weights' changes ends: %s", error)
                return
            for snapshot in found:
                await put(_event(self._events.run_id, snapshot))
                self._last = snapshot.revision
            while not found and not await _set_within(news, self._events.bounds.heartbeat_seconds):
                await put(_HEARTBEAT)


def _event(run_id: str, snapshot: WeightSnapshot) -> bytes:
    # Readers of lines differ in what ends one; none of them is ASCII but those that JSON escapes.
    data = json_text(weights_answer(run_id, snapshot), ascii_only=True)
    return f"id: {snapshot.revision}\ndata: {data}\n\n".encode()


async def _set_within(news: asyncio.Event, seconds: float) -> bool:
    """Whether an event is set in time. (`asyncio.wait_for` may lose a cancellation on its way.)"""
    waiting = asyncio.ensure_future(news.wait())
    try:
        done, _ = await asyncio.wait([waiting], timeout=seconds)
    finally:
        waiting.cancel()
    return bool(done)


async def _gone(receive: Receive) -> None:
    """Return when the client has left."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _first_of(*works: Coroutine[Any, Any, Any]) -> None:
    """Run all until one ends, and cancel the others; raises what it raised."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
