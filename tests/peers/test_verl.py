"""The manager inside verl's own reward loop, on real `DataProto` rows. Skipped without verl."""

from __future__ import annotations

import asyncio
import json
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packaging.version import Version

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # of verl and its libraries
    verl = pytest.importorskip("verl")
    from verl import DataProto
    from verl.trainer.ppo.reward import load_reward_manager

    from verl_core.integrations.verl import VerlRewardManager

from verl_core.control import ControlServer, ControlState
from verl_core.rewards import WeightStore
from verl_reward_sdk import ConfigError, RewardError

pytestmark = pytest.mark.filterwarnings("ignore")

SEAM = (
    "reward.reward_manager.source=importlib",
    "reward.reward_manager.module.path=pkg://verl_core.integrations.verl",
    "reward.reward_manager.name=VerlRewardManager",
)
#: Scores by what the response says, and remembers what it was given.
PROBE = '''
from verl_reward_sdk import RewardProvider, RewardResult, hookimpl
from verl_reward_sdk.provider import ProviderConfig

VERL_REWARD_API = 1
CALLS = []


class Config(ProviderConfig):
    reads: tuple[str, ...] = ()


class Probe(RewardProvider[Config]):
    """Scores the length of the response; does what it is told in it."""

    name = "probe"
    execution = "inline"

    @property
    def reads(self):
        return frozenset(self.config.reads)

    def score(self, batch):
        CALLS.append(batch)
        if any("explode" in text for text in batch.responses):
            raise ValueError("boom")
        scores = [None if "abstain" in t else float(len(t)) for t in batch.responses]
        failures = {i: "cannot" for i, t in enumerate(batch.responses) if "fail" in t}
        words = [
            next((word for word in ("veto", "skip") if word in t), "none")
            for t in batch.responses
        ]
        reasons = {i: "no idea" for i, t in enumerate(batch.responses) if "abstain" in t}
        return RewardResult(scores=scores, failures=failures, reasons=reasons, severity=words)


class GateProbe(Probe):
    """The same as a gate."""

    name = "gate_probe"
    role = "gate"


class GroupProbe(Probe):
    """The same, of whole groups."""

    name = "group_probe"
    scope = "group"


@hookimpl
def verl_reward_providers():
    return [Probe, GateProbe, GroupProbe]
'''
GATE = {"type": "guard", "plugin": "gate_probe", "role": "gate", "penalty": -3.0}


@pytest.fixture(scope="session")
def base_config(tiny_model_dir: Path) -> Any:
    from hydra import compose, initialize_config_dir

    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(config_dir=str(folder), version_base=None):
        return compose(
            "ppo_trainer",
            overrides=[
                f"actor_rollout_ref.model.path={tiny_model_dir}",
                "actor_rollout_ref.rollout.response_length=20",
                "reward.num_workers=2",
            ],
        )


@pytest.fixture
def verl_config(base_config: Any) -> Callable[..., Any]:
    """verl's own config with more overrides, composed as its trainer does."""
    return lambda *overrides: overridden(base_config, *overrides)


def overridden(base: Any, *overrides: str) -> Any:
    """A copy of verl's config with overrides, read as Hydra reads them on the command line."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    config = OmegaConf.create(OmegaConf.to_container(base))
    for override in OverridesParser.create().parse_overrides(list(overrides)):
        OmegaConf.update(config, override.key_or_group, override.value(), force_add=True)
    return config


@pytest.fixture(scope="session")
def tokenizer(tiny_model_dir: Path) -> Any:
    from verl.utils import hf_tokenizer

    return hf_tokenizer(str(tiny_model_dir))


@pytest.fixture
def probe(plugin_site: Any) -> Callable[[], list[Any]]:
    """Installs the plugin `probe`; gives the batches that it was asked to score."""
    names = dict.fromkeys(("probe", "gate_probe", "group_probe"), "probe_plugin")
    plugin_site.add("probe-plugin", rewards=names, files={"probe_plugin.py": PROBE})

    def calls() -> list[Any]:
        module = sys.modules.get("probe_plugin")
        return [] if module is None else module.CALLS

    return calls


@pytest.fixture
def manager(
    tmp_path: Path, probe: Any, verl_config: Any, tokenizer: Any
) -> Iterator[Callable[..., VerlRewardManager]]:
    """Has verl load the manager for some mounts."""
    made = []

    def load(*mounts: dict[str, Any], settings: Sequence[str] = (), **top: Any) -> Any:
        path = tmp_path / f"run-{len(made)}.yaml"
        path.write_text(json.dumps({"reward": list(mounts)} | top), "utf-8")
        at = "+reward.reward_kwargs.verl_reward"
        more = [f"{at}.{setting}" for setting in settings]
        config = verl_config(*SEAM, f"{at}.config={path}", *more)
        made.append(load_reward_manager(config, tokenizer))
        return made[-1]

    yield load
    for one in made:
        one.engine.close()


@pytest.fixture
def row(tokenizer: Any) -> Callable[..., Any]:
    """A `DataProto` of one response, as verl's agent loop makes it."""

    def build(text: str, *, pad: int = 0, eos: bool = True, **columns: Any) -> Any:
        return outputs([text], tokenizer, pad=pad, eos=eos, **columns)

    return build


def outputs(
    texts: Sequence[str],
    tokenizer: Any,
    *,
    prompts: Sequence[str] = (),
    pad: int = 0,
    eos: bool = True,
    **columns: Any,
) -> Any:
    """All outputs of one trajectory, packed as verl's `AgentLoopWorker._compute_score` does."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    prompts = prompts or ["ask"] * len(texts)
    asked = [torch.tensor(tokenizer(prompt).input_ids) for prompt in prompts]
    end = [tokenizer.eos_token_id] if eos else []
    answered = [torch.tensor(tokenizer(text).input_ids + end) for text in texts]
    whole = [torch.cat(pair) for pair in zip(asked, answered, strict=True)]
    tensors = {
        "prompts": pad_sequence(asked, batch_first=True),
        "responses": pad_sequence(answered, batch_first=True),
        "input_ids": pad_sequence(whole, batch_first=True),
        "attention_mask": pad_sequence([torch.ones_like(w) for w in whole], batch_first=True),
    }
    n = len(texts)
    known: dict[str, Any] = {
        "raw_prompt": [{"role": "user", "content": prompts[-1]}],
        "data_source": "shop",
        "reward_model": {"style": "rule", "ground_truth": "42"},
        "extra_info": {"index": 3},
        "uid": "u1",
    } | columns
    arrays = {key: np.array([value] * n) for key, value in known.items() if value is not None}
    if not pad:  # verl >= 0.8
        arrays["prompt_len"] = np.array([len(ids) for ids in asked])
        arrays["response_len"] = np.array([len(ids) for ids in answered])
    if pad:  # verl 0.7: one row, padded to the longest that may be
        tail, left = (torch.full((1, width), tokenizer.pad_token_id) for width in (pad, 2))
        for name in ("prompts", "input_ids"):
            tensors[name] = torch.cat([left, tensors[name]], 1)
        for name in ("responses", "input_ids"):
            tensors[name] = torch.cat([tensors[name], tail], 1)
        mask = tensors["attention_mask"]
        tensors["attention_mask"] = torch.cat([left * 0, mask, tail * 0], 1)
    return DataProto.from_dict(tensors=tensors, non_tensors=arrays)


def score(manager: Any, *rows: Any) -> list[Any]:
    """Each row's answer or error; all are asked for at once, as verl's worker does."""

    async def main() -> list[Any]:
        tasks = [asyncio.create_task(manager.run_single(row)) for row in rows]
        return await asyncio.gather(*tasks, return_exceptions=True)

    return asyncio.run(main())


def rewards(answers: Sequence[Any]) -> list[float]:
    return [answer["reward_score"] for answer in answers]


# -- what verl gets ----------------------------------------------------------------------------


def test_verl_loads_the_manager_through_its_importlib_seam_and_gets_a_float(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe", "weight": 2.0})
    assert type(loaded).__name__ == "VerlRewardManager"
    (answer,) = score(loaded, row("four"))
    assert answer == {
        "reward_score": 8.0,
        "reward_extra_info": {"acc": 8.0, "reward/tone": 4.0, "weights/revision": 1.0},
    }
    assert all(type(value) is float for value in answer["reward_extra_info"].values())


def test_every_row_has_the_same_keys_and_none_is_called_reward(manager, row):
    loaded = manager(
        {"type": "tone", "plugin": "probe"},
        {"type": "maths", "plugin": "probe", "applies_to": 'data_source == "maths"'},
        GATE,
    )
    answers = score(
        loaded, row("one"), row("a veto"), row("sum", data_source="maths"), row("", eos=False)
    )
    keys = [list(answer["reward_extra_info"]) for answer in answers]
    assert (
        keys
        == [["acc", "reward/tone", "reward/maths", "reward/guard/rate", "weights/revision"]] * 4
    )
    assert rewards(answers) == [3.0, -3.0, 6.0, 0.0]
    infos = [answer["reward_extra_info"] for answer in answers]
    assert [info["reward/guard/rate"] for info in infos] == [0.0, 1.0, 0.0, 0.0]
    assert [is_nothing(info["reward/maths"]) for info in infos] == [True, True, False, True]


def is_nothing(value: Any) -> bool:
    return value is None or math.isnan(value)


def test_verl_s_validation_metrics_take_what_is_not_there(manager, row):
    from verl.trainer.ppo.metric_utils import process_validation_metrics

    loaded = manager(
        {"type": "tone", "plugin": "probe"},
        {"type": "maths", "plugin": "probe", "applies_to": 'data_source == "maths"'},
    )
    answers = score(loaded, row("one"), row("three"))
    infos = {
        key: [a["reward_extra_info"][key] for a in answers]
        for key in answers[0]["reward_extra_info"]
    }
    metrics = process_validation_metrics(["shop", "shop"], ["u1", "u1"], infos)
    assert metrics["shop"]["acc"]["mean@2"] == 4.0
    assert metrics["shop"]["reward/tone"]["mean@2"] == 4.0


# -- where verl puts things --------------------------------------------------------------------


def test_of_several_outputs_the_last_is_scored_whatever_the_lengths(manager, probe, tokenizer):
    loaded = manager({"type": "tone", "plugin": "probe"})
    long_first = outputs(["a long first output", "end"], tokenizer, prompts=["p", "longer prompt"])
    long_last = outputs(["x", "the last one"], tokenizer, prompts=["a much longer prompt", "q"])
    assert rewards(score(loaded, long_first, long_last)) == [3.0, 12.0]
    (batch,) = probe()
    assert batch.responses == ("end", "the last one")
    assert batch.responses_raw == ("end<|im_end|>", "the last one<|im_end|>")


def test_padding_is_cut_where_verl_gives_a_mask_only(manager, probe, row, tokenizer):
    loaded = manager({"type": "tone", "plugin": "probe"})
    assert rewards(score(loaded, row("padded", pad=9, raw_prompt=None))) == [6.0]
    (batch,) = probe()
    assert batch.responses == ("padded",)
    assert batch.prompts == ("ask",)  # decoded: there were no messages
    assert batch.response_ids[0].tolist() == [
        *tokenizer("padded").input_ids,
        tokenizer.eos_token_id,
    ]


def test_a_provider_sees_prompt_group_step_and_how_the_response_ended(manager, probe, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    cut = row("x" * 20, eos=False, global_steps=7)
    assert rewards(score(loaded, row("fine", global_steps=7), cut)) == [4.0, 20.0]
    (batch,) = probe()
    assert batch.prompt_messages[0] == [{"role": "user", "content": "ask"}]
    assert batch.group_ids == ("u1", "u1")
    assert (batch.step, batch.training) == (7, True)
    assert batch.finish_reason == ("stop", "length")
    assert len(set(batch.sample_ids)) == 2


def test_columns_are_found_where_verl_keeps_them(manager, probe, row):
    names = ["ground_truth", "data_source", "index", "topic", "tags", "extra_info"]
    loaded = manager({"type": "tone", "plugin": "probe", "init_kwargs": {"reads": names}})
    answers = score(loaded, row("yes", topic="chairs", tags=[1, 2]))
    assert rewards(answers) == [3.0]
    (batch,) = probe()
    values = {name: column[0] for name, column in batch.columns.items()}
    assert values == {
        "ground_truth": "42",
        "data_source": "shop",
        "index": 3,
        "topic": "chairs",
        "tags": [1, 2],
        "extra_info": {"index": 3},
    }
    assert type(values["topic"]) is str


def test_a_row_without_a_column_fails_alone_and_says_which(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe", "init_kwargs": {"reads": ["topic"]}})
    good, bad = score(loaded, row("yes", topic="chairs"), row("no", topics="chairs"))
    assert good["reward_score"] == 3.0
    assert isinstance(bad, ConfigError)
    assert "no column 'topic'" in str(bad)
    assert "did you mean 'topics'?" in str(bad)


# -- coalescing --------------------------------------------------------------------------------


def test_rows_that_are_there_at_once_are_scored_in_one_call(manager, probe, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    texts = ["x" * (1 + i % 7) for i in range(40)]
    assert rewards(score(loaded, *(row(text) for text in texts))) == [
        float(len(text)) for text in texts
    ]
    assert [len(batch) for batch in probe()] == [40]


def test_rows_of_two_steps_are_scored_apart_each_with_the_weight_of_its_step(manager, probe, row):
    weight = {"linear": {"from": 1.0, "to": 0.0, "steps": 4}}
    loaded = manager(
        {"type": "tone", "plugin": "probe", "weight": weight},
        {"type": "other", "plugin": "probe", "weight": 1.0},
    )
    answers = score(loaded, *(row("four", global_steps=step) for step in (1, 3, 1)))
    assert rewards(answers) == [7.0, 5.0, 7.0]
    assert sorted({(batch.step, len(batch)) for batch in probe()}) == [(1, 2), (3, 1)]


def test_a_schedule_without_a_step_is_said_once(manager, row, caplog):
    weight = {"linear": {"from": 1.0, "to": 0.5, "steps": 4}}
    loaded = manager({"type": "tone", "plugin": "probe", "weight": weight})
    assert rewards(score(loaded, row("four"), row("four", uid="u2"))) == [4.0, 4.0]
    assert rewards(score(loaded, row("four", uid="u3"))) == [4.0]
    said = [r.getMessage() for r in caplog.records if "schedules stay" in r.getMessage()]
    assert len(said) == 1
    assert "tone" in said[0]


# -- failures ----------------------------------------------------------------------------------


def test_a_failed_row_raises_and_its_batch_mates_do_not(manager, probe, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    one, failed, three = score(loaded, row("one"), row("fail"), row("three"))
    assert rewards([one, three]) == [3.0, 5.0]
    assert isinstance(failed, RewardError)
    assert "tone failed (tone: cannot); its prompt group fails" in str(failed)
    assert len(probe()) == 1


def test_most_of_a_batch_may_fail_and_the_rest_has_its_rewards(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    *failed, good = score(loaded, *(row("fail") for _ in range(9)), row("good"))
    assert all(isinstance(error, RewardError) for error in failed)
    assert good["reward_score"] == 4.0


def test_a_call_that_raises_fails_its_rows_and_not_the_next_call(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    first, second = score(loaded, row("explode"), row("beside it"))
    assert "boom" in str(first)
    assert isinstance(second, RewardError)
    assert rewards(score(loaded, row("well"))) == [4.0]


def test_an_abstention_raises_and_never_takes_the_mean_of_strangers(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe"})
    known, unknown = score(loaded, row("known"), row("abstain"))
    assert known["reward_score"] == 5.0
    assert isinstance(unknown, RewardError)
    assert "tone abstained (tone: no idea)" in str(unknown)


def test_missing_zero_and_a_default_score_are_carried(manager, row):
    loaded = manager(
        {"type": "tone", "plugin": "probe", "missing": "zero", "on_error": {"default": -2.0}}
    )
    assert rewards(score(loaded, row("abstain"), row("fail"), row("ok"))) == [0.0, -2.0, 2.0]


def test_on_error_abstain_goes_the_way_of_abstentions(manager, row):
    mount = {"type": "tone", "plugin": "probe", "on_error": "abstain"}
    assert rewards(score(manager(mount | {"missing": "zero"}), row("fail"))) == [0.0]
    (error,) = score(manager(mount), row("fail"))
    assert isinstance(error, RewardError)


def test_a_gate_that_could_not_judge_raises_unless_it_is_open(manager, row):
    tone = {"type": "tone", "plugin": "probe", "missing": "zero", "on_error": {"default": 1.0}}
    shut, fine = score(manager(tone, GATE), row("abstain"), row("ok"))
    assert isinstance(shut, RewardError)
    assert "gate abstained" in str(shut)
    assert fine["reward_score"] == 2.0
    assert rewards(score(manager(tone, GATE | {"fail_open": True}), row("abstain"))) == [0.0]


def test_all_rows_behind_a_shut_gate_raise(manager, row):
    tone = {"type": "tone", "plugin": "probe", "missing": "zero"}
    errors = score(manager(tone, GATE), row("abstain", global_steps=1), row("abstain"))
    assert all(isinstance(error, RewardError) for error in errors)


def test_a_veto_is_carried_as_a_penalty_and_a_skip_of_the_provider_s_raises(manager, row):
    loaded = manager({"type": "tone", "plugin": "probe"}, GATE)
    vetoed, skipped = score(loaded, row("veto this"), row("skip this"))
    assert vetoed["reward_score"] == -3.0
    assert isinstance(skipped, RewardError)
    assert "guard keeps it out of the update, which verl cannot" in str(skipped)


# -- weights -----------------------------------------------------------------------------------


def test_two_workers_on_one_file_score_a_step_with_one_revision(manager, row, tmp_path, caplog):
    path = tmp_path / "weights.db"
    tone = {"type": "tone", "plugin": "probe"}
    first = manager(tone, settings=[f"weights={path}"])
    assert rewards(score(first, row("four", global_steps=1))) == [4.0]
    with_cli = WeightStore({"tone": 1.0}, path=path)
    with_cli.update({"tone": 3.0}, author="test")
    second = manager(tone, settings=[f"weights={path}"])
    late = score(second, row("four", global_steps=1, uid="other"))
    assert rewards(late) == [4.0]
    after = score(second, row("four", global_steps=2)) + score(first, row("four", global_steps=2))
    assert rewards(after) == [12.0, 12.0]
    assert [a["reward_extra_info"]["weights/revision"] for a in late + after] == [1.0, 2.0, 2.0]
    assert "is open elsewhere too" not in caplog.text
    with_cli.close()


@pytest.fixture
def control_plane(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, WeightStore]]:
    """The address of a real control plane, and the store behind it."""
    monkeypatch.delenv("VERL_REWARD_TOKEN", raising=False)
    store = WeightStore({"tone": 1.0, "other": 0.0}, run_id="served", allow_zero=True)
    with ControlServer(ControlState(run_id="served", store=store), "127.0.0.1", 0) as server:
        yield server.url, store
    store.close()


MOUNTS = (
    {"type": "tone", "plugin": "probe"},
    {"type": "other", "plugin": "probe", "weight": 0.0},
)


def test_the_control_plane_s_weights_hold_from_the_next_step_on(
    manager, row, control_plane, monkeypatch
):
    url, store = control_plane
    monkeypatch.setenv("VERL_REWARD_URL", url)
    loaded = manager(*MOUNTS)
    assert rewards(score(loaded, row("four", global_steps=1))) == [4.0]
    store.update({"tone": 2.0}, author="test")
    assert rewards(score(loaded, row("four", global_steps=1, uid="late"))) == [4.0]
    (answer,) = score(loaded, row("four", global_steps=2))
    assert answer["reward_score"] == 8.0
    assert answer["reward_extra_info"]["weights/revision"] == 2.0


def test_a_control_plane_with_other_mounts_is_refused_at_load(manager, control_plane, monkeypatch):
    url, _ = control_plane
    monkeypatch.setenv("VERL_REWARD_URL", url)
    with pytest.raises(ConfigError, match="other"):
        manager({"type": "tone", "plugin": "probe"})


# -- refused at load ---------------------------------------------------------------------------


def test_a_reward_that_needs_groups_is_refused_with_its_place(manager):
    with pytest.raises(ConfigError, match="compares the responses of a group") as caught:
        manager({"type": "tone", "plugin": "group_probe"})
    assert str(caught.value).startswith(str(Path(caught.value.file)))
    assert caught.value.path == "reward.tone"


def test_what_the_config_cannot_carry_is_refused_before_anything_is_loaded(manager, probe):
    with pytest.raises(ConfigError) as caught:
        manager({"type": "tone", "plugin": "probe", "missing": "mask", "on_error": "mask"})
    assert "verl cannot carry missing: mask" in str(caught.value)
    assert "verl cannot carry on_error: mask" in str(caught.value)
    assert probe() == []


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("reward.custom_reward_function.path=mine.py", "names a reward function beside"),
        ("reward.reward_model.enable=true", "verl never asks this manager"),
    ],
)
def test_verl_s_own_rewards_beside_the_manager_are_refused(verl_config, tokenizer, override, said):
    config = verl_config(*SEAM, "+reward.reward_kwargs.verl_reward.config=x.yaml", override)
    with pytest.raises(ConfigError, match=said):
        VerlRewardManager(config, tokenizer)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ((), "nothing says which YAML holds the rewards"),
        (("config=/no/such.yaml",), "there is no such file"),
        (("config=a.yaml", "weight=1"), "did you mean 'weights'"),
    ],
)
def test_settings_that_cannot_be_used_say_what_to_write(
    verl_config, tokenizer, monkeypatch, settings, said
):
    monkeypatch.delenv("VERL_REWARD_CONFIG", raising=False)
    at = "+reward.reward_kwargs.verl_reward"
    config = verl_config(*SEAM, *(f"{at}.{setting}" for setting in settings))
    with pytest.raises(ConfigError, match=said):
        VerlRewardManager(config, tokenizer)


def test_the_config_may_be_named_by_the_environment_where_verl_s_says_nothing(
    tmp_path, probe, verl_config, tokenizer, row, monkeypatch
):
    path = tmp_path / "run.yaml"
    path.write_text("reward: {type: tone, plugin: probe}\n", "utf-8")
    monkeypatch.setenv("VERL_REWARD_CONFIG", str(path))
    for config in (None, verl_config(*SEAM)):
        loaded = VerlRewardManager(config, tokenizer)
        assert rewards(score(loaded, row("four"))) == [4.0]
        loaded.engine.close()


def test_overrides_win_over_the_file(manager, row):
    tone = {"type": "tone", "plugin": "probe"}
    loaded = manager(tone, settings=["overrides=['reward.tone.weight=5']"])
    assert rewards(score(loaded, row("four"))) == [20.0]


def test_weights_from_a_file_and_from_a_control_plane_exclude_each_other(
    manager, control_plane, monkeypatch, tmp_path
):
    monkeypatch.setenv("VERL_REWARD_URL", control_plane[0])
    with pytest.raises(ConfigError, match="not from both"):
        manager(*MOUNTS, settings=[f"weights={tmp_path / 'weights.db'}"])


def test_what_differs_from_the_defaults_is_said_at_start(manager, caplog):
    manager({"type": "tone", "plugin": "probe"}, GATE)
    text = "\n".join(record.getMessage() for record in caplog.records)
    assert "on_error: raise in place of mask (tone)" in text
    assert "unless missing: zero is written" in text
    assert "a row that a gate could not judge fails its prompt group (guard)" in text


# -- verl's own loop, in Ray -------------------------------------------------------------------


@pytest.mark.skipif(
    Version(verl.__version__) < Version("0.9.0"), reason="this verl looks for no entry points"
)
def test_importing_verl_registers_the_manager_through_the_entry_point():
    code = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import verl\n"
        "from verl.experimental.reward_loop.reward_manager import get_reward_manager_cls\n"
        "print(get_reward_manager_cls('verl_reward').__module__)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=280, check=False
    )
    assert done.stdout.strip() == "verl_core.integrations.verl", done.stderr


RULES = """score: {base: 0.0, min: 0.0, max: 1.0}
rules:
  - {name: vowels, regex: '[aeiou]', points: 0.5, reason: has a vowel}
"""


@pytest.fixture(scope="module")
def ray_loop(base_config: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """verl's `RewardLoopManager` with two workers, each a Ray actor with our manager."""
    import ray
    from verl.experimental.reward_loop import RewardLoopManager

    folder = tmp_path_factory.mktemp("ray-loop")
    (folder / "rules.yaml").write_text(RULES, "utf-8")
    mount = {"type": "style", "plugin": "rules", "init_kwargs": {"rules": "rules.yaml"}}
    needs = {
        "type": "known",
        "plugin": "rules",
        "init_kwargs": {"rules": "rules.yaml"},
        "weight": 0.25,
        "reads": ["topic"],
    }
    (folder / "run.yaml").write_text(json.dumps({"reward": [mount, needs]}), "utf-8")
    config = overridden(
        base_config, *SEAM, f"+reward.reward_kwargs.verl_reward.config={folder}/run.yaml"
    )
    environment = {key: v for key, v in os.environ.items() if not key.startswith("VERL_REWARD")}
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
        yield RewardLoopManager(config)
    finally:
        ray.shutdown()
        os.environ.update(before)


def test_verl_s_loop_puts_each_reward_on_its_last_token(ray_loop, tokenizer):
    texts = ["yes", "brr", "abc", "xyz", "oui", "grr", "no"]
    if Version(verl.__version__) < Version("0.9.0"):
        texts.pop()  # rows have to be a multiple of the workers there
    data = DataProto.concat([outputs([t.ljust(3)], tokenizer, topic="t") for t in texts])
    out = ray_loop.compute_rm_score(data)
    scores = out.batch["rm_scores"]
    expected = [0.625 if set(text) & set("aeiou") else 0.0 for text in texts]
    assert scores[:, 3].tolist() == expected
    assert scores.sum(1).tolist() == expected
    assert out.meta_info["reward_extra_keys"] == [
        "acc",
        "reward/style",
        "reward/known",
        "weights/revision",
    ]
    assert out.non_tensor_batch["acc"].tolist() == expected
    assert out.non_tensor_batch["reward/style"].dtype.kind == "f"


def test_a_row_that_raises_reaches_verl_as_our_error_and_the_worker_lives_on(ray_loop, tokenizer):
    import ray

    worker = ray_loop.reward_loop_workers[0]
    good, bad = outputs(["yes"], tokenizer, topic="t"), outputs(["yes"], tokenizer)
    with pytest.raises(ConfigError, match="no column 'topic'"):
        ray.get(worker.compute_score.remote(bad))
    assert ray.get(worker.compute_score.remote(good))["reward_score"] == 0.625


def test_all_workers_of_one_ray_job_share_a_session_and_another_job_has_its_own(ray_loop):
    import ray

    from verl_core.integrations.verl import _session

    @ray.remote(num_cpus=0)
    class Worker:
        def session(self) -> str:
            from verl_core.integrations.verl import _session

            return _session()

    workers = [Worker.remote() for _ in range(2)]
    sessions = set(ray.get([worker.session.remote() for worker in workers]))
    assert sessions == {_session()}
    script = (
        "import sys, ray; ray.init(address=sys.argv[1], logging_level='ERROR');"
        "from verl_core.integrations.verl import _session; print('session', _session())"
    )
    address = ray.get_runtime_context().gcs_address
    other = subprocess.run(
        [sys.executable, "-c", script, address], capture_output=True, text=True, timeout=120
    )
    (said,) = (line for line in other.stdout.splitlines() if line.startswith("session "))
    assert said.removeprefix("session ") not in sessions
