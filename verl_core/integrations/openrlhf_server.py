"""The rewards of a config over HTTP, as OpenRLHF asks for them.

A server of its own for ``--reward.remote_url http://127.0.0.1:5000/get_reward``:

    uvicorn.run(reward_app("run.yaml"), host="127.0.0.1", port=5000)

or a route in an application that there is already, such as the control plane's: `reward_router`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import time
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from starlette.responses import JSONResponse, Response

from verl_core.config.rewards import RewardsConfig
from verl_core.control.answers import problems
from verl_core.control.body import json_object
from verl_core.control.guard import Guard
from verl_core.control.metrics.requests import note
from verl_core.control.problem import Problem, install_handlers, key_error
from verl_core.control.scoring.service import ScoreService
from verl_core.integrations.fitting import read_rewards
from verl_core.integrations.openrlhf import LABEL, OpenRlhfReward, Source, carried, fitted
from verl_core.integrations.openrlhf_texts import Texts
from verl_core.rewards.engine import RewardEngine
from verl_reward_sdk.errors import ConfigError, ContractError, RewardError, VerlRewardError

logger = logging.getLogger(__name__)

#: OpenRLHF sends a micro-batch of texts at once: some thousand of the longest that models read.
MAX_BODY = 64 << 20
#: Seconds for which a failed attempt to load answers requests, so that none waits for its own.
_PAUSE = 5.0


def reward_router(
    source: Source,
    *,
    tokenizer: Any = None,
    label: str = LABEL,
    engine: RewardEngine | None = None,
    path: str = "/get_reward",
    overrides: Sequence[str] = (),
) -> APIRouter:
    """``POST {query, prompts, labels}``, as OpenRLHF sends it, in an application that is there.

    Tokenizer and providers are loaded when the application starts. Where that fails, the log says
    why, and so does the 503 of every request until one of them finds that it can be done.

    Args:
        engine: the one that serves `source` already, so that its live weights hold here too;
            without it one is made.
        path: the route's.
        Others as in `reward_function`.

    Raises:
        ConfigError: as `reward_function`; or no answer could be there within OpenRLHF's 180 s.
    """
    texts = Texts(tokenizer)
    rewards = fitted(read_rewards(source, overrides), label, http=True)
    reward = OpenRlhfReward(rewards, texts, label, engine=engine)
    loading = _Loading(reward)

    @asynccontextmanager
    async def lifespan(_: object) -> AsyncIterator[None]:
        with suppress(Problem):  # it was logged, and every request will say it
            await loading.ready()
        yield
        await asyncio.to_thread(reward.close)

    router = APIRouter(tags=["openrlhf"], lifespan=lifespan)

    @router.post(path, name="openrlhf_reward")
    async def get_reward(request: Request) -> Response:
        """Rewards for OpenRLHF: a query is a prompt with the response behind it.

        Each request is scored under a lease of its own. An answer of 503 is one that OpenRLHF asks
        for again, up to five times.
        """
        queries, prompts, labels = _fields(await json_object(request))
        await loading.ready()
        return await _answered(reward, queries, prompts, labels)

    return router


def served_router(service: ScoreService, rewards: RewardsConfig, path: str) -> APIRouter:
    """The same over a control plane's own scoring: its engine, its live weights, its bounds.

    What OpenRLHF cannot carry of the config is found at the first request, which is refused then.
    """
    router = APIRouter(tags=["openrlhf"])

    @functools.cache
    def made() -> OpenRlhfReward:
        return OpenRlhfReward(
            carried(rewards, LABEL, http=True),
            Texts(None),
            LABEL,
            engine=service.engine,
            score=service.score_batch,
        )

    @router.post(path, name="openrlhf_reward", responses=problems(400, 409, 415, 422, 429, 503))
    async def get_reward(request: Request) -> Response:
        """Rewards for OpenRLHF (`--reward.remote_url`): `{query, prompts, labels}` in,
        `{rewards, scores, extra_logs}` out. A query is a prompt with the response behind it."""
        service.check_ready()
        try:
            reward = await asyncio.to_thread(made)
        except ConfigError as error:
            raise Problem(409, "cannot-score", f"OpenRLHF cannot carry this: {error}") from error
        queries, prompts, labels = _fields(await json_object(request))
        note(request.scope, rows=len(queries))
        return await _answered(reward, queries, prompts, labels)

    return router


async def _answered(
    reward: OpenRlhfReward, queries: list[str], prompts: list[str], labels: list[Any]
) -> Response:
    try:
        return JSONResponse(await reward.answer(queries, prompts, labels))
    except RewardError as error:
        raise Problem(503, "no-reward", str(error), headers={"Retry-After": "1"}) from error
    except (ConfigError, ContractError) as error:
        raise Problem(422, "invalid-request", str(error)) from error


class _Loading:
    """Loads what scores, once; where that fails, one attempt answers all who wait for it."""

    def __init__(self, reward: OpenRlhfReward) -> None:
        self._reward = reward
        self._lock = asyncio.Lock()
        self._failed, self._until = "", 0.0

    async def ready(self) -> None:
        """Raise `Problem` (503) where it cannot be loaded."""
        if self._reward.loaded:
            return
        async with self._lock:
            if time.monotonic() >= self._until:
                self._failed = await self._load()
                self._until = time.monotonic() + (_PAUSE if self._failed else 0.0)
        if self._failed:
            raise Problem(503, "not-loaded", self._failed, headers={"Retry-After": f"{_PAUSE:g}"})

    async def _load(self) -> str:
        """Why it cannot be loaded, or nothing."""
        try:
            await asyncio.to_thread(self._reward.engine)
        except Exception as error:  # noqa: BLE001  (whatever it is, OpenRLHF is told in words)
            named = isinstance(error, VerlRewardError)
            said = str(error) if named else f"{type(error).__name__}: {error}"
            logger.error("the rewards cannot be loaded: %s", said)
            return f"the rewards cannot be loaded: {said}"
        return ""


def reward_app(
    source: Source,
    *,
    allowed_hosts: Collection[str] = (),
    max_body: int = MAX_BODY,
    **options: Any,
) -> FastAPI:
    """An application with `reward_router` alone, for ``uvicorn``; `options` are the router's.

    OpenRLHF shows no token, so none is asked for: let it listen on 127.0.0.1, or where only the
    trainer reaches it.

    Args:
        allowed_hosts: names under which it may be called, beside the loopback ones, this machine's
            own, and the address at which a request arrives.
        max_body: bytes of a request's body, counted as they come; a larger one is a 413.
    """
    app = FastAPI(title="verl-reward for OpenRLHF", docs_url=None, redoc_url=None)
    app.add_middleware(Guard, token=None, allowed_hosts=allowed_hosts, max_body=max_body)
    app.include_router(reward_router(source, **options))
    install_handlers(app, "openrlhf")
    return app


def _fields(body: Mapping[str, Any]) -> tuple[list[str], list[str], list[Any]]:
    queries, prompts, labels = body.get("query"), body.get("prompts"), body.get("labels")
    errors = []
    for key, value in (("query", queries), ("prompts", prompts)):
        if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
            errors.append(key_error(key, "expected a list of texts"))
    if labels is None and isinstance(queries, list):
        labels = [None] * len(queries)
    if not isinstance(labels, list):
        errors.append(key_error("labels", "expected a list"))
    lists = [one for one in (queries, prompts, labels) if isinstance(one, list)]
    if not errors and len({len(one) for one in lists}) > 1:
        errors.append(key_error("query", "query, prompts and labels differ in length"))
    if errors:
        said = "; ".join(f"{error['key']}: {error['detail']}" for error in errors)
        raise Problem(422, "invalid-request", said, errors=errors)
    return lists[0], lists[1], lists[2]
