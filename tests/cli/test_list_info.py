"""``verl-reward list`` and ``verl-reward info``."""

from __future__ import annotations

import json

import pytest
import yaml

from verl_core.cli.main import main

GOOD = '''
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from verl_reward_sdk import AssetPath, ProviderConfig, RewardProvider, hookimpl

VERL_REWARD_API = 1
print("a plugin that talks while it is imported")


class Bounds(BaseModel):
    low: float = Field(default=0.0, description="Nothing is below it.")
    high: float = Field(default=1.0, ge=0, le=9)


class TasteConfig(ProviderConfig):
    column: str = "dish"
    """The column with the dish, as `menu` names it."""
    sauce: Literal["mild", "hot"] = "mild"
    recipe: AssetPath | None = None
    words: list[Annotated[str, Field(min_length=1)]] = []
    shares: dict[str, float] = {}
    bounds: Bounds = Bounds()


class NeedyConfig(ProviderConfig):
    recipe: AssetPath
    """A file of steps."""
    cooks: int = Field(gt=1)
    column: str = Field(examples=["dish"])
    bounds: Bounds


class Taste(RewardProvider[TasteConfig]):
    """How good it tastes.

    A second paragraph tells
    more.
    """

    name = "taste"
    score_range = (0.0, 5.0)
    scope = "group"
    execution = "inline"
    deterministic = False
    order_tolerance = 1e-4

    @property
    def reads(self):
        return frozenset({self.config.column})


class Needy(RewardProvider[NeedyConfig]):
    """Stops what is burnt."""

    name = "needy"
    role = "gate"

    @property
    def reads(self):
        return frozenset({self.config.column})

    @property
    def score_range(self):
        return (0.0, self.config.bounds.nowhere)


class Plain(RewardProvider):
    name = "plain"


@hookimpl
def verl_reward_providers():
    return [Taste, Needy, Plain]
'''
BAD = "VERL_REWARD_API = 1\nraise ValueError('no salt')\n"


@pytest.fixture
def site(plugin_site):
    names = dict.fromkeys(("taste", "needy", "plain"), "acme_taste")
    plugin_site.add("acme", "1.2", rewards=names, files={"acme_taste.py": GOOD})
    return plugin_site


def listed(site, *options, env=None):
    result = site.run("list", "--json", *options, env=env)
    assert result.returncode == 0, result.stderr
    return {record["name"]: record for record in json.loads(result.stdout)}


def test_json_holds_the_records(site):
    record = listed(site)["taste"]
    assert record == {
        "name": "taste",
        "state": "available",
        "reason": None,
        "dist": "acme",
        "version": "1.2",
        "api": None,
        "origin": "acme_taste",
    }


def test_listing_imports_no_plugin_no_numpy_no_torch_and_no_pydantic(site):
    result = site.run("list", options=("-X", "importtime"))
    assert result.returncode == 0
    modules = {
        line.rsplit("|", 1)[1].strip().split(".")[0]
        for line in result.stderr.splitlines()
        if line.startswith("import time:")
    }
    assert {"verl_core", "typer", "rich"} <= modules
    assert not modules & {"numpy", "torch", "transformers", "pydantic", "pluggy", "yaml", "asyncio"}
    assert not [m for m in modules if m.startswith("verl_reward") and m != "verl_reward_sdk"]
    assert "acme_taste" not in modules


def test_load_shows_what_is_broken_and_later_listings_remember_it(site):
    site.add("bad", "0.3", rewards={"sick": "bad_t"}, files={"bad_t.py": BAD})
    assert listed(site)["sick"]["state"] == "available"
    loaded = listed(site, "--load")
    assert loaded["taste"]["state"] == "loaded"
    assert loaded["taste"]["api"] == 1
    assert loaded["sick"]["state"] == "broken"
    assert "ValueError: no salt" in loaded["sick"]["reason"]
    assert listed(site)["sick"]["state"] == "broken"
    assert listed(site)["taste"]["state"] == "available"


def test_a_plugin_outside_the_allow_list_is_not_imported(site):
    site.add("bad", rewards={"sick": "bad_t"}, files={"bad_t.py": "print('BAD RAN', flush=True)\n"})
    env = {"VERL_REWARD_DISABLE_AUTOLOAD": "1", "VERL_REWARD_PLUGINS": "acme"}
    result = site.run("list", "--load", env=env)
    assert "BAD RAN" not in result.stdout + result.stderr
    states = {name: record["state"] for name, record in listed(site, env=env).items()}
    assert states["taste"] == "available"
    assert {state for name, state in states.items() if name not in ("taste", "needy", "plain")} == {
        "disabled"
    }
    refused = site.run("info", "sick", env=env)
    assert refused.returncode == 2
    assert "disabled" in refused.stderr
    assert "BAD RAN" not in refused.stderr


def test_a_name_in_the_allow_list_that_nothing_has_is_told(site):
    shown = site.run("list", env={"VERL_REWARD_PLUGINS": "acme,tast,nowhere-near"}).stdout
    assert (
        "VERL_REWARD_PLUGINS names 'tast', which nothing installed has; did you mean 'taste'?"
        in (shown)
    )
    assert "VERL_REWARD_PLUGINS names 'nowhere-near', which nothing installed has\n" in shown
    assert "names 'acme'" not in shown


def test_the_table_shows_name_state_distribution_version_and_every_reason(site):
    for dist, version in (("one", "1.1"), ("two", "2.2")):
        site.add(dist, version, rewards={"smell": f"{dist}_smell"})
    site.add("old", "0.9", rewards={"sound": "old_s"}, requires=["verl-reward-sdk>=5"])
    result = site.run("list")
    assert result.returncode == 0
    rows = {tuple(line.split()) for line in result.stdout.splitlines()}
    assert ("taste", "available", "acme", "1.2") in rows
    assert ("smell", "conflict", "one", "1.1") in rows
    assert ("smell", "conflict", "two", "2.2") in rows
    assert ("sound", "incompatible", "old", "0.9") in rows
    assert result.stdout.count("smell conflict: offered by one 1.1 and two 2.2") == 1
    assert "sound incompatible: needs verl-reward-sdk>=5" in result.stdout
    assert "\x1b[" not in result.stdout


@pytest.mark.parametrize("columns", ["40", "80", "200"])
def test_the_table_fits_its_terminal(site, columns):
    result = site.run("list", env={"COLUMNS": columns, "VERL_REWARD_PLUGINS": "acme"})
    table = result.stdout.split("`verl-reward info")[0]
    assert max(len(line) for line in table.split("disabled:")[0].splitlines()) <= int(columns)


def test_colours_come_on_a_terminal_and_go_with_no_color(site):
    colour = {"FORCE_COLOR": "1", "TERM": "xterm-256color"}
    assert "\x1b[32m" in site.run("list", env=colour).stdout
    assert "\x1b[32m" not in site.run("list", env={**colour, "NO_COLOR": "1"}).stdout


def test_an_empty_list_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setattr("sys.path", [])
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert "No reward plugin is installed" in text
    for name in ("rules", "bleu", "safety"):
        assert name in text
    assert "plugins/verl-reward-overlap" in text


def test_extensions_are_listed_apart(site):
    site.add("kitchen", "3.0", extensions={"cook": "kitchen_cook"})
    assert "cook" not in listed(site)
    assert listed(site, "--extensions")["cook"]["dist"] == "kitchen"
    assert "Extensions: cook" in site.run("list").stdout


def test_strict_prints_the_list_and_exits_2(site):
    for dist in ("one", "two"):
        site.add(dist, rewards={"smell": f"{dist}_smell"})
    assert site.run("list").returncode == 0
    result = site.run("list", "--json", env={"VERL_REWARD_STRICT": "1"})
    assert result.returncode == 2
    assert "taste" in {record["name"] for record in json.loads(result.stdout)}
    assert "'smell' (one 1.0) is in conflict" in result.stderr


@pytest.fixture
def info(site, capsys):
    """Runs ``verl-reward info`` in this process and gives its JSON."""

    def ask(name):
        assert main(["info", name, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return ask


def test_info_tells_all_of_a_provider(info):
    facts = info("Taste")
    expected = {
        "name": "taste",
        "dist": "acme",
        "version": "1.2",
        "description": "How good it tastes.",
        "role": "reward",
        "reads": ["dish"],
        "score_range": [0.0, 5.0],
        "execution": "inline",
        "scope": "group",
        "deterministic": False,
        "order_tolerance": 1e-4,
    }
    assert {key: facts[key] for key in expected} == expected
    settings = {setting["key"]: setting for setting in facts["settings"]}
    assert settings["column"] == {
        "key": "column",
        "type": "string",
        "default": "dish",
        "description": "The column with the dish, as `menu` names it.",
    }
    assert settings["sauce"]["type"] == "mild | hot"
    assert settings["recipe"]["type"] == "path | null"
    assert settings["words"]["type"] == "list of string, not empty"
    assert settings["shares"]["type"] == "mapping to number"
    assert settings["bounds.low"]["description"] == "Nothing is below it."
    assert settings["bounds.high"]["type"] == "number, 0 to 9"


def test_what_depends_on_settings_is_asked_of_the_example(info):
    facts = info("needy")
    assert facts["reads"] == ["dish"]
    assert facts["score_range"] is None
    assert facts["role"] == "gate"


def test_the_example_is_yaml_that_mounts_the_plugin(info):
    assert yaml.safe_load(info("taste")["example"]) == {
        "reward": [
            {
                "type": "taste",
                "plugin": "taste",
                "weight": 1.0,
                "init_kwargs": {"column": "dish", "sauce": "mild", "words": []},
            }
        ]
    }
    [gate] = yaml.safe_load(info("needy")["example"])["reward"]
    assert gate == {
        "type": "needy",
        "plugin": "needy",
        "role": "gate",
        "penalty": -1.0,
        "init_kwargs": {
            "recipe": "path/to/recipe",
            "cooks": 2,
            "column": "dish",
            "bounds": {"low": 0.0, "high": 1.0},
        },
    }


def test_a_plugin_without_settings_is_shown_too(info, capsys):
    facts = info("plain")
    assert facts["settings"] == []
    assert facts["score_range"] == [None, None]
    assert "init_kwargs" not in facts["example"]
    assert main(["info", "plain"]) == 0
    shown = capsys.readouterr().out
    assert "nothing to configure" in shown
    assert "unbounded" in shown


def test_info_shows_it_for_people(site, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["info", "taste"]) == 0
    captured = capsys.readouterr()
    for part in ("acme 1.2", "How good it tastes.", "A second paragraph tells more.", "0 to 5"):
        assert part in captured.out
    assert max(map(len, captured.out.splitlines())) <= 80
    assert "required" not in captured.out
    assert "`menu`" not in captured.out
    assert "talks while it is imported" in captured.err
    assert main(["info", "needy"]) == 0
    needy = capsys.readouterr().out
    assert "required" in needy
    assert "depends on its settings" in needy
    assert "penalty: -1.0" in needy


def test_a_plugin_that_is_installed_in_place_points_at_its_readme(site, info, capsys, monkeypatch):
    source = site.root / "acme source"
    source.mkdir()
    (source / "README.md").write_text("# How to taste\n", "utf-8")
    place = json.dumps({"url": source.as_uri(), "dir_info": {"editable": True}})
    (site.folder / "acme-1.2.dist-info" / "direct_url.json").write_text(place, "utf-8")
    assert info("taste")["readme"] == str(source / "README.md")
    monkeypatch.chdir(site.root)
    assert main(["info", "taste"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "More: acme source/README.md"
    assert main(["info", "taste", "--readme"]) == 0
    assert capsys.readouterr().out.strip() == "# How to taste"


def test_the_readme_of_an_installed_plugin_is_that_of_its_metadata(site, info, capsys):
    assert main(["info", "taste", "--readme"]) == 2
    assert "acme 1.2 brings no README" in capsys.readouterr().err
    assert main(["info", "taste"]) == 0
    assert "More:" not in capsys.readouterr().out
    metadata = site.folder / "acme-1.2.dist-info" / "METADATA"
    metadata.write_text(f"{metadata.read_text('utf-8')}\n# Tasting, built in\n", "utf-8")
    assert info("taste")["readme"] is None
    assert main(["info", "taste"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "More: `verl-reward info taste --readme`"
    assert main(["info", "taste", "--readme"]) == 0
    assert capsys.readouterr().out.strip() == "# Tasting, built in"


def test_info_of_a_broken_plugin_is_an_error_with_its_place(site):
    site.add("bad", "0.3", rewards={"sick": "bad_t"}, files={"bad_t.py": BAD})
    result = site.run("info", "sick")
    assert result.returncode == 2
    assert result.stdout == ""
    assert "'sick' (bad 0.3) is broken: ValueError: no salt" in result.stderr
    assert "bad_t.py:2" in result.stderr
    assert "Traceback" not in result.stderr


def test_info_of_an_unknown_plugin_names_the_nearest(site, capsys):
    assert main(["info", "tatse"]) == 2
    assert "did you mean 'taste'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bleu", "chrf", "rouge", "rules", "safety"])
def test_every_first_party_reward_can_be_shown(info, name):
    facts = info(name)
    assert facts["description"]
    assert facts["reads"] is not None
    assert all(setting["description"] for setting in facts["settings"])
    [mount] = yaml.safe_load(facts["example"])["reward"]
    assert mount["plugin"] == name
