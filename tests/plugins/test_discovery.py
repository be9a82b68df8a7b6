"""What is listed from metadata alone."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from verl_core.plugins import normalise
from verl_reward_sdk import PluginError

BOMB = "raise RuntimeError('a listing must not import me')\n"


def record(registry, name):
    [found] = [r for r in registry.records() if r.name == name]
    return found


def test_a_record_tells_name_distribution_version_and_origin(plugin_site, registry):
    plugin_site.add("acme-rewards", "1.2", rewards={"taste": "acme_taste"})
    assert record(registry(), "taste").as_dict() == {
        "name": "taste",
        "state": "available",
        "reason": None,
        "dist": "acme-rewards",
        "version": "1.2",
        "api": None,
        "origin": "acme_taste",
    }


def test_listing_imports_no_plugin(plugin_site, registry):
    plugin_site.add("acme", rewards={"taste": "acme_bomb"}, files={"acme_bomb.py": BOMB})
    assert record(registry(), "taste").state == "available"
    assert "acme_bomb" not in sys.modules


@pytest.mark.parametrize("written", ["llm-judge-x", "LLM_Judge.X", "Llm--Judge_x"])
def test_names_are_normalised_when_listed_and_when_asked_for(plugin_site, registry, written):
    plugin_site.add("acme", rewards={written: "acme_judge"})
    assert record(registry(), "llm-judge-x").origin == "acme_judge"
    assert registry().check("llm_JUDGE-x").name == "llm-judge-x"
    assert normalise(written) == "llm-judge-x"


def test_one_module_may_stand_behind_several_names(plugin_site, registry):
    plugin_site.add("acme", rewards={"sweet": "acme_taste", "sour": "acme_taste"})
    states = {r.name: r.state for r in registry().records() if r.dist == "acme"}
    assert states == {"sour": "available", "sweet": "available"}


@pytest.mark.parametrize(
    ("requirement", "refused"),
    [
        ("verl-reward-sdk>=2,<3", "verl-reward-sdk<3,>=2"),
        ("Verl_Reward.SDK==99", "verl-reward-sdk==99"),
        ("verl-reward-sdk>=0.1,<1", None),
        ("verl-reward-sdk", None),
        ("verl-reward-sdk>=9; python_version < '3'", None),
        ("verl-reward-sdk>=9; extra == 'future'", None),
        ("verl-reward-sdk-tools>=9", None),
        ("numpy>=99", None),
        ("verl-reward-sdk =! 3", "cannot be read"),
    ],
)
def test_a_distribution_that_needs_another_sdk_is_incompatible(
    plugin_site, registry, requirement, refused
):
    plugin_site.add("acme", rewards={"taste": "acme_taste"}, requires=[requirement])
    found = record(registry(), "taste")
    assert found.state == ("available" if refused is None else "incompatible")
    if refused is not None:
        assert refused in found.reason
        with pytest.raises(PluginError, match="incompatible"):
            registry().check("taste")


def test_two_distributions_with_one_name_are_a_conflict_and_neither_is_taken(
    plugin_site, registry, module_of
):
    plugin_site.add(
        "acme", "1.5", rewards={"taste": "a_taste"}, files={"a_taste.py": module_of("taste")}
    )
    plugin_site.add(
        "brand", "2.5", rewards={"Taste": "b_taste"}, files={"b_taste.py": module_of("taste")}
    )
    plugin_site.add(
        "calm", "3.5", rewards={"calm": "c_calm"}, files={"c_calm.py": module_of("calm")}
    )
    plugins = registry()
    both = [r for r in plugins.records(load=True) if r.name == "taste"]
    assert [(r.dist, r.state) for r in both] == [("acme", "conflict"), ("brand", "conflict")]
    for found in both:
        assert "acme 1.5 and brand 2.5" in found.reason
    with pytest.raises(PluginError, match=r"acme 1\.5 and brand 2\.5"):
        plugins.provider("taste")
    assert "a_taste" not in sys.modules
    assert "b_taste" not in sys.modules
    assert plugins.provider("calm").name == "calm"


def test_a_conflict_is_settled_by_naming_one_distribution(plugin_site, registry, module_of):
    for dist in ("acme", "brand"):
        plugin_site.add(
            dist,
            rewards={"taste": f"{dist}_taste"},
            files={f"{dist}_taste.py": module_of("taste")},
        )
    plugins = registry(VERL_REWARD_PLUGINS="brand")
    assert plugins.provider("taste").name == "taste"
    assert plugins.check("taste").dist == "brand"
    assert "acme_taste" not in sys.modules


def test_one_distribution_with_one_name_for_two_modules_is_a_conflict(plugin_site, registry):
    plugin_site.add("acme", rewards={"taste": "acme_a", "Taste": "acme_b"})
    reasons = {r.reason for r in registry().records() if r.name == "taste"}
    assert reasons == {"acme 1.0 offers it twice, as acme_a and acme_b"}


def test_a_distribution_that_is_twice_on_the_path_is_no_conflict(
    plugin_site, registry, tmp_path: Path, monkeypatch
):
    second = tmp_path / "second"
    plugin_site.add("acme", "1.0", rewards={"taste": "acme_taste"})
    plugin_site.add("Acme", "0.9", rewards={"taste": "acme_taste"}, folder=second)
    monkeypatch.syspath_prepend(str(second))
    monkeypatch.syspath_prepend(str(plugin_site.folder))
    found = record(registry(), "taste")
    assert (found.state, found.version) == ("available", "1.0")


@pytest.mark.parametrize("listed", ["taste", "TASTE", "acme-rewards", "Acme_Rewards, other"])
def test_the_allow_list_takes_names_of_rewards_and_of_distributions(plugin_site, registry, listed):
    plugin_site.add("acme-rewards", rewards={"taste": "acme_taste"})
    plugin_site.add("brand", rewards={"smell": "brand_smell"})
    plugins = registry(VERL_REWARD_DISABLE_AUTOLOAD="1", VERL_REWARD_PLUGINS=listed)
    assert record(plugins, "taste").state == "available"
    assert record(plugins, "smell").state == "disabled"


@pytest.mark.parametrize(
    "env",
    [
        {"VERL_REWARD_DISABLE_AUTOLOAD": "1"},
        {"VERL_REWARD_DISABLE_AUTOLOAD": "true", "VERL_REWARD_PLUGINS": "other"},
        {"VERL_REWARD_PLUGINS": "other"},
    ],
)
def test_what_is_outside_the_allow_list_is_never_imported(plugin_site, registry, env):
    plugin_site.add(
        "acme",
        rewards={"taste": "acme_bomb"},
        extensions={"kitchen": "acme_bomb"},
        files={"acme_bomb.py": BOMB},
    )
    plugins = registry(**env)
    assert {r.state for r in plugins.records(load=True) if r.dist == "acme"} == {"disabled"}
    with pytest.raises(PluginError, match="is disabled: VERL_REWARD_"):
        plugins.provider("taste")
    with pytest.raises(PluginError, match="disabled"):
        plugins.load_extensions(["kitchen"])
    assert "acme_bomb" not in sys.modules


@pytest.mark.parametrize("off", ["", "0", "false", "No", "off"])
def test_a_switch_that_is_off_disables_nothing(plugin_site, registry, off):
    plugin_site.add("acme", rewards={"taste": "acme_taste"})
    plugins = registry(VERL_REWARD_DISABLE_AUTOLOAD=off, VERL_REWARD_PLUGINS="")
    assert record(plugins, "taste").state == "available"


@pytest.mark.parametrize("value", ["acme_taste:Taste", "acme taste", "acme.", "1acme"])
def test_an_entry_point_that_names_no_module_is_broken(plugin_site, registry, value):
    plugin_site.add("acme", rewards={"taste": value})
    found = record(registry(), "taste")
    assert found.state == "broken"
    assert repr(value) in found.reason


def test_a_damaged_distribution_hurts_no_other(plugin_site, registry):
    plugin_site.add("acme", rewards={"taste": "acme_taste"})
    torn = plugin_site.add("torn", rewards={"smell": "torn_smell"})
    (torn / "entry_points.txt").write_text("[verl_reward]\nno equals sign\n")
    binary = plugin_site.add("binary", rewards={"touch": "binary_touch"})
    (binary / "entry_points.txt").write_bytes(b"[verl_reward]\n\xff\xfe = x\n")
    headless = plugin_site.add("headless", rewards={"sound": "headless_sound"})
    (headless / "METADATA").unlink()
    listed = {r.name: r for r in registry().records()}
    assert listed["taste"].state == "available"
    assert listed["torn"].state == "broken"
    assert "entry_points.txt" in listed["torn"].reason
    assert "sound" not in listed
    assert "touch" not in listed


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("fields", "version", "state"),
    [
        ("Name: acme\n", "unknown", "available"),
        ("Name: acme\nVersion:\n", "unknown", "available"),
        ("Name: acme\nVersion: not a version\n", "not a version", "available"),
        ("Name: acme\nVersion: 1\nRequires-Dist: ???\n", "1", "available"),
        ("Name: acme\nVersion: 1\nRequires-Dist: verl-reward-sdk >>1\n", "1", "incompatible"),
        (
            'Name: acme\nVersion: 1\nRequires-Dist: verl-reward-sdk; os_name ~= "x"\n',
            "1",
            "incompatible",
        ),
        ("Name: other-than-its-folder\nVersion: 1\n", "1", "available"),
        ("Name: a b/c\nVersion: 1\n", "1", "available"),
    ],
)
def test_odd_metadata_are_listed_as_what_they_are(plugin_site, registry, fields, version, state):
    info = plugin_site.add("acme", rewards={"taste": "acme_taste"})
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{fields}", encoding="utf-8")
    plugin_site.add("fine", rewards={"fine": "fine_module"})
    found = record(registry(), "taste")
    assert (found.version, found.state) == (version, state)
    assert found.state == "available" or "cannot be read" in found.reason
    assert record(registry(), "fine").state == "available"
    listed = plugin_site.run("list")
    assert listed.returncode == 0, listed.stderr
    assert "taste" in listed.stdout
    assert version in listed.stdout


@pytest.mark.parametrize("fields", ["", "Name:\n", "Version: 1\n"])
def test_a_distribution_without_a_name_hurts_no_other(plugin_site, registry, fields):
    info = plugin_site.add("acme", rewards={"taste": "acme_taste"})
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\n{fields}", encoding="utf-8")
    plugin_site.add("fine", rewards={"fine": "fine_module"})
    assert {"fine"} <= {r.name for r in registry().records()}
    assert "taste" not in {r.name for r in registry().records()}
