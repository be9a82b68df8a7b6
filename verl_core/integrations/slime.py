"""The rewards of a config as slime's remote reward model.

    --rm-type remote_rm --rm-url http://127.0.0.1:8000/remote_rm

slime posts ``{prompt, response, label}``, one sample a request, and takes whatever JSON comes back
as the sample's reward: a number here, or, with ``--rm-url …/remote_rm?details=true`` and
``--reward-key reward``, a mapping. It asks again, up to ten times, where the status is no success,
and cannot leave a sample out: one that may not be trained on is a 503.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from verl_core.config.rewards import RewardsConfig
from verl_core.control.answers import problems
from verl_core.control.body import json_object
from verl_core.control.metrics.requests import note
from verl_core.control.problem import Problem, key_error
from verl_core.control.scoring.service import ScoreService, told
from verl_core.integrations.openrlhf import label_columns, refuse_dead
from verl_core.rewards.table import RewardTable
from verl_reward_sdk.batch import RewardBatch
from verl_reward_sdk.turns import Prompt

TRAINER = "slime"
_LABEL = "ground_truth"


def slime_router(service: ScoreService, rewards: RewardsConfig, path: str) -> APIRouter:
    """``POST {prompt, response, label}`` over a control plane's own scoring."""
    router = APIRouter(tags=["slime"])
    prefix, count = secrets.token_hex(4), itertools.count()

    @router.post(path, name="slime_reward", responses=problems(400, 415, 422, 429, 503))
    async def remote_rm(request: Request, details: bool = False) -> Response:
        """The reward of one sample for slime (`--rm-type remote_rm`): a number; with `details` a
        mapping with the key `reward`, for `--reward-key reward`.

        A label is the column `ground_truth`; one that is a mapping gives a column a key.
        """
        service.check_ready()
        note(request.scope, rows=1)
        prompt, response, label = _fields(await json_object(request))
        with told():
            batch = RewardBatch(
                sample_ids=[f"{prefix}-{next(count)}"],
                prompts=[prompt],
                responses=[response],
                columns=label_columns([label], _LABEL, service.reads),
                training=True,
            )
            table = await service.score_batch(batch, receive=request.receive)
            refuse_dead(table, rewards, TRAINER)
        return JSONResponse(_details(table) if details else float(table.fused[0]))

    return router


def _details(table: RewardTable) -> dict[str, Any]:
    parts = {
        f"reward/{name}": float(value)
        for name, column in table.columns.items()
        if (value := column.contribution[0]) == value
    }
    return {"reward": float(table.fused[0]), **parts, "weights_revision": table.revision}


def _fields(body: Mapping[str, Any]) -> tuple[Prompt, str, Any]:
    errors = []
    prompt, response = body.get("prompt"), body.get("response")
    if not isinstance(prompt, str) and not _is_messages(prompt):
        errors.append(key_error("prompt", "expected a text or a list of messages"))
    if not isinstance(response, str):
        errors.append(key_error("response", "expected a text"))
    if errors:
        said = "; ".join(f"{error['key']}: {error['detail']}" for error in errors)
        raise Problem(422, "invalid-request", said, errors=errors)
    assert isinstance(response, str)
    return prompt, response, body.get("label")  # type: ignore[return-value]


def _is_messages(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, Mapping) for one in value)
