"""Tokens and a plugin's keys are in no answer, stream, figure, log or file of a served config."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_core.control.logs import Logs

kit = sys.modules["control_scoring"]

KEY, ENV_KEY, ADMIN, READ = "sk-very-secret", "env-very-secret", "admin-secret", "read-secret"
JUDGE = '''
import os
from pydantic import SecretStr
from verl_reward_sdk import ProviderConfig, RewardProvider, RewardResult, hookimpl

VERL_REWARD_API = 1


class JudgeConfig(ProviderConfig):
    api_key: SecretStr
    second_key_env: str


class Judge(RewardProvider[JudgeConfig]):
    """Repeats its keys wherever it can."""

    name = "leaky"

    def score(self, batch):
        said = self.config.api_key.get_secret_value() + " " + os.environ[self.config.second_key_env]
        if batch.responses[0] == "raise":
            raise RuntimeError("401 for " + said)
        if batch.responses[0] == "chain":
            try:
                raise KeyError(said)
            except KeyError as error:
                raise OSError("no answer") from error
        fails = {i: "401 for " + said for i, text in enumerate(batch.responses) if text == "row"}
        return RewardResult([1.0] * len(batch), failures=fails)


@hookimpl
def verl_reward_providers():
    yield Judge
'''
REWARDS = f"""reward:
  - {{type: a, plugin: length}}
  - {{type: j, plugin: leaky, init_kwargs: {{api_key: {KEY}, second_key_env: SECOND_KEY}}}}
"""


async def broken_route(scope: Any, receive: Any, send: Any) -> None:
    """A plugin's route that repeats what it was shown."""
    headers = dict(scope["headers"])
    raise RuntimeError(f"bad token {headers[b'authorization'].decode()} beside {KEY}")


def everything(server: Any) -> list[str]:
    """All that a client can be told, with either token."""
    client, told = server.client, []
    told.append(client.get("/metrics").text)
    for token in (READ, ADMIN):
        client.headers["Authorization"] = f"Bearer {token}"
        for text in ("fine", "row", "raise", "chain"):
            rows = [{"response": text}]
            for training in (False, True):
                body = {"rows": rows, "explain": True, "training": training}
                told.append(client.post(kit.SCORE, json=body).text)
            stream = client.post(
                kit.SCORE,
                content=json.dumps(rows[0]).encode() + b"\n{broken\n",
                headers=kit.NDJSON,
                params={"explain": "true"},
            )
            told.append(stream.text + str(stream.headers))
        told += [
            client.post("/api/v1/reward/weights", json={"a": 2.0}).text,
            *(
                client.get(path).text
                for path in (
                    *("/metrics", "/healthz", "/openapi.json", "/docs"),
                    *("/api/v1/reward/weights", "/api/v1/reward/weights/history"),
                    *("/api/v1/reward/providers", "/human/x"),
                )
            ),
            client.post("/api/v1/reward/providers/j/reload", json={}).text,
            client.post("/api/v1/reward/leases", json={"run_id": "demo", "group": "g"}).text,
        ]
    return told


@pytest.mark.parametrize("form", ["json", "text"])
def test_no_secret_leaves_a_served_config(
    scorer: Callable[..., Any],
    plugin_site: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    form: Any,
) -> None:
    monkeypatch.setenv("SECOND_KEY", ENV_KEY)
    plugin_site.add("leaky", rewards={"leaky": "leaky_mod"}, files={"leaky_mod.py": JUDGE})
    server = scorer(
        REWARDS,
        path=tmp_path / "weights.db",
        token=ADMIN,
        read_token=READ,
        routes={"/human": broken_route},
    )
    logs = Logs(form)
    logs.hide(server.state.secrets())
    with logs:
        told = everything(server)
    out, written = capsys.readouterr()
    assert any("401 for ********** **********" in text for text in told)
    assert "bad token Bearer **********" in written
    assert "RuntimeError" in written
    texts = [*told, out, written, repr(server.state)]
    for secret in (KEY, ENV_KEY, ADMIN, READ):
        assert [text[:200] for text in texts if secret in text] == []
        files = [path for path in tmp_path.glob("weights.db*") if path.is_file()]
        assert files
        assert [path.name for path in files if secret.encode() in path.read_bytes()] == []


def test_without_our_log_the_guard_hides_them_all_the_same(
    scorer: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    server = scorer(token=ADMIN, routes={"/human": broken_route})
    headers = {"Authorization": f"Bearer {ADMIN}"}
    assert server.client.get("/human/x", headers=headers).status_code == 500
    assert "bad token Bearer **********" in caplog.text
    assert ADMIN not in caplog.text
