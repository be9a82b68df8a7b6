"""The SDK README's further examples: token scores, and a judge that is asked over HTTP."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from verl_core.config import MountConfig, RewardsConfig
from verl_core.rewards import RewardEngine, RewardTable
from verl_core.rewards.tokens import place
from verl_reward_sdk import ConfigError, ProviderError, RewardBatch

README = (Path(__file__).parents[2] / "sdk" / "README.md").read_text(encoding="utf-8")
KEY = "sesame-4711"


# -- token scores ----------------------------------------------------------------------------------


def steps_program() -> tuple[str, str]:
    """The program, and what it prints."""
    block = r"```{}\n((?:(?!```)[\s\S])*)```"
    pair = block.format("python") + r"\n\nprints\n\n" + block.format("text")
    [(program, said)] = re.findall(pair, README)
    return program, said


def steps_class(**members: Any) -> Any:
    names: dict[str, Any] = {"print": lambda *_: None}
    exec(compile(steps_program()[0], "sdk/README.md", "exec"), names)
    return type("Own", (names["Steps"],), members)


def score_steps(cls: Any, text: str) -> RewardTable:
    config = RewardsConfig(mounts=(MountConfig(type="steps", node_class="a.B", weight=2.0),))
    with RewardEngine.from_config(
        config, node_factory=lambda mount, folder: cls(cls.Config())
    ) as engine:
        return engine.score(RewardBatch(sample_ids=["a"], prompts=["?"], responses=[text]))


def test_the_program_with_token_scores_prints_what_the_readme_says():
    program, said = steps_program()
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == said


def test_the_engine_takes_its_spans_and_puts_them_where_each_line_ends():
    text = "Well:\n1. Add.\n2. Halve."
    table = score_steps(steps_class(), text)
    assert table.columns["steps"].scores.tolist() == [0.5]
    letters = np.array([ord(letter) for letter in text])
    [tokens] = place(
        table.fused,
        table.token_parts,
        response_ids=[letters],
        responses=[text],
        decode=lambda ids: "".join(map(chr, ids)),
    )
    assert {at: tokens[at] for at in np.flatnonzero(tokens).tolist()} == {12: 0.5, 22: 0.5}


def test_without_the_declaration_its_answer_is_refused():
    column = score_steps(steps_class(token_scores=False), "1. Add.").columns["steps"]
    assert column.status.tolist() == ["failed"]
    assert "token_scores" in column.notes[0]


# -- the judge -------------------------------------------------------------------------------------


class Judged:
    """A server that answers as `answers` say, one after the other, the last one for good."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, dict[str, str]]] = [(200, {})]
        self.seen: list[tuple[str | None, str]] = []
        self.release = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.seen.append((self.headers["Authorization"], body["text"]))
                at = min(len(outer.seen), len(outer.answers)) - 1
                status, headers = outer.answers[at]
                if status == 0:  # says nothing until the test is over
                    outer.release.wait(60)
                    return
                self.send_response(status)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(json.dumps({"score": 0.75}).encode())

            def log_message(self, *arguments: Any) -> None:
                """Nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/score"
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def judged() -> Iterator[Judged]:
    server = Judged()
    yield server
    server.close()


@pytest.fixture
def mounted(plugin_site: Any, judged: Judged, monkeypatch: Any) -> Callable[..., RewardEngine]:
    """An engine with the README's module, mounted as its YAML does, but for the address."""
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    [module] = re.findall(r"\*\*`verl_reward_judge.py`\*\*\n\n```python\n(.*?)```", README, re.S)
    plugin_site.add(
        "verl-reward-judge",
        rewards={"judge": "verl_reward_judge"},
        files={"verl_reward_judge.py": module},
    )
    [[mount]] = [
        part
        for text in re.findall(r"```yaml\n(.*?)```", README, re.S)
        if isinstance(part := yaml.safe_load(text), list)
    ]

    def engine(**arguments: Any) -> RewardEngine:
        given = {**mount["init_kwargs"], "url": judged.url, **arguments}
        config = MountConfig(**{**mount, "init_kwargs": given, "retry_wait": 0.01})
        return RewardEngine.from_config(RewardsConfig(mounts=(config,)))

    return engine


def asked(engine: RewardEngine) -> Any:
    with engine:
        batch = RewardBatch(sample_ids=["a"], prompts=["?"], responses=["Gladly."])
        return engine.score(batch).columns["helpful"], json.dumps(engine.describe())


def test_the_judge_is_asked_again_and_its_key_is_shown_nowhere(mounted, judged):
    judged.answers = [(503, {"Retry-After": "0"}), (429, {}), (200, {})]
    column, described = asked(mounted(key=KEY))
    assert column.scores.tolist() == [0.75]
    assert judged.seen == [(f"Bearer {KEY}", "Gladly.")] * 3
    assert KEY not in described


def test_the_key_may_come_from_the_environment_and_must_be_somewhere(mounted, judged, monkeypatch):
    engine = mounted()
    with pytest.raises((ConfigError, ProviderError), match="the judge has no key"):
        engine.setup()
    engine.close()
    monkeypatch.setenv("JUDGE_KEY", KEY)
    asked(mounted())
    assert judged.seen == [(f"Bearer {KEY}", "Gladly.")]


def test_a_refusal_is_told_and_not_tried_again(mounted, judged):
    judged.answers = [(401, {})]
    column, _ = asked(mounted(key=KEY))
    assert column.status.tolist() == ["failed"]
    assert "HTTP 401" in column.notes[0]
    assert len(judged.seen) == 1


def test_a_judge_that_is_silent_ends_at_the_providers_own_timeout_and_is_tried_again(
    mounted, judged
):
    judged.answers = [(0, {})]
    column, _ = asked(mounted(key=KEY, timeout=0.2))
    assert "ReadTimeout" in column.notes[0]
    assert len(judged.seen) == 3
