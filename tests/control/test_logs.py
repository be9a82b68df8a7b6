"""Structured logs: a JSON object a line, whole, and without bodies or secrets."""

from __future__ import annotations

import io
import json
import logging
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from verl_core.control.logs import Logs

kit = sys.modules["control_scoring"]
WEIGHTS = "/api/v1/reward/weights"


class Log:
    """Enters `Logs` with a stream of its own; its lines as they are written."""

    def __init__(self, form: Any = "json", **facts: Any) -> None:
        self.stream = io.StringIO()
        self.logs = Logs(form, facts, self.stream)

    def __enter__(self) -> Log:
        self.logs.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.logs.__exit__(*error)

    def lines(self, event: str | None = None) -> list[dict[str, Any]]:
        found = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        return [line for line in found if event is None or line.get("event") == event]

    def wait(self, count: int) -> None:
        """For so many requests: a line is written once the client has its answer."""
        while len(self.lines("request")) < count:
            time.sleep(0.005)


def test_a_request_is_one_line_of_numbers_and_names(scorer: Callable[..., Any]) -> None:
    server = scorer()
    with Log() as log:
        headers = {"X-Request-Id": "trace-7"}
        body = {"rows": [{"response": "the body"}, {"response": "b"}]}
        answer = server.client.post(f"{kit.SCORE}?key=hidden", json=body, headers=headers)
        server.lines(b'{"response": "the body"}\n\n{"response": "b"}\n')
        server.client.get("/nowhere/hidden")
        log.wait(3)
    assert answer.headers["x-request-id"] == "trace-7"
    first, second, third = log.lines("request")
    assert first.keys() == {
        *("time", "level", "logger", "message", "event", "method", "route", "status"),
        *("seconds", "run_id", "revision", "rows", "request_id"),
    }
    assert first["method"] == "POST"
    assert first["route"] == kit.SCORE
    assert first["status"] == 200
    assert first["rows"] == 2
    assert first["revision"] == 1
    assert first["run_id"] == "demo"
    assert first["request_id"] == "trace-7"
    assert first["time"].endswith("Z")
    assert 0 < first["seconds"] < 60
    assert second["rows"] == 3  # lines that were read, the empty one included
    assert third["route"] == "other"
    assert third["status"] == 404
    assert "the body" not in log.stream.getvalue()
    assert "hidden" not in log.stream.getvalue()


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, 'say "no"', "ä"])
def test_an_id_that_is_no_word_is_replaced(scorer: Callable[..., Any], given: str) -> None:
    headers = {"X-Request-Id": given.encode()}
    answer = scorer().client.get("/healthz", headers=headers)
    assert len(answer.headers["x-request-id"]) == 16


def test_every_answer_has_an_id_also_what_the_guard_refuses(scorer: Callable[..., Any]) -> None:
    server = scorer(token="t")
    ids = [
        server.client.get("/healthz", headers=headers).headers["x-request-id"]
        for headers in ({}, {"Host": "evil.example"}, {"Authorization": "Bearer no"})
    ]
    assert len(set(ids)) == 3


def test_a_change_of_weights_is_told_with_who_and_why(scorer: Callable[..., Any]) -> None:
    server = scorer()
    with Log(worker=2) as log:
        headers = {"X-Verl-Author": "Ann", "X-Verl-Reason": "tone is too low"}
        server.client.post(WEIGHTS, json={"a": 3.0}, headers=headers)
        server.client.post(WEIGHTS, json={"a": -3.0}, headers=headers)
    (line,) = log.lines("weights")
    assert line["changed"] == {"a": 3.0}
    assert (line["revision"], line["author"], line["reason"]) == (2, "Ann", "tone is too low")
    assert (line["run_id"], line["worker"]) == ("demo", 2)


def test_a_new_generation_is_told_with_its_digests(
    scorer: Callable[..., Any], tmp_path: Path
) -> None:
    words = tmp_path / "words.txt"
    words.write_text("bad\n", "utf-8")
    text = (
        "reward:\n  - {type: a, plugin: length}\n"
        "  - {type: guard, plugin: safety, role: gate, penalty: -1.0,"
        " init_kwargs: {words: words.txt}}\n"
    )
    server = scorer(text)
    with Log() as log:
        words.write_text("bad\nworse\n", "utf-8")
        answer = server.client.post("/api/v1/reward/providers/guard/reload", json={})
    assert answer.json()["outcome"] == "swapped", answer.text
    (line,) = log.lines("generation")
    assert (line["mount"], line["before"], line["after"]) == ("guard", 1, 2)
    assert [len(digest) for digest in line["digests"].values()] == [64]


def test_a_line_is_one_line_whatever_is_in_it(scorer: Callable[..., Any]) -> None:
    server = scorer()
    with Log() as log:
        headers = {"X-Verl-Author": "A%0AB%22%5C", "Content-Type": "application/json"}
        server.client.post(WEIGHTS, content=b'{"a": 4}', headers=headers)
        log.wait(1)
        # Not through a logger: pytest would hold it, and cannot hand such a text on.
        odd = {"msg": "a lone surrogate: %s\n\x00", "args": ("\ud800",), "levelname": "WARNING"}
        log.logs._handler.handle(logging.makeLogRecord(odd))
    assert all(line["level"] in ("info", "warning") for line in log.lines())
    assert len(log.lines()) >= 2
    log.stream.getvalue().encode("utf-8")


def test_what_libraries_and_python_say_takes_the_same_form() -> None:
    with Log() as log:
        logging.getLogger("somebody.else").warning("mind the gap")
        logging.getLogger("somebody.else").info("not this")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn("old", UserWarning, stacklevel=1)
        try:
            raise ValueError("with its traceback")
        except ValueError:
            logging.getLogger("verl_core.test").exception("it failed")
    said = [line["message"] for line in log.lines()]
    assert said[0] == "mind the gap"
    assert "UserWarning: old" in said[1]
    assert said[2:] == ["it failed"]
    assert "ValueError: with its traceback" in log.lines()[-1]["traceback"]


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_secret_is_hidden_in_either_form(form: str) -> None:
    secret = 'to"ken\\7'
    with Log(form) as log:
        log.logs.hide([secret])
        try:
            raise ValueError(f"401 for {secret}")
        except ValueError:
            fields = {"fields": {"note": [secret]}}
            logging.getLogger("verl_core.test").exception("with %s", secret, extra=fields)
    text = log.stream.getvalue()
    assert "401 for **********" in text
    assert secret not in text
    assert json.dumps(secret)[1:-1] not in text


def test_for_people_only_warnings_are_written(scorer: Callable[..., Any]) -> None:
    server = scorer()
    with Log("text") as log:
        server.score("abc")
        server.client.post(WEIGHTS, json={"a": 3.0})
    assert log.stream.getvalue() == ""


def test_a_server_writes_json_and_nothing_else_from_its_start_to_its_end(
    plugin_site: Any, tmp_path: Path
) -> None:
    kit.install(plugin_site)
    (tmp_path / "run.yaml").write_text(kit.RUN + "server: {port: 0, log: json}\n", "utf-8")
    from verl_core.control.listen import _free_port

    port = _free_port("127.0.0.1", 20_000)
    words = ["--workers", "2", f"server.port={port}"]
    served = kit.JsonProcess(
        tmp_path, kit.environment(plugin_site), words, f"http://127.0.0.1:{port}"
    )
    try:
        served.ready()
        rows = {"rows": [{"response": "abc"}]}
        assert served.client.post(kit.SCORE, json=rows).status_code == 200
        served.client.post(WEIGHTS, json={"a": 3.0})
        assert served.end() == 0
    finally:
        served.kill()
    assert served.out() == ""
    lines = [json.loads(line) for line in served.said().splitlines()]
    messages = [line["message"] for line in lines]
    assert any(message.endswith(f"is served at http://127.0.0.1:{port}") for message in messages)
    assert messages[-1].startswith("Stopping: ")
    (scored,) = [line for line in lines if line.get("route") == kit.SCORE]
    assert scored["rows"] == 1
    assert scored["worker"] in (1, 2)
    assert len([line for line in lines if line.get("event") == "weights"]) == 1
