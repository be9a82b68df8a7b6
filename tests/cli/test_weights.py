"""``verl-reward weights`` against a real control plane."""

from __future__ import annotations

import http.server
import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from verl_core.cli.main import main
from verl_core.control import ControlServer, ControlState
from verl_core.rewards.schedules import Linear
from verl_core.rewards.weights import WeightStore
from verl_reward_sdk import ConfigError


class Served(ControlServer):
    def __init__(self, token: str | None = None, status: Mapping[str, Any] | None = None) -> None:
        config = {"accuracy": 1.0, "tone": Linear(2.0, 0.5, 200), "compliance": 1.0}
        self.store = WeightStore(config, run_id="demo", gates=["guard"])
        told = {} if status is None else {"status": lambda: status}
        state = ControlState(run_id="demo", store=self.store, token=token, **told)
        super().__init__(state, port=0)


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    monkeypatch.delenv("VERL_REWARD_TOKEN", raising=False)
    with Served() as server:
        monkeypatch.setenv("VERL_REWARD_URL", server.url)
        yield server
    server.store.close()


def test_get_shows_weights_schedules_and_pins(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.store.update({"accuracy": 2.5}, author="li")
    assert main(["weights", "get"]) == 0
    shown = capsys.readouterr().out
    assert "Revision 2, in effect from step 0 on." in shown
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines() if line.split()}
    assert rows["Mount"] == ["Weight", "at", "step", "0"]
    assert rows["accuracy"] == ["2.5", "pinned"]
    assert rows["tone"] == ["2", *["linear", "2", "→", "0.5", "over", "200", "steps"]]


def test_a_running_jobs_weights_are_told_with_how_far_it_has_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("VERL_REWARD_TOKEN", raising=False)
    with Served(status={"ready": True, "step": 5, "steps": 14}) as server:
        server.store.lease(6)  # step 6 is being scored, 5 are trained
        assert main(["weights", "get", "--url", server.url]) == 0
        shown = capsys.readouterr().out
        assert "Run demo, 5 of 14 steps trained" in shown
        assert "Weight at step 6" in shown
        assert main(["weights", "set", "accuracy=2", "--url", server.url]) == 0
        shown = capsys.readouterr().out
        assert "Weight at step 7" in shown
        assert "Revision 2, in effect from step 7 on." in shown
    server.store.close()


def test_a_change_to_the_values_that_are_pinned_already_is_called_none(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    said = "Nothing is different: these values were pinned already"
    assert main(["weights", "set", "accuracy=1"]) == 0  # the value of the config, now a pin
    assert said not in capsys.readouterr().out
    assert main(["weights", "set", "accuracy=1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert f"{said}. The request is noted in the audit log as revision 3." in shown
    assert served.store.snapshot().revision == 3
    assert main(["weights", "set", "accuracy=2"]) == 0
    assert said not in capsys.readouterr().out


def test_json_is_the_servers_answer(served: Served, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "get", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["run_id"], found["revision"]) == ("demo", 1)
    assert main(["weights", "set", "accuracy=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["weights"]["accuracy"] == 3.0
    assert main(["weights", "history", "--json", "--limit", "1"]) == 0
    assert [e["revision"] for e in json.loads(capsys.readouterr().out)["history"]] == [2]


def test_set_changes_all_with_user_and_reason(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOGNAME", "王小明")
    assert main(["weights", "set", "accuracy=2", "tone=0.5", "--reason", "投诉率 50%"]) == 0
    entry = served.store.history(1)[0]
    assert (entry.author, entry.reason) == ("王小明", "投诉率 50%")
    assert entry.after == {"accuracy": 2.0, "tone": 0.5, "compliance": 1.0}
    assert "pinned over linear" in capsys.readouterr().out


def test_the_author_may_be_given(served: Served) -> None:
    assert main(["weights", "set", "accuracy=2", "--author", "bot 7"]) == 0
    assert served.store.history(1)[0].author == "bot 7"


def test_a_refusal_is_exit_code_2_and_names_each_key(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", "set", "acuracy=2", "guard=1", "tone=nan", "compliance=-1"]) == 2
    said = capsys.readouterr().err
    assert "refused by run demo, nothing was changed" in said
    assert "acuracy: no mount has this name; did you mean 'accuracy'?" in said
    assert "guard: it is a gate" in said
    assert "tone: nan is not finite" in said
    assert "compliance: -1 is below 0" in said
    assert served.store.snapshot().revision == 1


def test_a_stale_revision_is_exit_code_2(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", "set", "accuracy=2", "--if-revision", "1"]) == 0
    assert main(["weights", "set", "accuracy=3", "--if-revision", "1"]) == 2
    assert "made for revision 1, the newest is 2" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["accuracy"], "'accuracy' does not give a weight"),
        (["=2"], "'=2' does not give a weight"),
        (["accuracy=much"], "'accuracy=much' does not give a weight"),
        (["accuracy=1", "accuracy=2"], "'accuracy' is given twice"),
    ],
)
def test_what_gives_no_weight_is_refused_before_asking(
    served: Served, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["weights", "set", *words]) == 2
    assert said in capsys.readouterr().err


def test_all_that_gives_no_weight_is_told_at_once(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", "set", "accuracy", "tone=1", "compliance=x", "tone=2"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: 'accuracy' does not give a weight",
        "       'compliance=x' does not give a weight",
        "       'tone' is given twice",
        "       write NAME=VALUE, each name once, as in accuracy=2",
    ]


def test_history_in_80_columns_keeps_its_headings(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    served.store.update({"tone": 1}, author="li", reason="customers found it cold")
    assert main(["weights", "history"]) == 0
    shown = capsys.readouterr().out
    for heading in ("Revision", "From step", "Time (UTC)", "Author", "Change", "Reason"):
        assert heading in shown
    assert all(len(line) <= 80 for line in shown.splitlines())


def test_history_tells_who_what_and_why(
    served: Served, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    served.store.lease(3)
    served.store.update({"tone": 1}, author="li [x]", reason="too [bold]polite[/]")
    assert main(["weights", "history"]) == 0
    shown = capsys.readouterr().out
    assert "li [x]" in shown
    assert "too [bold]polite[/]" in shown  # what people wrote is not markup
    assert "tone → 1 (was linear 2 → 0.5 over 200 steps)" in shown
    newest = next(line for line in shown.splitlines() if "li [x]" in line)
    assert newest.split()[:2] == ["2", "4"]
    assert "start of the run" in shown


def test_no_server_is_exit_code_1_with_advice(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.stop()
    assert main(["weights", "get"]) == 1
    said = capsys.readouterr().err
    assert f"no control plane answers at {served.url}" in said
    assert "--url, or VERL_REWARD_URL" in said


def test_another_program_at_the_address_is_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Other(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<html>hello</html>")

        def log_message(self, *_: Any) -> None:
            self.close_connection = True

    with http.server.HTTPServer(("127.0.0.1", 0), Other) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        url = f"http://127.0.0.1:{other.server_port}"
        assert main(["weights", "get", "--url", url]) == 1
        thread.join()
    assert "answers (HTTP 200), but not as a control plane" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        "localhost:8000",
        "ftp://localhost",
        "http://",
        "",
        "  ",
        "http://[::1",
        "http://[::1]x:80",
        "http://localhost:99999",
        "http://localhost:0",
        "http://localhost:-1",
        "http://localhost:port",
        "http://local host:8000",
        "http://local\nhost:8000",
        "http://localhost:8000/?run=1",
        "http://localhost:8000/#weights",
        "http://\u2100.example",
        f"http://{'a' * 100}.example",
        "http://..",
    ],
)
@pytest.mark.parametrize("given", ["--url", "environment"])
def test_what_is_no_url_is_exit_code_2(
    url: str, given: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_REWARD_URL", url)
    named = given == "--url" or not url  # an empty variable is one that is not set
    assert main(["weights", "get", *(["--url", url] if named else [])]) == 2
    assert "is not the address of a control plane" in capsys.readouterr().err


def test_spaces_and_a_slash_around_an_address_do_not_count(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERL_REWARD_URL", f" {served.url}/\n")
    assert main(["weights", "get"]) == 0


def test_the_token_is_sent_and_a_missing_one_is_told(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VERL_REWARD_TOKEN", raising=False)
    with Served(token="hush-hush") as server:
        assert main(["weights", "get", "--url", server.url]) == 2
        assert "set VERL_REWARD_TOKEN" in capsys.readouterr().err
        monkeypatch.setenv("VERL_REWARD_TOKEN", "hush-hush")
        assert main(["weights", "get", "--url", server.url]) == 0
        assert "hush-hush" not in "".join(capsys.readouterr())
    server.store.close()


def test_a_proxy_of_the_environment_does_not_stand_before_loopback(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    assert main(["weights", "get"]) == 0


def test_the_command_imports_nothing_heavy(served: Served) -> None:
    program = (
        "import sys; from verl_core.cli.main import main; code = main(['weights', 'get'])\n"
        "heavy = {'torch', 'numpy', 'fastapi', 'uvicorn', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy; sys.exit(code)"
    )
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env=os.environ | {"VERL_REWARD_URL": served.url},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "Run demo" in ran.stdout


# -- put, rollback, unpin, watch -------------------------------------------------------------------


def test_put_takes_every_weight_from_a_file_or_pairs_or_standard_input(
    served: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "weights.yaml"
    file.write_text("accuracy: 2\ntone: 0.5\ncompliance: 1.5e0\n", encoding="utf-8")
    assert main(["weights", "put", str(file), "--reason", "as in git"]) == 0
    assert dict(served.store.snapshot().weights) == {
        "accuracy": 2.0,
        "tone": 0.5,
        "compliance": 1.5,
    }
    assert served.store.history(1)[0].reason == "as in git"
    assert main(["weights", "put", "accuracy=3", "tone=3", "compliance=3"]) == 0
    assert set(served.store.snapshot().weights.values()) == {3.0}
    monkeypatch.setattr("sys.stdin", io.StringIO('{"accuracy": 4, "tone": 4, "compliance": 4}'))
    assert main(["weights", "put", "-"]) == 0
    assert set(served.store.snapshot().weights.values()) == {4.0}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("accuracy: 2\ntone: 1\n", "compliance: it is missing"),
        ("accuracy: 2\ntone: 1\ncompliance: 1\ntoan: 1\n", "did you mean 'tone'"),
        ("accuracy: 2\ntone: 1\ncompliance: yes\n", "compliance"),
        ("- accuracy\n", "weights.yaml:1:1"),
        ("accuracy: 2\naccuracy: 3\n", "weights.yaml:2:1"),
        ("", "NAME: VALUE"),
        (None, "no such file"),
    ],
)
def test_a_file_that_is_not_all_weights_is_refused_and_changes_nothing(
    served: Served,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    text: str | None,
    said: str,
) -> None:
    file = tmp_path / "weights.yaml"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    assert main(["weights", "put", str(file)]) == 2
    assert said in capsys.readouterr().err
    assert served.store.snapshot().revision == 1


def test_put_names_the_revision_that_it_replaces(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.store.update({"tone": 1}, author="somebody else")
    pairs = ["accuracy=2", "tone=2", "compliance=2"]
    assert main(["weights", "put", *pairs, "--if-revision", "1"]) == 2
    assert "the newest is 2" in capsys.readouterr().err
    assert main(["weights", "put", *pairs, "--if-revision", "2"]) == 0


def test_rollback_goes_back_to_pins_and_schedules(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    served.store.update({"accuracy": 2, "tone": 9}, author="li")
    assert main(["weights", "rollback", "1", "--reason", "worse"]) == 0
    shown = capsys.readouterr().out
    assert "Revision 3" in shown
    assert "pinned" not in shown
    entry = served.store.history(1)[0]
    assert entry.reason == "rollback to revision 1: worse"
    assert main(["weights", "rollback", "9"]) == 2
    assert "the newest is 3, the oldest 1" in capsys.readouterr().err


def test_unpin_lets_the_schedule_show_again(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["weights", "unpin", "tone"]) == 2
    assert "tone: it is not pinned" in capsys.readouterr().err
    served.store.update({"tone": 9}, author="li")
    assert main(["weights", "unpin", "tone"]) == 0
    assert served.store.snapshot().weights["tone"] == 2.0
    assert main(["weights", "unpin", "toone"]) == 2
    assert "did you mean 'tone'" in capsys.readouterr().err


def test_history_reads_on_before_a_revision(
    served: Served, capsys: pytest.CaptureFixture[str]
) -> None:
    for value in (2, 3, 4):
        served.store.update({"tone": value}, author="li")
    assert main(["weights", "history", "--json", "--limit", "2", "--before", "3"]) == 0
    assert [e["revision"] for e in json.loads(capsys.readouterr().out)["history"]] == [2, 1]


@pytest.mark.parametrize("command", ["get", "set", "put", "rollback", "unpin", "watch", "history"])
def test_help_of_each_says_what_it_does(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", command, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "--url" in shown
    if command != "get":
        assert f"Example: verl-reward weights {command}" in shown


class Watching:
    """``verl-reward weights watch`` in a process of its own."""

    def __init__(self, url: str, *options: str) -> None:
        words = [sys.executable, "-m", "verl_core.cli.main", "weights", "watch", "--url", url]
        self.process = subprocess.Popen(
            [*words, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"},
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def stop(self) -> tuple[str, str, int]:
        self.process.send_signal(signal.SIGINT)
        out, errors = self.process.communicate(timeout=60)
        return out, errors, self.process.returncode


def test_watch_prints_each_change_and_reconnects_to_the_same_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VERL_REWARD_TOKEN", raising=False)
    path = tmp_path / "weights.db"
    store = WeightStore({"tone": 1.0}, run_id="demo", path=path)
    server = ControlServer(ControlState(run_id="demo", store=store), port=0)
    server.start()
    watching = Watching(server.url)
    assert watching.line() == "Run demo, revision 1: tone 1\n"
    store.update({"tone": 2}, author="李", reason="why\nnot")
    said = watching.line()
    assert "revision 2, from step 0, 李: tone 1 → 2 (why not)" in said
    port = server.port
    server.stop()
    store.update({"tone": 3}, author="li")  # nobody listens now
    assert watching.process.stderr is not None
    assert watching.process.stderr.readline().startswith("waiting for the control plane: ")
    again = ControlServer(ControlState(run_id="demo", store=store), port=port)
    again.start()
    assert "revision 3, from step 0, li: tone 2 → 3" in watching.line()
    assert watching.stop() == ("", "", 0)
    again.stop()
    store.close()


def test_watch_shows_what_came_after_a_revision_as_json(served: Served) -> None:
    for value in (2, 3):
        served.store.update({"tone": value}, author="li")
    watching = Watching(served.url, "--since", "1", "--json")
    assert [json.loads(watching.line())["revision"] for _ in range(2)] == [2, 3]
    assert watching.stop()[2] == 0


def test_watch_without_a_server_is_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["weights", "watch", "--url", "http://127.0.0.1:9"]) == 1
    assert "no control plane answers" in capsys.readouterr().err


def test_watch_does_not_go_on_with_another_run(served: Served) -> None:
    from verl_core.cli.watching import _Watch
    from verl_core.control.client import ControlClient

    watch = _Watch(ControlClient(served.url), None, True)
    watch._run = "another"
    with pytest.raises(ConfigError, match="is run 'demo' now, and was run 'another'"):
        watch.follow()
