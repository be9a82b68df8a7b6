"""The function and the server for OpenRLHF, asked with its own request shape."""

from __future__ import annotations

import asyncio
import logging
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from verl_core.integrations.openrlhf import reward_function
from verl_core.integrations.openrlhf_rules import fit
from verl_core.integrations.openrlhf_server import reward_app, reward_router
from verl_core.integrations.openrlhf_texts import Texts
from verl_core.rewards import WeightStore
from verl_reward_sdk import ConfigError, RewardError

PROMPT = "<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"


def ask(function: Any, **cells: Any) -> Any:
    """One row, as OpenRLHF asks: its label is a mapping of the cells."""
    return function([PROMPT + "because<|im_end|>"], [PROMPT], [cells])


@pytest.fixture
def make(run_yaml: Callable[..., Path]) -> Iterator[Callable[..., Any]]:
    """`reward_function` of mounts; closed when the test ends."""
    made: list[Any] = []

    def function(*mounts: Any, fusion: Any = None, **options: Any) -> Any:
        more = {"fusion": fusion} if fusion else {}
        made.append(reward_function(run_yaml(*mounts, **more), **options))
        return made[-1]

    yield function
    for one in made:
        one.close()


# -- the function ----------------------------------------------------------------------------------


def test_gives_lists_under_openrlhfs_keys(make: Any, mounts: Any) -> None:
    answer = ask(make(mounts.cell("a", weight=2.0), mounts.cell("b", weight=0.5)), a=1.0, b=0.5)
    assert answer == {
        "rewards": [2.25],
        "scores": [2.25],
        "extra_logs": {"reward/a": [2.0], "reward/b": [0.25], "weights_revision": [1.0]},
    }


def test_names_of_logs_are_the_same_for_every_row(make: Any, mounts: Any) -> None:
    function = make(mounts.cell("a"), mounts.cell("b", applies_to="kind == 'math'"))
    with_b = ask(function, a=1.0, b=0.5, kind="math")
    without = ask(function, a=1.0, b=0.5, kind="code")
    assert with_b["extra_logs"].keys() == without["extra_logs"].keys()
    assert without["extra_logs"]["reward/b"] == [0.0]
    assert (with_b["rewards"], without["rewards"]) == ([1.5], [1.0])


def test_label_is_a_column_or_a_mapping_of_columns(make: Any, mounts: Any) -> None:
    plain = make(mounts.cell("a", init_kwargs={"column": "ground_truth"}))
    assert plain([PROMPT], [PROMPT], [0.5])["rewards"] == [0.5]
    named = make(mounts.cell("a"), label="a")
    assert named([PROMPT], [PROMPT], [0.25])["rewards"] == [0.25]
    with pytest.raises(ConfigError, match="row 1: its label has no 'a'"):
        named([PROMPT] * 2, [PROMPT] * 2, [{"a": 1.0}, {"b": 1.0}])


def test_failure_and_abstention_are_errors_not_numbers(make: Any, mounts: Any) -> None:
    function = make(mounts.cell("a"), mounts.cell("b"))
    with pytest.raises(RewardError, match=r"a: 1 of 1 rows failed.*broken"):
        ask(function, a="broken", b=1.0)
    with pytest.raises(RewardError, match="OpenRLHF cannot leave it out: a abstained"):
        ask(function, a=None, b=1.0)


def test_zero_and_a_default_are_numbers_that_were_asked_for(make: Any, mounts: Any) -> None:
    keys = {"missing": "zero", "on_error": {"default": -1.0}, "max_error_rate": 1.0}
    function = make(mounts.cell("a", **keys), mounts.cell("b"))
    assert ask(function, a=None, b=1.0)["rewards"] == [1.0]
    assert ask(function, a="broken", b=1.0)["rewards"] == [0.0]


def test_gate_vetoes_and_one_that_fails_is_an_error(make: Any, mounts: Any) -> None:
    function = make(mounts.cell("a"), mounts.gate("g"))
    assert ask(function, a=1.0, g="penalty")["rewards"] == [0.0]
    assert ask(function, a=1.0, g="veto")["rewards"] == [-1.0]
    for failed in ("down!", None):
        with pytest.raises(RewardError, match="gate"):
            ask(function, a=1.0, g=failed)
    opened = make(mounts.cell("a"), mounts.gate("g", fail_open=True))
    assert ask(opened, a=1.0, g="down!")["rewards"] == [1.0]


def test_live_weights_of_a_file_hold_from_the_next_call_on(
    make: Any, mounts: Any, tmp_path: Path
) -> None:
    file = tmp_path / "live" / "weights.db"
    function = make(mounts.cell("a"), weights=file)
    assert ask(function, a=1.0)["rewards"] == [1.0]
    store = WeightStore({"a": 1.0}, path=file)
    store.update({"a": 3.0}, author="test")
    store.close()
    assert ask(function, a=1.0)["rewards"] == [3.0]


def test_a_function_pickles_before_and_after_its_first_call(make: Any, mounts: Any) -> None:
    function = make(mounts.cell("a"))
    for _ in range(2):
        copy = pickle.loads(pickle.dumps(function))
        assert ask(copy, a=0.5) == ask(function, a=0.5)
        copy.close()


# -- texts -----------------------------------------------------------------------------------------


def seen(function: Any, query: str, prompt: str) -> Any:
    import peer_kit

    function([query], [prompt], [""])
    return peer_kit.Seen.batches[-1]


SEEN = {"type": "seen", "plugin": "seen"}


def test_the_prompt_is_cut_off_letter_by_letter(make: Any) -> None:
    batch = seen(make(SEEN), "Why? Why? Because.</s>", "Why? ")
    assert batch.responses == ("Why? Because.",)
    assert batch.responses_raw == ("Why? Because.</s>",)
    assert batch.prompts == ("Why? ",)


def test_a_query_without_its_prompt_is_an_error(make: Any) -> None:
    with pytest.raises(RewardError, match="nobody knows where its response begins"):
        make(SEEN)(["How? Because."], ["Why?"], [""])


def test_special_tokens_are_taken_off_the_end_only_where_they_are_guessed() -> None:
    texts = Texts()
    assert texts.clean("a <|b|> c<|im_end|>") == "a <|b|> c"
    assert texts.clean("fin<|im_end|></s>") == "fin"
    assert texts.clean("x < y </s> z") == "x < y </s> z"
    assert texts.finish_reason("cut o") == "stop"  # nobody knows


@pytest.fixture
def tokens(tiny_model_dir: Path) -> Texts:
    texts = Texts(tiny_model_dir)
    texts.load()
    return texts


def test_many_special_tokens_at_the_end_are_taken_off_in_one_go() -> None:
    assert Texts().clean("well</s> </s>" + "</s><|im_end|>" * 50_000) == "well</s> "


def test_with_a_tokenizer_special_tokens_are_its_own(tokens: Texts) -> None:
    assert tokens.clean("a<|b|>c<|im_end|>") == "a<|b|>c"
    assert tokens.finish_reason("done<|im_end|>") == "stop"
    assert tokens.finish_reason("cut o") == "length"


def test_with_a_tokenizer_a_prompt_that_was_cut_at_its_beginning_is_found(tokens: Texts) -> None:
    prompt = "A very long introduction that nobody reads. How much does the green one cost?"
    assert tokens.response_of(prompt[30:] + "Ten.", prompt, 0) == "Ten."
    with pytest.raises(RewardError, match="does not write the prompt like this either"):
        tokens.response_of("cost?Ten.", prompt, 0)  # so short an end may stand there by chance


def test_with_a_tokenizer_a_prompt_is_cut_off_as_it_is_decoded() -> None:
    class Lossy:
        """A tokenizer that writes one space where there were two."""

        all_special_tokens = ("</s>",)

        def __call__(self, text: str, add_special_tokens: bool) -> dict[str, list[str]]:
            return {"input_ids": text.split()}

        def decode(self, ids: list[str], skip_special_tokens: bool) -> str:
            return " ".join(ids)

    texts = Texts(Lossy())
    texts.load()
    assert texts.response_of("Why so? Because.</s>", "Why  so?", 0) == " Because.</s>"


# -- what it cannot carry --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"missing": "neutral"}, "reward.a.missing"),
        ({"missing": "mask"}, "reward.a.missing"),
        ({"on_error": "mask"}, "reward.a.on_error"),
        ({"on_error": "abstain"}, "reward.a.on_error"),
        ({"weight": {"linear": {"from": 2.0, "to": 1.0, "steps": 4}}}, "reward.a.weight"),
    ],
)
def test_what_is_asked_for_by_name_is_refused(
    make: Any, mounts: Any, keys: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError, match="OpenRLHF cannot carry") as caught:
        make(mounts.cell("a", **keys))
    assert caught.value.path == path


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"skip_update": True}, "reward.g.skip_update"),
        ({"severity": "skip", "threshold": {"above": 0.5}}, "reward.g.severity"),
    ],
)
def test_skip_is_refused(make: Any, mounts: Any, keys: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError, match="no way to leave one out") as caught:
        make(mounts.cell("a"), mounts.gate("g", **keys))
    assert caught.value.path == path


def test_a_gate_that_says_skip_fails_the_call_and_that_is_said_once(
    make: Any, mounts: Any, caplog: Any
) -> None:
    with caplog.at_level(logging.WARNING):
        function = make(mounts.cell("a"), mounts.gate("g"), mounts.gate("h"))
    said = [record.getMessage() for record in caplog.records]
    assert sum("a gate that says skip fails its call" in line for line in said) == 1
    with pytest.raises(RewardError, match=r"1 x skipped.* 1 x g spoke"):
        ask(function, a=1.0, g="skip", h="none")
    rows = [{"a": 1.0, "g": word, "h": "none"} for word in ("none", "skip")]
    with pytest.raises(RewardError, match=r"row 1 .* a gate keeps it out of the update"):
        function([PROMPT] * 2, [PROMPT] * 2, rows)


def test_group_scope_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="one response at a time"):
        make({"type": "pairs", "plugin": "pairs"})


@pytest.mark.parametrize("way", ["group", "batch", "running"])
def test_normalisation_is_refused(make: Any, mounts: Any, way: str) -> None:
    with pytest.raises(ConfigError, match=f"cannot carry normalize: {way}") as caught:
        make(mounts.cell("a", normalize=way))
    assert caught.value.path == "reward.a.normalize"


@pytest.mark.parametrize(
    ("fusion", "why"),
    [
        ({"policy": "lexicographic"}, "one response at a time"),
        ({"policy": "constrained", "bounds": {"a": 0.5}}, "at the end of each step"),
    ],
)
def test_a_policy_over_groups_or_steps_is_refused(
    make: Any, mounts: Any, fusion: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why) as caught:
        make(mounts.cell("a"), mounts.cell("b"), fusion=fusion)
    assert caught.value.path == "fusion.policy"


def test_a_node_is_refused(make: Any) -> None:
    with pytest.raises(ConfigError, match="OpenRLHF cannot carry node_class") as caught:
        make({"type": "custom", "node_class": "mine.SafetyRewardNode"})
    assert caught.value.path == "reward.safety_reward.node_class"


def test_replaced_defaults_are_said_once(make: Any, mounts: Any, caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        make(mounts.cell("a"), mounts.cell("b"))
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(":")[2].split(",")[0].strip() for line in said] == [
        "on_error: raise in place of mask: a row that cannot be scored fails its call",
        "an abstention fails its call",
    ]


# -- over HTTP -------------------------------------------------------------------------------------


def payload(*cells: Any) -> dict[str, Any]:
    """What OpenRLHF posts."""
    return {
        "query": [f"{PROMPT}because {i}<|im_end|>" for i in range(len(cells))],
        "prompts": [PROMPT] * len(cells),
        "labels": list(cells),
    }


def post(url: str, body: Any) -> httpx.Response:
    return httpx.post(url, json=body, timeout=120)


def test_server_answers_openrlhfs_request(served: Any, run_yaml: Any, mounts: Any) -> None:
    app = reward_app(run_yaml(mounts.cell("a", weight=2.0), {"type": "later", "plugin": "later"}))
    with served(app) as url:
        answer = post(f"{url}/get_reward", payload({"a": 1.0}, {"a": 0.0}))
    assert answer.status_code == 200
    assert answer.json()["rewards"] == [2.0 + len("because 0"), float(len("because 1"))]
    assert answer.json()["scores"] == answer.json()["rewards"]


def test_server_answers_many_at_once(served: Any, run_yaml: Any) -> None:
    async def ask_all(url: str) -> list[int]:
        async with httpx.AsyncClient(timeout=120) as client:
            one = payload({"x": 1})
            asked = (client.post(f"{url}/get_reward", json=one) for _ in range(40))
            return [answer.json()["rewards"][0] for answer in await asyncio.gather(*asked)]

    with served(reward_app(run_yaml({"type": "later", "plugin": "later"}))) as url:
        assert asyncio.run(ask_all(url)) == [float(len("because 0"))] * 40


def test_row_without_a_reward_is_503_which_openrlhf_asks_for_again(
    served: Any, run_yaml: Any, mounts: Any
) -> None:
    with served(reward_app(run_yaml(mounts.cell("a"), mounts.cell("b")))) as url:
        for cells in ({"a": "broken", "b": 1.0}, {"a": None, "b": 1.0}):
            answer = post(f"{url}/get_reward", payload(cells))
            assert answer.status_code == 503
            assert answer.headers["content-type"] == "application/problem+json"
            assert "rewards" not in answer.json()


@pytest.mark.parametrize(
    ("body", "key"),
    [
        ({"query": "text", "prompts": ["p"], "labels": [""]}, "query"),
        ({"query": ["q"], "prompts": [1], "labels": [""]}, "prompts"),
        ({"query": ["q"], "prompts": ["q"], "labels": "x"}, "labels"),
        ({"query": ["q", "r"], "prompts": ["q"], "labels": [""]}, "query"),
    ],
)
def test_other_requests_are_refused(served: Any, run_yaml: Any, body: Any, key: str) -> None:
    with served(reward_app(run_yaml(SEEN))) as url:
        answer = post(f"{url}/get_reward", body)
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["key"] == key


def test_a_body_is_counted_as_it_comes(served: Any, run_yaml: Any, mounts: Any) -> None:
    def endless() -> Iterator[bytes]:
        yield b'{"query": ["'
        for _ in range(1 << 14):
            yield b"x" * (1 << 12)

    with served(reward_app(run_yaml(mounts.cell("a")), max_body=1 << 16)) as url:
        json = {"Content-Type": "application/json"}
        try:
            status = httpx.post(f"{url}/get_reward", content=endless(), headers=json).status_code
        except httpx.TransportError:  # it stopped listening before all of it was sent
            status = 413
        assert status == 413
        foreign = httpx.post(f"{url}/get_reward", json=payload({"a": 1.0}), headers={"Host": "a.b"})
        assert foreign.status_code == 421
        assert post(f"{url}/get_reward", payload({"a": 1.0})).status_code == 200


def test_router_in_another_application_uses_its_engine_and_live_weights(
    served: Any, run_yaml: Any, mounts: Any
) -> None:
    from fastapi import FastAPI

    from verl_core.control.problem import install_handlers
    from verl_core.integrations.fitting import read_rewards
    from verl_core.rewards import RewardEngine

    path = run_yaml(mounts.cell("a"), mounts.cell("b"))
    with RewardEngine.from_config(read_rewards(path).train) as engine:
        app = FastAPI()
        app.include_router(reward_router(path, engine=engine, path="/rm"))
        install_handlers(app, "own")
        with served(app) as url:
            row = payload({"a": 1.0, "b": 0.0})
            assert post(f"{url}/rm", row).json()["rewards"] == [1.0]
            engine.store.update({"a": 3.0}, author="test")
            assert post(f"{url}/rm", row).json()["rewards"] == [3.0]
            # The engine serves the config as it is written; OpenRLHF's table holds all the same.
            silent = post(f"{url}/rm", payload({"a": None, "b": 0.0}))
            assert silent.status_code == 503
        assert engine.describe()[0]["state"] == "ready"  # not closed with the router


def test_answers_that_would_come_too_late_are_refused_at_load(run_yaml: Any, mounts: Any) -> None:
    slow = mounts.cell("a", timeout=120.0, queue_timeout=100.0)
    with pytest.raises(ConfigError, match=r"waits 180 s .* a may take 220 s"):
        reward_app(run_yaml(slow))
    assert reward_function(run_yaml(slow)) is not None  # nobody waits for a deadline there


def test_unwritten_wait_is_shortened_to_openrlhfs_deadline(run_yaml: Any, mounts: Any) -> None:
    from verl_core.integrations.fitting import read_rewards
    from verl_core.rewards import RewardEngine

    after = mounts.cell("b", after=["g"], only_if="open")
    rewards = read_rewards(run_yaml(mounts.gate("g"), after, mounts.cell("c", timeout=10))).train
    engine = RewardEngine.from_config(rewards)
    fitted, _ = fit(rewards, engine, http=True)
    engine.close()
    assert [m.queue_timeout for m in fitted.mounts] == [27.5, 27.5, None]
