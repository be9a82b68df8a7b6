"""Every hook, called through the fixture that plugin authors use."""

from __future__ import annotations

from types import SimpleNamespace

import pluggy
import pytest

from verl_reward_sdk import RewardProvider, hookimpl


class Taste(RewardProvider):
    """How good it tastes."""

    name = "taste"


class Spy:
    """A plugin that implements the observers and keeps what it saw."""

    def __init__(self):
        self.seen = []

    @hookimpl
    def verl_reward_batch_scored(self, table):
        self.seen.append(("scored", table))

    @hookimpl
    def verl_reward_weights_changed(self, before, after):
        self.seen.append(("weights", before, after))

    @hookimpl
    def verl_reward_generation_changed(self, mount, after):
        self.seen.append(("generation", mount, after))


def plugin(name, function):
    """A module-like plugin with one hook."""
    return SimpleNamespace(**{name: hookimpl(function)})


def test_the_fixture_holds_no_plugin(empty_plugin_manager):
    assert empty_plugin_manager.get_plugins() == set()
    assert empty_plugin_manager.hook.verl_reward_providers() == []


def test_two_tests_never_share_a_manager(empty_plugin_manager):
    empty_plugin_manager.register(Spy())
    assert len(empty_plugin_manager.get_plugins()) == 1


def test_verl_reward_providers_gives_classes(empty_plugin_manager):
    def verl_reward_providers():
        yield Taste

    empty_plugin_manager.register(plugin("verl_reward_providers", verl_reward_providers))
    [classes] = empty_plugin_manager.hook.verl_reward_providers()
    assert list(classes) == [Taste]


def test_verl_reward_fusion_policies_gives_classes(empty_plugin_manager):
    class Best:
        name = "best"

    def verl_reward_fusion_policies():
        return [Best]

    hooks = empty_plugin_manager.hook
    empty_plugin_manager.register(
        plugin("verl_reward_fusion_policies", verl_reward_fusion_policies)
    )
    assert hooks.verl_reward_fusion_policies() == [[Best]]


def test_verl_reward_nodes_gives_a_mapping(empty_plugin_manager):
    def verl_reward_nodes():
        return {"oven": int}

    empty_plugin_manager.register(plugin("verl_reward_nodes", verl_reward_nodes))
    assert empty_plugin_manager.hook.verl_reward_nodes() == [{"oven": int}]


def test_verl_reward_commands_is_handed_the_registry(empty_plugin_manager):
    added = []
    cli = SimpleNamespace(add_command=lambda name, function, help="": added.append((name, help)))

    def verl_reward_commands(cli):
        cli.add_command("cook", print, help="Cooks.")

    empty_plugin_manager.register(plugin("verl_reward_commands", verl_reward_commands))
    empty_plugin_manager.hook.verl_reward_commands(cli=cli)
    assert added == [("cook", "Cooks.")]


def test_verl_reward_routes_gives_pairs(empty_plugin_manager):
    def verl_reward_routes():
        return [("/menu", print)]

    empty_plugin_manager.register(plugin("verl_reward_routes", verl_reward_routes))
    assert empty_plugin_manager.hook.verl_reward_routes() == [[("/menu", print)]]


def test_verl_reward_batch_scored_hands_over_the_table(empty_plugin_manager):
    spy = Spy()
    empty_plugin_manager.register(spy)
    empty_plugin_manager.hook.verl_reward_batch_scored(table="a table")
    assert spy.seen == [("scored", "a table")]


def test_verl_reward_weights_changed_hands_over_both_snapshots(empty_plugin_manager):
    spy = Spy()
    empty_plugin_manager.register(spy)
    empty_plugin_manager.hook.verl_reward_weights_changed(before={"revision": 1}, after={})
    assert spy.seen == [("weights", {"revision": 1}, {})]


def test_verl_reward_generation_changed_may_be_heard_in_part(empty_plugin_manager):
    spy = Spy()
    empty_plugin_manager.register(spy)
    empty_plugin_manager.hook.verl_reward_generation_changed(mount="m", before={}, after={"n": 2})
    assert spy.seen == [("generation", "m", {"n": 2})]


def test_a_hook_with_a_parameter_that_is_not_specified_is_refused(empty_plugin_manager):
    def verl_reward_batch_scored(batch):
        return None

    bad = plugin("verl_reward_batch_scored", verl_reward_batch_scored)
    with pytest.raises(pluggy.PluginValidationError, match="batch"):
        empty_plugin_manager.register(bad)
