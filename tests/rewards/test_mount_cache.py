"""cache: and token_scores, through the whole engine."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from verl_core.rewards.tokens import Spans
from verl_reward_sdk import ConfigError

PLUGIN = '''
from pathlib import Path
from typing import Any
from pydantic import Field, SecretStr
from verl_reward_sdk import ProviderConfig, RewardProvider, RewardResult, hookimpl

VERL_REWARD_API = 1

class NotedConfig(ProviderConfig):
    note: Path
    factor: float = 1.0
    key: SecretStr = SecretStr("")
    hidden: float = Field(1.0, exclude=True)

class Noted(RewardProvider[NotedConfig]):
    """Notes the rows it is asked about; a response's digits are its score, or what fails it."""
    name = "noted"
    reads = frozenset({"ground_truth"})

    def score(self, batch: Any) -> RewardResult:
        with self.config.note.open("a") as file:
            file.write(" ".join(batch.responses) + "\\n")
        words, factor = batch.responses, self.config.factor * self.config.hidden
        return RewardResult(
            scores=[float(w) * factor if w.isdigit() else 0.0 for w in words],
            present=[w != "none" for w in words],
            failures={i: "no score" for i, w in enumerate(words) if w == "bad"},
            reasons={
                i: f"saw {w}{self.config.key.get_secret_value()}"
                for i, w in enumerate(words)
                if w.isdigit()
            },
            extras={"length": [len(w) for w in words]},
        )

class Grouped(Noted):
    name = "grouped"
    scope = "group"

class Learner(Noted):
    name = "learner"
    def state(self) -> dict[str, Any]:
        return {"seen": 1}

class Tokens(RewardProvider[ProviderConfig]):
    """Half of a response's score lies on its first character, half on its last."""
    name = "tokens"
    token_scores = True
    def score(self, batch: Any) -> RewardResult:
        spans = [[(0, 1, 0.5), (len(r) - 1, len(r), 0.5)] for r in batch.responses]
        return RewardResult(scores=[1.0] * len(batch), token_scores=spans)

class Undeclared(Tokens):
    name = "undeclared"
    token_scores = False

@hookimpl
def verl_reward_providers():
    yield from (Noted, Grouped, Learner, Tokens, Undeclared)
'''
LENIENT = {"on_error": "abstain", "max_error_rate": 1.0}


@pytest.fixture(autouse=True)
def _plugin(plugin_site):
    names = ("noted", "grouped", "learner", "tokens", "undeclared")
    plugin_site.add(
        "verl-reward-noted",
        rewards=dict.fromkeys(names, "noted_plugin"),
        files={"noted_plugin.py": PLUGIN},
    )


@pytest.fixture
def asked(tmp_path):
    """The rows that the provider was asked about so far, a list a call."""
    path = tmp_path / "note"
    return lambda: [line.split() for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def noted(tmp_path):
    """A mount of the plugin, with a cache."""

    def keys(plugin="noted", cache=(), **more):
        kwargs = {"note": str(tmp_path / "note"), **more.pop("init_kwargs", {})}
        return {"type": "m", "plugin": plugin, "init_kwargs": kwargs, "cache": dict(cache), **more}

    return keys


@pytest.fixture
def rows(kit):
    def batch(*responses, **fields):
        from dataclasses import replace

        columns = fields.pop("columns", {"ground_truth": ["x"] * len(responses)})
        made = kit.batch(len(responses), columns=columns, **fields)
        return replace(made, responses=responses, responses_raw=(), prompts=["q"] * len(responses))

    return batch


@pytest.mark.parametrize("execution", ["inline", "thread", "process"])
def test_what_is_known_is_not_asked_again(engine, noted, rows, asked, execution):
    built = engine(noted(execution=execution, weight=0.5))
    first = built.score(rows("1", "2", "2"))
    second = built.score(rows("2", "3", "1"))
    third = built.score(rows("3", "3"))
    assert asked() == [["1", "2"], ["3"]]
    assert first.fused.tolist() == [0.5, 1.0, 1.0]
    assert second.fused.tolist() == [1.0, 1.5, 0.5]
    assert third.fused.tolist() == [1.5, 1.5]
    assert second.columns["m"].reasons == ("saw 2", "saw 3", "saw 1")
    assert second.columns["m"].extras["length"].tolist() == [1.0, 1.0, 1.0]
    rates = [table.metrics()["reward/m/cache_hit_rate"] for table in (first, second, third)]
    assert rates == [1 / 3, 2 / 3, 1.0]
    shown = built.describe()[0]
    assert shown["cache"] == {"rows": 8, "hits": 5, "hit_rate": 5 / 8, "kept": 3}
    assert (shown["calls"], shown["rows"]) == (2, 3)


def test_neither_failures_nor_abstentions_are_kept_and_their_rows_are_named_rightly(
    engine, noted, rows, asked
):
    built = engine(noted(**LENIENT))
    built.score(rows("1", "2"))
    for _ in range(2):
        column = built.score(rows("1", "bad", "none", "2", "bad")).columns["m"]
        assert column.status.tolist() == ["ok", "failed", "abstained", "ok", "failed"]
        assert column.reasons[1] == column.reasons[4] == "no score"
    assert asked() == [["1", "2"], ["bad", "none"], ["bad", "none"]]
    assert built.describe()[0]["failures"] == 2


def test_a_broken_contract_names_the_row_of_the_batch_past_condition_and_cache(engine, noted, rows):
    built = engine(
        noted(
            init_kwargs={"factor": 1e308},
            on_error="raise",
            applies_to='ground_truth == "x"',
            scale=1e-308,
        )
    )
    built.score(rows("1"))
    batch = rows("9", "1", "100", columns={"ground_truth": ["y", "x", "x"]})
    with pytest.raises(Exception, match=r"m \(noted\): row 2: .*not finite: got inf"):
        built.score(batch)


def test_a_column_that_the_provider_reads_is_part_of_what_is_asked(engine, noted, rows, asked):
    built = engine(noted())
    built.score(rows("1", columns={"ground_truth": ["x"], "other": [1]}))
    built.score(rows("1", columns={"ground_truth": ["x"], "other": [2]}))
    built.score(rows("1", columns={"ground_truth": ["y"], "other": [1]}))
    assert asked() == [["1"], ["1"]]


def test_a_file_outlives_the_engine_and_another_config_is_another_scope(
    engine, noted, rows, asked, tmp_path
):
    file = {"path": str(tmp_path / "scores.db")}

    def score(**kwargs):
        built = engine(noted(cache=file, init_kwargs=kwargs))
        table = built.score(rows("1", "2"))
        built.close()
        return table.fused.tolist()

    assert score() == [1.0, 2.0]
    assert score() == [1.0, 2.0]
    assert len(asked()) == 1
    assert score(factor=3.0) == [3.0, 6.0]
    assert len(asked()) == 2


def test_a_secret_in_a_reason_is_not_written_into_the_file(engine, noted, rows, tmp_path):
    file = tmp_path / "scores.db"
    built = engine(noted(cache={"path": str(file)}, init_kwargs={"key": "sk-12345"}))
    built.score(rows("1"))
    reason = built.score(rows("1")).columns["m"].reasons[0]
    built.close()
    assert reason is not None
    assert reason.startswith("saw 1")
    assert "sk-12345" not in reason
    written = b"".join(path.read_bytes() for path in tmp_path.glob("scores.db*"))
    assert b"saw 1" in written
    assert b"sk-12345" not in written


def test_coroutines_and_threads_share_it(engine, noted, rows, tmp_path):
    built = engine(noted(cache={"path": str(tmp_path / "scores.db")}, execution="thread"))

    async def several():
        batches = [rows("1", "2", "3") for _ in range(5)]
        return await asyncio.gather(*(built.ascore(batch) for batch in batches))

    tables = asyncio.run(several()) + asyncio.run(several())
    assert [table.fused.tolist() for table in tables] == [[1.0, 2.0, 3.0]] * 10
    assert built.mounts["m"].blocks


@pytest.mark.parametrize(
    ("plugin", "said"),
    [
        ("grouped", r"reward\.m\.cache: Grouped scores whole groups.*leave cache: out"),
        ("learner", r"reward\.m\.cache: Learner learns while it runs"),
    ],
)
def test_what_must_not_be_cached_is_refused(engine, noted, plugin, said):
    with pytest.raises(ConfigError, match=said):
        engine(noted(plugin))


def test_a_provider_that_learns_is_refused_in_a_process(engine, noted):
    keys = {**noted("learner", execution="process"), "cache": None}
    with pytest.raises(ConfigError, match=r"reward\.m\.execution: Learner learns while it runs"):
        engine(keys)


def test_a_file_that_cannot_be_opened_is_refused_when_the_engine_loads(engine, noted, tmp_path):
    (tmp_path / "scores.db").mkdir()
    built = engine(noted(cache={"path": str(tmp_path / "scores.db")}))
    with pytest.raises(ConfigError, match=r"scores\.db.*cannot keep cached scores"):
        built.setup()


def test_what_a_config_does_not_show_is_in_the_key_too(engine, noted, rows, tmp_path):
    found = []
    for init_kwargs in ({"hidden": 2.0}, {"hidden": 3.0}, {"key": "a"}, {"key": "b"}):
        built = engine(noted(cache={"path": str(tmp_path / "s.db")}, init_kwargs=init_kwargs))
        column = built.score(rows("7")).columns["m"]
        found.append((column.scores[0], built.describe()[0]["cache"]["hits"]))
        built.close()
    assert found == [(14.0, 0), (21.0, 0), (7.0, 0), (7.0, 0)]


# -- token scores ----------------------------------------------------------------------------------


@pytest.mark.parametrize("execution", ["thread", "process"])
@pytest.mark.parametrize("cache", [None, {}])
def test_token_scores_reach_the_table_for_the_rows_that_were_asked(engine, rows, execution, cache):
    mount = {
        "type": "m",
        "plugin": "tokens",
        "execution": execution,
        "cache": cache,
        "applies_to": 'ground_truth == "x"',
    }
    built = engine(mount)
    for _ in range(2):
        table = built.score(rows("abc", "de", "fgh", columns={"ground_truth": ["x", "y", "x"]}))
        (part,) = table.token_parts
        assert [row is None for row in part.rows] == [False, True, False]
        spans = part.rows[2]
        assert isinstance(spans, Spans)
        assert spans.ends.tolist() == [1, 3]
        assert np.array_equal(spans.scores, [0.5, 0.5])


def test_token_scores_that_are_not_declared_break_the_contract(engine, rows):
    built = engine({"type": "m", "plugin": "undeclared", **LENIENT})
    column = built.score(rows("abc")).columns["m"]
    assert "token_scores that its class does not declare" in column.reasons[0]
    assert column.status.tolist() == ["failed"]
