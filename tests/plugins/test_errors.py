"""What a config that names a plugin in vain is told, and the strict mode."""

from __future__ import annotations

from pathlib import Path

import pytest

import verl_core
from verl_core.plugins import first_party
from verl_core.plugins.errors import missing_extension, missing_reward
from verl_core.plugins.records import PluginRecord
from verl_reward_sdk import PluginError

BAD = "VERL_REWARD_API = 1\nraise ValueError('no salt')\n"
CHECKOUT = Path(verl_core.__file__).resolve().parent.parent / "plugins"


def offered(name, dist="acme"):
    return PluginRecord(name, "available", None, dist, "1.0", None, "module")


def hint(name, *names, dist="acme", extensions=()):
    return missing_reward(name, [offered(n, dist) for n in names], extensions).hint


@pytest.mark.parametrize(
    ("name", "dist"),
    [
        ("rules", "verl-reward-rules"),
        ("BLEU", "verl-reward-overlap"),
        ("chrf", "verl-reward-overlap"),
        ("rouge", "verl-reward-overlap"),
        ("safety", "verl-reward-safety"),
    ],
)
def test_a_first_party_reward_that_is_missing_names_its_distribution(name, dist):
    assert f"it comes with {dist}: pip install " in hint(name)
    assert hint(name).endswith(f"plugins/{dist}")


@pytest.mark.parametrize("name", ["judge", "classifier", "human", "math"])
def test_a_first_party_reward_of_a_later_version_is_not_told_to_be_installed(name):
    if (CHECKOUT / f"verl-reward-{name}" / "pyproject.toml").is_file():
        assert "pip install" in hint(name)
    else:
        assert "this version does not have" in hint(name)
        assert "pip install" not in hint(name)


def test_an_installed_distribution_that_lacks_the_reward_is_not_to_be_installed_again():
    text = hint("ter", "bleu", dist="verl-reward-overlap")
    assert "later version of verl-reward-overlap" in text
    assert "pip install" not in text


def test_a_slip_names_the_nearest_installed_reward():
    assert hint("tasty", "taste", "smell") == "did you mean 'taste'?"


def test_a_slip_of_a_first_party_name_says_what_it_should_be_and_where_it_comes_from():
    assert hint("rogue", "taste").startswith("did you mean 'rouge'? it comes with verl-reward-ov")


@pytest.mark.parametrize("name", ["sentiment", "verl-reward-sentiment", "acme"])
def test_an_unknown_name_is_never_turned_into_a_package(name):
    error = missing_reward(name, [offered("zzz")], [])
    assert "pip install" not in str(error)
    assert "pip install" not in str(missing_extension(name, []))


def test_an_extension_named_as_a_reward_is_told_where_it_belongs():
    error = missing_reward("kitchen", [], [offered("kitchen")])
    assert "extension" in error.message
    assert error.hint == "load it with plugins: [kitchen]"


def test_a_missing_extension_names_the_nearest():
    assert missing_extension("kitchn", [offered("kitchen")]).hint == "did you mean 'kitchen'?"


def test_the_table_of_shipped_plugins_is_that_of_the_folders():
    folders = {path.parent.name for path in CHECKOUT.glob("verl-reward-*/pyproject.toml")}
    assert set(first_party.SHIPPED) == folders
    assert set(first_party.SHIPPED) <= set(first_party.FIRST_PARTY)


def test_every_reward_of_a_shipped_plugin_is_known_to_the_table():
    if not CHECKOUT.is_dir():
        pytest.fail(f"no plugins folder beside {verl_core.__file__}")
    for dist in first_party.SHIPPED:
        text = (CHECKOUT / dist / "pyproject.toml").read_text()
        block = text.split("[project.entry-points.verl_reward]")[1].split("[")[0]
        names = {line.split("=")[0].strip() for line in block.strip().splitlines() if "=" in line}
        assert names <= set(first_party.FIRST_PARTY[dist])


def test_the_install_command_is_relative_inside_the_checkout(monkeypatch):
    monkeypatch.chdir(CHECKOUT.parent)
    dist = first_party.SHIPPED[0]
    assert first_party.install_command(dist) == f"pip install ./plugins/{dist}"


@pytest.fixture
def troubled(plugin_site, module_of):
    """A good plugin, a broken one, and two that claim one name."""
    plugin_site.add("calm", rewards={"calm": "calm_ok"}, files={"calm_ok.py": module_of("calm")})
    plugin_site.add("bad", rewards={"sick": "bad_t"}, files={"bad_t.py": BAD})
    return plugin_site


def test_strict_turns_a_conflict_into_an_error_for_every_config(troubled, registry):
    for dist in ("acme", "brand"):
        troubled.add(dist, rewards={"taste": f"{dist}_t"})
    assert registry().check("calm").name == "calm"
    with pytest.raises(PluginError, match=r"'taste' \(acme 1\.0\) is in conflict") as caught:
        registry(VERL_REWARD_STRICT="1").check("calm")
    assert "VERL_REWARD_STRICT" in caught.value.hint


def test_strict_turns_a_remembered_failure_into_an_error(troubled, registry):
    strict = {"VERL_REWARD_STRICT": "1"}
    assert registry(**strict).provider("calm").name == "calm"
    registry().records(load=True)
    with pytest.raises(PluginError, match=r"'sick' \(bad 1\.0\) is broken: ValueError: no salt"):
        registry(**strict).provider("calm")


def test_strict_tries_a_remembered_failure_again(troubled, registry, module_of):
    registry().records(load=True)
    (troubled.folder / "bad_t.py").write_text(module_of("sick"))
    assert registry(VERL_REWARD_STRICT="1").provider("calm").name == "calm"


def test_without_strict_there_is_no_strict_error(troubled, registry):
    registry().records(load=True)
    assert registry().strict_error() is None
