"""What is wrong before the first response: a tokenizer, a label, rewards that cannot be loaded."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import httpx
import pytest

from verl_core.integrations.openrlhf import reward_function
from verl_core.integrations.openrlhf_server import reward_app
from verl_core.integrations.openrlhf_texts import Texts
from verl_reward_sdk import ConfigError

BODY = {"query": ["Why? Because."], "prompts": ["Why? "], "labels": [{"a": 1.0}]}


@pytest.mark.parametrize(
    "named", ["./polcy", "/nowhere/policy", "~/nowhere/policy", "a/b/c", Path("polcy")]
)
@pytest.mark.parametrize("make", [reward_function, reward_app])
def test_a_tokenizers_folder_that_is_not_there_is_refused_when_it_is_made(
    run_yaml: Any, mounts: Any, named: Any, make: Any
) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer: the folder '.*' is not there"):
        make(run_yaml(mounts.cell("a")), tokenizer=named)


def test_the_nearest_folder_is_named_and_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "policy").mkdir()
    (tmp_path / "tokenizer.json").write_text("{}", "utf-8")
    with pytest.raises(ConfigError, match=r"did you mean '.*/policy'\?"):
        Texts(tmp_path / "polcy")
    with pytest.raises(ConfigError, match=r"is a file \(give its folder, "):
        Texts(str(tmp_path / "tokenizer.json"))


def test_a_name_of_the_hub_and_a_folder_are_taken_and_pickle(
    tiny_model_dir: Path, monkeypatch: Any
) -> None:
    assert pickle.loads(pickle.dumps(Texts("owner/name"))) is not None
    monkeypatch.setenv("HOME", str(tiny_model_dir.parent))
    texts = Texts(f"~/{tiny_model_dir.name}")
    texts.load()
    assert texts.clean("a<|im_end|>") == "a"


def test_a_folder_without_a_tokenizer_is_told_in_words(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}), "utf-8")
    with pytest.raises(ConfigError, match=f"tokenizer: '{tmp_path}' cannot be loaded: "):
        Texts(tmp_path).load()


def test_a_label_that_no_mount_reads_is_refused_with_the_nearest_column(
    run_yaml: Any, mounts: Any
) -> None:
    path = run_yaml(mounts.cell("answer"), mounts.cell("b", applies_to="kind == 'x'"))
    for make in (reward_function, reward_app):
        with pytest.raises(ConfigError, match=r"label='anwser'; they read answer, b, kind") as said:
            make(path, label="anwser")
        assert "did you mean 'answer'?" in str(said.value)
    assert reward_function(path, label="kind") is not None
    assert reward_function(path) is not None  # labels may be mappings
    plain = run_yaml({"type": "vowels", "plugin": "vowels"}, name="plain")
    assert reward_function(plain, label="answer") is not None  # nothing is read at all


# -- the server ------------------------------------------------------------------------------------


def test_the_server_loads_when_it_starts(
    served: Any, run_yaml: Any, mounts: Any, tiny_model_dir: Path, caplog: Any
) -> None:
    import transformers

    asked: list[str] = []
    real = transformers.AutoTokenizer.from_pretrained
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            transformers.AutoTokenizer,
            "from_pretrained",
            lambda name: asked.append(name) or real(name),
        )
        app = reward_app(run_yaml(mounts.cell("a")), tokenizer=tiny_model_dir)
        assert asked == []
        with served(app) as url:
            assert asked == [str(tiny_model_dir)]
            answer = httpx.post(f"{url}/get_reward", json=BODY, timeout=60)
        assert answer.json()["rewards"] == [1.0]
        assert len(asked) == 1


def test_rewards_that_cannot_be_loaded_are_a_503_in_words(
    served: Any, run_yaml: Any, mounts: Any, tmp_path: Path, caplog: Any
) -> None:
    folder = tmp_path / "policy"
    folder.mkdir()
    app = reward_app(run_yaml(mounts.cell("a")), tokenizer=folder)
    with caplog.at_level(logging.ERROR), served(app) as url:
        assert "the rewards cannot be loaded: tokenizer: " in caplog.text
        for _ in range(3):
            answer = httpx.post(f"{url}/get_reward", json=BODY, timeout=60)
            assert answer.status_code == 503
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["retry-after"]) > 0
            assert answer.json()["type"].endswith(":not-loaded")
            assert f"'{folder}' cannot be loaded" in answer.json()["detail"]


def test_a_server_that_could_not_load_answers_once_it_can(
    served: Any, run_yaml: Any, mounts: Any, tmp_path: Path, tiny_model_dir: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("verl_core.integrations.openrlhf_server._PAUSE", 0.0)
    folder = tmp_path / "policy"
    folder.mkdir()
    with served(reward_app(run_yaml(mounts.cell("a")), tokenizer=folder)) as url:
        assert httpx.post(f"{url}/get_reward", json=BODY, timeout=60).status_code == 503
        for file in tiny_model_dir.iterdir():
            (folder / file.name).symlink_to(file)
        assert httpx.post(f"{url}/get_reward", json=BODY, timeout=60).json()["rewards"] == [1.0]
