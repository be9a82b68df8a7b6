"""The Python client of the score route."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_scoring import Scorer

from verl_core.control.client import NoAnswer
from verl_core.control.score_client import ScoreClient
from verl_core.control.scoring.admission import ScoringLimits
from verl_reward_sdk.errors import ConfigError

Start = Callable[..., Scorer]


def test_it_scores_rows_and_takes_options(scorer: Start) -> None:
    with ScoreClient(scorer().url) as client:
        answer = client.score([{"response": "abc"}], explain=True)
        assert answer["rows"][0]["fused"] == 9.0
        assert answer["rows"][0]["explain"]["additive"] is True


def test_a_refusal_says_which_row(scorer: Start) -> None:
    with ScoreClient(scorer().url) as client, pytest.raises(ConfigError, match="rows/0/response"):
        client.score([{"prompt": "p"}])


def test_it_streams_any_number_of_rows(scorer: Start) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        for number in range(3000):
            yield {"response": "x" * (number % 5), "prompt": "p" * 500}

    with ScoreClient(scorer().url) as client:
        found = list(client.score_lines(rows(), explain=False))
    assert [row["fused"] for row in found] == [3.0 * (number % 5) for number in range(3000)]


def test_what_rows_raise_reaches_the_caller(scorer: Start) -> None:
    def rows() -> Iterator[dict[str, Any]]:
        yield {"response": "x"}
        raise KeyError("mine")

    with ScoreClient(scorer().url) as client, pytest.raises(KeyError, match="mine"):
        list(client.score_lines(rows()))


def test_a_stream_that_is_refused_says_why(scorer: Start) -> None:
    with ScoreClient(scorer().url) as client, pytest.raises(ConfigError, match="timeout"):
        list(client.score_lines([{"response": "x"}], timeout=-1))


def test_it_comes_again_where_there_was_no_room(
    scorer: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    hold = tmp_path / "hold"
    hold.touch()
    server = scorer(
        "reward: [{type: s, plugin: slow, workers: 8}]\n", scoring=ScoringLimits(requests=1)
    )
    first = threading.Thread(target=server.score, args=("0",))
    first.start()
    while server.admission is None or not server.admission.requests:
        pass
    with ScoreClient(server.url, patience=0.5) as client, pytest.raises(NoAnswer, match="busy"):
        client.score([{"response": "0"}])
    threading.Timer(0.2, hold.unlink).start()
    with ScoreClient(server.url) as client:
        assert client.score([{"response": "0"}])["rows"][0]["fused"] == 1.0
    first.join()


def test_nobody_there_is_told() -> None:
    with ScoreClient("http://127.0.0.1:9") as client:
        with pytest.raises(NoAnswer, match="no answer"):
            client.score([])
        with pytest.raises(NoAnswer, match="no answer"):
            list(client.score_lines([]))
