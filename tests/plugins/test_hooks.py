"""Extensions, and what the core does with the hooks of loaded plugins."""

from __future__ import annotations

import logging
import sys

import pytest

from verl_reward_sdk import PluginError

HEAD = "from verl_reward_sdk import hookimpl\nVERL_REWARD_API = 1\n"


def hook(name, body, arguments=""):
    return f"@hookimpl\ndef {name}({arguments}):\n    {body}\n"


@pytest.fixture
def extension(plugin_site, registry):
    """Installs extensions with the given hooks and gives a registry that has loaded them."""

    def make(*sources, load=True):
        names = []
        for number, source in enumerate(sources):
            name, module = f"kitchen{number}", f"acme_kitchen{number}"
            plugin_site.add(
                f"acme-{number}",
                extensions={name: module},
                files={f"{module}.py": HEAD + source},
            )
            names.append(name)
        plugins = registry()
        if load:
            plugins.load_extensions(names)
        return plugins

    return make


POLICY = "class Best:\n    name = 'best'\n    additive = False\n"


def test_an_extension_is_not_imported_before_a_config_names_it(extension):
    plugins = extension("raise ValueError('ran')\n", load=False)
    assert plugins.fusion_policy("best") is None
    assert [r.name for r in plugins.records(group="verl_reward_extensions")] == ["kitchen0"]
    assert "acme_kitchen0" not in sys.modules
    with pytest.raises(PluginError, match="ValueError: ran"):
        plugins.load_extensions(["kitchen0"])


def test_extensions_are_no_rewards(extension):
    plugins = extension("", load=False)
    assert "kitchen0" not in [r.name for r in plugins.records()]
    with pytest.raises(PluginError, match="is an extension, not a reward"):
        plugins.provider("kitchen0")


def test_a_missing_extension_is_an_error_that_names_the_nearest(extension):
    with pytest.raises(PluginError, match="did you mean 'kitchen0'"):
        extension("", load=False).load_extensions(["kitchenO"])


def test_a_fusion_policy_is_found_by_its_name(extension):
    plugins = extension(POLICY + hook("verl_reward_fusion_policies", "return [Best]"))
    assert plugins.fusion_policy("best").name == "best"
    assert plugins.fusion_policy("worst") is None


def test_a_policy_of_one_name_from_two_plugins_names_both(extension):
    source = POLICY + hook("verl_reward_fusion_policies", "yield Best")
    plugins = extension(source, source)
    with pytest.raises(PluginError, match="both acme_kitchen0 and acme_kitchen1"):
        plugins.fusion_policy("best")


def test_nodes_and_routes_are_gathered_from_all_loaded_plugins(extension):
    plugins = extension(
        hook("verl_reward_nodes", "return {'oven': int}"),
        hook("verl_reward_nodes", "return {'hob': float}")
        + hook("verl_reward_routes", "yield '/menu', print"),
        hook("verl_reward_nodes", "return None"),
    )
    assert plugins.nodes() == {"oven": int, "hob": float}
    assert plugins.routes() == {"/menu": print}


def test_two_routes_of_one_prefix_are_an_error(extension):
    plugins = extension(
        hook("verl_reward_routes", "yield '/menu', print"),
        hook("verl_reward_routes", "yield '/menu', repr"),
    )
    with pytest.raises(PluginError, match="route '/menu'"):
        plugins.routes()


def test_a_hook_that_raises_is_an_error_that_names_plugin_hook_and_place(extension):
    plugins = extension(hook("verl_reward_nodes", "raise KeyError('oven')"))
    with pytest.raises(PluginError, match=r"verl_reward_nodes of plugin acme_kitchen0.*:5\)"):
        plugins.nodes()


def test_one_module_in_both_groups_is_registered_once(plugin_site, registry, module_of):
    source = module_of("taste") + hook("verl_reward_nodes", "return {'oven': int}")
    plugin_site.add(
        "acme",
        rewards={"taste": "acme_both"},
        extensions={"kitchen": "acme_both"},
        files={"acme_both.py": source},
    )
    plugins = registry()
    plugins.load_extensions(["kitchen"])
    assert plugins.provider("taste").name == "taste"
    assert plugins.nodes() == {"oven": int}
    assert len(plugins.manager.get_plugins()) == 1


OBSERVER = "SEEN = []\n" + hook(
    "verl_reward_weights_changed", "SEEN.append((before, after))", "before, after"
)


def test_every_observer_is_called(extension):
    plugins = extension(OBSERVER, OBSERVER)
    plugins.notify("verl_reward_weights_changed", before=1, after=2)
    for number in range(2):
        assert sys.modules[f"acme_kitchen{number}"].SEEN == [(1, 2)]


def test_an_observer_may_take_fewer_arguments(extension):
    source = "SEEN = []\n" + hook("verl_reward_weights_changed", "SEEN.append(after)", "after")
    plugins = extension(source)
    plugins.notify("verl_reward_weights_changed", before=1, after=2)
    assert sys.modules["acme_kitchen0"].SEEN == [2]


@pytest.mark.parametrize("raised", ["ValueError('spilt')", "SystemExit(1)"])
def test_an_observer_that_raises_is_logged_once_and_dropped(extension, caplog, raised):
    bad = "CALLS = []\n" + hook(
        "verl_reward_weights_changed", f"CALLS.append(1)\n    raise {raised}", "after"
    )
    plugins = extension(OBSERVER, bad, OBSERVER)
    with caplog.at_level(logging.ERROR):
        for step in range(3):
            plugins.notify("verl_reward_weights_changed", before=step, after=step + 1)
    assert sys.modules["acme_kitchen1"].CALLS == [1]
    for number in (0, 2):
        assert len(sys.modules[f"acme_kitchen{number}"].SEEN) == 3
    [entry] = caplog.records
    assert "verl_reward_weights_changed of plugin acme_kitchen1" in entry.getMessage()
    assert entry.exc_info is not None


def test_an_observer_that_raises_keeps_its_other_hooks(extension, caplog):
    source = hook("verl_reward_batch_scored", "raise ValueError", "table") + OBSERVER
    plugins = extension(source)
    plugins.notify("verl_reward_batch_scored", table=None)
    plugins.notify("verl_reward_weights_changed", before=0, after=1)
    assert sys.modules["acme_kitchen0"].SEEN == [(0, 1)]


def test_ctrl_c_in_an_observer_ends_the_step(extension):
    plugins = extension(hook("verl_reward_batch_scored", "raise KeyboardInterrupt", "table"))
    with pytest.raises(KeyboardInterrupt):
        plugins.notify("verl_reward_batch_scored", table=None)


def test_notifying_without_plugins_does_nothing(registry):
    assert registry().notify("verl_reward_batch_scored", table=None) is None


class Recorder:
    """A `CommandRegistry` that keeps what it is given."""

    def __init__(self):
        self.added = []

    def add_command(self, name, function, *, help=""):
        self.added.append((name, function, help))


def test_an_extension_adds_its_own_commands_and_no_others(extension):
    plugins = extension(
        hook("verl_reward_commands", "cli.add_command('cook', print, help='Cooks.')", "cli"),
        hook("verl_reward_commands", "cli.add_command('wash', print)", "cli"),
    )
    cli = Recorder()
    plugins.add_commands("kitchen0", cli)
    assert cli.added == [("cook", print, "Cooks.")]


def test_commands_that_cannot_be_added_are_an_error(extension):
    plugins = extension(hook("verl_reward_commands", "raise OSError('no gas')", "cli"))
    with pytest.raises(PluginError, match="OSError: no gas"):
        plugins.add_commands("kitchen0", Recorder())
