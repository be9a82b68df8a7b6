"""``POST /api/v1/reward/providers/{name}/reload`` and ``verl-reward reload``."""

from __future__ import annotations

import json

import pytest

from verl_core.cli.main import main
from verl_core.config.mount import MountConfig
from verl_core.config.rewards import RewardsConfig
from verl_core.control.answers import ProblemDocument, Providers, Reloaded
from verl_core.rewards import RewardEngine

RULES = "rules: [{{name: a, contains: zq, points: {}}}]\n"
PATH = "/api/v1/reward/providers/{}/reload"


@pytest.fixture
def rules(tmp_path):
    path = tmp_path / "tone.yaml"
    path.write_text(RULES.format(0.1))
    return path


@pytest.fixture
def served(serve, rules):
    mount = MountConfig(type="tone", plugin="rules", init_kwargs={"rules": "tone.yaml"})
    config = RewardsConfig(mounts=(mount,), base_dir=rules.parent)
    with RewardEngine.from_config(config, settle=0.02) as engine:
        yield serve(providers=engine.describe, reload=engine.reload)


@pytest.fixture
def reload(served):
    def of(name="tone", **more):
        return served.client.post(PATH.format(name), **{"json": {}, **more})

    return of


def test_it_tells_what_became_of_it(served, rules, reload):
    found = reload()
    assert found.status_code == 200
    Reloaded.model_validate(found.json())
    assert found.json()["outcome"] == "unchanged"
    rules.write_text(RULES.format(0.2))
    found = reload().json()
    assert (found["run_id"], found["name"], found["outcome"]) == ("demo", "tone", "swapped")
    assert found["provider"]["generation"] == 2
    listed = served.client.get("/api/v1/reward/providers").json()
    Providers.model_validate(listed)
    assert listed["providers"] == [found["provider"]]
    assert listed["providers"][0]["candidate"] is None
    assert set(listed["providers"][0]["digests"]) == {"tone.yaml"}


def test_a_refused_generation_is_409_and_the_old_one_goes_on(served, rules, reload):
    rules.write_text("rules: []\n")
    found = reload()
    assert found.status_code == 409
    ProblemDocument.model_validate(found.json())
    assert found.headers["content-type"] == "application/problem+json"
    assert found.json()["type"].endswith(":reload-refused")
    assert f"{rules}:1:8: rules: the list is empty" in found.json()["detail"]
    (listed,) = served.client.get("/api/v1/reward/providers").json()["providers"]
    assert listed["generation"] == 1
    assert "the list is empty" in listed["last_error"]


def test_an_unknown_mount_is_404_with_the_nearest_name(reload):
    found = reload("tune")
    assert found.status_code == 404
    assert found.json()["type"].endswith(":unknown-mount")
    assert "did you mean 'tone'?" in found.json()["detail"]
    assert reload("%2e%2e%2fetc").status_code == 404


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({"json": None}, 415),
        ({"json": None, "content": "{}", "headers": {"Content-Type": "text/plain"}}, 415),
        ({"json": {"path": "/etc/passwd"}}, 422),
        ({"json": [1]}, 422),
        ({"json": None, "content": "", "headers": {"Content-Type": "application/json"}}, 200),
    ],
)
def test_its_body_is_json_and_says_nothing(reload, more, status):
    assert reload(**more).status_code == status


def test_where_nothing_runs_there_is_nothing_to_reload(serve):
    found = serve().client.post(PATH.format("tone"), json={})
    assert found.status_code == 404
    assert "no mount runs here" in found.json()["detail"]


def test_the_command(served, rules, capsys, monkeypatch):
    monkeypatch.setenv("VERL_REWARD_URL", served.url)
    rules.write_text(RULES.format(0.3))
    assert main(["reload", "tone"]) == 0
    shown = capsys.readouterr().out
    assert "tone: swapped: generation 2: tone.yaml changed" in shown
    assert main(["reload"]) == 0
    shown = capsys.readouterr().out
    assert "Run demo" in shown
    assert "tone.yaml" in shown
    assert main(["reload", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["providers"][0]["generation"] == 2
    rules.write_text("rules: []\n")
    assert main(["reload", "tone"]) == 2
    told = capsys.readouterr().err
    assert "the list is empty" in told
    assert "the old one serves on" in told
    assert main(["reload", "tune"]) == 2
    assert "did you mean 'tone'?" in capsys.readouterr().err
