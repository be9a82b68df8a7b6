"""docs/operations.md: its commands are run by a shell, its manifests by what they are made of."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operations.md"


def _blocks() -> list[Any]:
    spec = importlib.util.spec_from_file_location(
        "doc_blocks", Path(__file__).with_name("blocks.py")
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["doc_blocks"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return list(module.blocks_of(PAGE))


BLOCKS = _blocks()
FILES = {block.file: block.text for block in BLOCKS if block.file is not None}


class Shell:
    """A shell in a folder like a checkout. What serves is left running until the next one does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {**os.environ, "PATH": f"{folder / 'bin'}:{os.environ['PATH']}"}
        for name in ("VERL_REWARD_TOKEN", "VERL_REWARD_READ_TOKEN"):
            self.env.pop(name, None)
        self.url = ""
        self.server: subprocess.Popen[str] | None = None
        self.log = folder / "log.jsonl"
        (folder / "bin").mkdir()
        tool = folder / "bin" / "verl-reward"
        tool.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m verl_core.cli.main "$@"\n')
        tool.chmod(0o755)
        (folder / "examples").symlink_to(ROOT / "examples")

    def run(self, text: str) -> str:
        """What the lines print; the environment that they leave is kept."""
        there = text.replace("http://127.0.0.1:8000", self.url)
        if self.url:
            there = there.replace(
                "verl-reward weights", f"VERL_REWARD_URL={self.url} verl-reward weights"
            )
        script = f"set -eu\n{there}\necho\nenv -0 > {self.folder}/env"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        for one in (self.folder / "env").read_text("utf-8").split("\0"):
            name, _, value = one.partition("=")
            if name.startswith("VERL_REWARD_") and name != "VERL_REWARD_URL":
                self.env[name] = value
        return done.stdout

    def serve(self, line: str, folder: Path | None = None, **env: str) -> None:
        """Start what a line serves, on a free port, and wait until it is ready."""
        self.stop()
        with self.log.open("w") as log:
            self.server = subprocess.Popen(
                ["bash", "-c", f"exec {line} server.port={free_port()}"],
                cwd=folder or self.folder,
                env={**self.env, **env},
                stdout=log,
                stderr=log,
                text=True,
            )
        port = re.search(r"server\.port=(\d+)", str(self.server.args))
        assert port is not None
        self.url = f"http://127.0.0.1:{port[1]}"
        while self.server.poll() is None:
            try:
                if httpx.get(f"{self.url}/readyz", trust_env=False).status_code == 200:
                    return
            except httpx.TransportError:
                pass
            time.sleep(0.05)
        pytest.fail(self.log.read_text("utf-8"))

    def stop(self) -> None:
        server, self.server = self.server, None
        if server is not None:
            server.terminate()
            assert server.wait(60) == 0, self.log.read_text("utf-8")


def free_port() -> int:
    import socket

    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    found = Shell(tmp_path)
    yield found
    found.stop()


@pytest.fixture
def manifests(tmp_path: Path) -> Path:
    """The page's files, as a reader writes them."""
    folder = tmp_path / "k8s"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text, "utf-8")
    return folder


def test_every_block_is_of_a_kind_that_is_tested_here() -> None:
    assert {block.language for block in BLOCKS} == {"bash", "json", "nginx", "text", "yaml"}
    assert FILES.keys() == {
        *("kustomization.yaml", "run.yaml", "words.txt", "rewards.yaml"),
        *("prometheus.yml", "rewards-rules.yml"),
    }


def test_the_commands_do_what_they_say(shell: Shell) -> None:
    said: dict[str, str] = {}
    for block in BLOCKS:
        if block.language != "bash" or "kubectl" in block.text:
            continue
        for line in block.text.splitlines():
            if line.startswith("verl-reward serve"):
                shell.serve(line)
            else:
                said[line] = shell.run(line)
    told = {line.split(" ")[-1]: text for line, text in said.items()}
    assert "tone" in said["verl-reward weights get"]
    assert json.loads(told["http://127.0.0.1:8000/api/v1/reward/providers"])["providers"]
    behind = json.loads(told["http://127.0.0.1:8000/api/v1/reward/weights"])
    assert behind["weights"]["tone"] == 1.5  # kept over the restart
    assert "verl_reward_revision 2.0" in told["http://127.0.0.1:8000/metrics"]
    admin, read = shell.env["VERL_REWARD_TOKEN"], shell.env["VERL_REWARD_READ_TOKEN"]
    assert len(admin) == len(read) == 64
    headers = {"Authorization": f"Bearer {read}"}
    with httpx.Client(base_url=shell.url, trust_env=False, headers=headers) as client:
        refused = client.post("/api/v1/reward/weights", json={"tone": 1.0})
        assert refused.status_code == 403
        assert client.get("/metrics", headers={"Host": "rewards.example.org"}).status_code == 200
        assert client.get("/metrics", headers={"Host": "other.example.org"}).status_code == 421


def test_the_lines_of_the_log_are_as_they_are_shown(shell: Shell) -> None:
    shell.env |= {"VERL_REWARD_TOKEN": "all", "VERL_REWARD_READ_TOKEN": "look"}
    folder = shell.folder / "run"
    folder.mkdir()
    for name in ("run.yaml", "words.txt"):
        (folder / name).write_text(FILES[name], "utf-8")
    shell.serve("verl-reward serve run.yaml server.workers=2 server.host=127.0.0.1", folder)
    with httpx.Client(base_url=shell.url, trust_env=False, timeout=60) as client:
        client.headers["Authorization"] = "Bearer all"
        row = {"response": "yes", "columns": {"answer": "yes"}}
        client.post("/api/v1/reward/score", json={"rows": [row]}).raise_for_status()
        client.post("/api/v1/reward/weights", json={"overlap": 2.0}).raise_for_status()
        (folder / "words.txt").write_text("idiot\nfool\n", "utf-8")
        client.post("/api/v1/reward/providers/guard/reload", json={}).raise_for_status()
    shell.stop()
    written = [json.loads(line) for line in shell.log.read_text("utf-8").splitlines()]
    (block,) = [block for block in BLOCKS if block.language == "json"]
    for line in block.text.splitlines():
        shown = json.loads(line)
        kinds = ("event", "route", "logger", "level")
        same = [one for one in written if all(one.get(k) == shown.get(k) for k in kinds)]
        assert same, line
        assert any(one.keys() == shown.keys() for one in same), (line, same)


# -- Kubernetes ------------------------------------------------------------------------------------


def deployment() -> dict[str, Any]:
    found: dict[str, Any] = next(
        document
        for document in yaml.safe_load_all(FILES["rewards.yaml"])
        if document["kind"] == "Deployment"
    )
    return found


def test_the_container_s_command_serves_with_its_files_and_answers_its_probes(
    shell: Shell, manifests: Path
) -> None:
    (container,) = deployment()["spec"]["template"]["spec"]["containers"]
    mounts = {one["mountPath"] for one in container["volumeMounts"]}
    assert {"/config", "/state", "/tmp"} == mounts
    state = shell.folder / "state"
    words = [
        word.replace("/config", str(manifests)).replace("/state", str(state))
        for word in container["command"]
    ]
    env = {one["name"]: f"secret-of-{one['name'].lower()}" for one in container["env"]}
    assert env.keys() == {"VERL_REWARD_TOKEN", "VERL_REWARD_READ_TOKEN"}
    shell.serve(" ".join(words), **env)
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        path = container[probe]["httpGet"]["path"]
        assert httpx.get(shell.url + path, trust_env=False).status_code == 200
    assert (state / "weights.db").exists()
    config = yaml.safe_load(FILES["run.yaml"])
    grace = deployment()["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    assert grace > config["server"]["drain"] + 7
    (service,) = [d for d in yaml.safe_load_all(FILES["rewards.yaml"]) if d["kind"] == "Service"]
    assert service["metadata"]["name"] in config["server"]["allowed_hosts"]


def test_the_manifests_fit_together(manifests: Path) -> None:
    template = deployment()["spec"]["template"]
    volumes = {one["name"] for one in template["spec"]["volumes"]}
    (container,) = template["spec"]["containers"]
    assert {one["name"] for one in container["volumeMounts"]} == volumes
    assert not any("subPath" in one for one in container["volumeMounts"])
    assert deployment()["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    if shutil.which("kubectl") is None:
        pytest.skip("kubectl is not installed")
    (command,) = [
        block.text for block in BLOCKS if "kubectl" in block.text and block.language == "bash"
    ]
    done = subprocess.run(
        ["bash", "-c", command], cwd=manifests, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    made = {one["kind"]: one for one in yaml.safe_load_all(done.stdout)}
    assert made.keys() == {"ConfigMap", "Deployment", "Service", "PersistentVolumeClaim"}
    assert made["ConfigMap"]["metadata"]["name"] == "rewards-config"
    assert made["ConfigMap"]["data"].keys() == {"run.yaml", "words.txt"}


# -- Prometheus ------------------------------------------------------------------------------------


def _families() -> dict[str, set[str]]:
    """Every series' name -> its labels, of a config with a cache and a gate that was used."""
    from verl_core.control.metrics.board import Board
    from verl_core.control.metrics.exposition import Page
    from verl_core.control.metrics.figures import queue_families, scoring_families
    from verl_core.control.metrics.requests import Routes, request_families
    from verl_core.control.state import ControlState
    from verl_core.rewards.weights import WeightStore

    families = [*request_families(Routes(["/a"], [])), *queue_families()]
    families += scoring_families(["m", "g"], ["g"])
    board = Board(families)
    for family in families:
        for values in family.series[:1]:
            place = board.at(family.name, *values)
            (board.see if family.kind == "histogram" else board.set)(place, 1.0)
    with closing(WeightStore({"m": 1.0}, run_id="demo")) as store:
        status = {"ready": True, "workers": 1, "workers_ready": 1}
        state = ControlState(run_id="demo", store=store, status=lambda: status)
        text = Page(board, state).text("")[0].decode()
    return {
        sample.name: set(sample.labels)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_the_table_names_every_metric_with_its_labels() -> None:
    found = _families()
    plain = {re.sub(r"_(bucket|sum|count)$", "", name) for name in found}
    rows = re.findall(r"^\| (`verl_reward_.*?) \| (.*?) \|", PAGE.read_text("utf-8"), re.MULTILINE)
    told = {
        name: set(re.findall(r"`(\w+)`", labels))
        for names, labels in rows
        for name in re.findall(r"`(\w+)`", names)
    }
    assert told.keys() == plain
    for name, labels in found.items():
        base = re.sub(r"_(bucket|sum|count)$", "", name)
        assert labels - {"le"} <= told[base], name


def test_rules_speak_of_metrics_and_labels_that_there_are() -> None:
    found = _families()
    rules = yaml.safe_load(FILES["rewards-rules.yml"])["groups"][0]["rules"]
    assert len(rules) == 6
    for rule in rules:
        named = set(re.findall(r"\bverl_reward_\w+", rule["expr"]))
        assert named
        assert named <= found.keys(), rule
        labels = set(re.findall(r"(\w+)=~?\"", rule["expr"]))
        assert labels <= set().union(*(found[name] for name in named)), rule
    config = yaml.safe_load(FILES["prometheus.yml"])
    assert config["rule_files"] == ["rewards-rules.yml"]


# -- nginx -----------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("nginx") is None, reason="nginx is not installed")
def test_nginx_takes_the_page_s_server(tmp_path: Path) -> None:
    (block,) = [block for block in BLOCKS if block.language == "nginx"]
    text = re.sub(r"listen 443 ssl;|ssl_certificate\w* .*?;", "", block.text)
    text = text.replace("server {", f"server {{ listen 127.0.0.1:{free_port()};", 1)
    config = tmp_path / "nginx.conf"
    config.write_text(f"pid {tmp_path}/pid;\nevents {{}}\nhttp {{\n{text}\n}}\n", "utf-8")
    done = subprocess.run(
        ["nginx", "-t", "-c", str(config), "-p", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
