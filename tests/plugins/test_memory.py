"""Failures that are remembered between processes."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest

from verl_core.plugins import PluginRegistry
from verl_core.plugins.memory import FailureMemory
from verl_reward_sdk import PluginError

BAD = "VERL_REWARD_API = 1\nraise ValueError('no salt')\n"


def state(registry, name="taste"):
    [found] = [r for r in registry.records() if r.name == name]
    return found.state


@pytest.fixture
def broken(plugin_site, registry):
    """A plugin `taste` whose failure an earlier process has met; gives its module's file."""
    plugin_site.add("acme", rewards={"taste": "acme_t"}, files={"acme_t.py": BAD})
    assert state(registry()) == "available"
    registry().records(load=True)
    return plugin_site.folder / "acme_t.py"


def test_a_failure_is_listed_by_later_processes_without_an_import(broken, registry):
    broken.write_text("raise SystemExit('a listing must not import me')\n")
    [found] = [r for r in registry().records() if r.name == "taste"]
    assert found.state == "broken"
    assert "ValueError: no salt" in found.reason
    assert "earlier" in found.reason
    assert "acme_t" not in sys.modules


def test_a_failure_met_through_a_config_is_remembered_too(plugin_site, registry):
    plugin_site.add("acme", rewards={"taste": "acme_t"}, files={"acme_t.py": BAD})
    with pytest.raises(PluginError, match="no salt"):
        registry().provider("taste")
    assert state(registry()) == "broken"


def test_a_remembered_failure_does_not_stop_a_repaired_plugin(broken, registry, module_of):
    broken.write_text(module_of("taste"))
    assert registry().check("taste").state == "available"
    assert registry().provider("taste").name == "taste"
    assert state(registry()) == "available", "it loaded, so that the failure is forgotten"


def test_a_failure_is_forgotten_when_the_version_changes(broken, registry, plugin_site):
    shutil.rmtree(plugin_site.folder / "acme-1.0.dist-info")
    plugin_site.add("acme", "1.1", rewards={"taste": "acme_t"})
    assert state(registry()) == "available"


def test_a_failure_belongs_to_one_environment(broken, registry, plugin_site, monkeypatch):
    monkeypatch.setattr(sys, "prefix", "/another/environment")
    assert state(registry()) == "available"


def test_failures_of_two_names_of_one_distribution_are_kept_apart(plugin_site, registry, module_of):
    plugin_site.add(
        "acme",
        rewards={"sweet": "acme_t", "sour": "acme_t"},
        files={"acme_t.py": module_of("sweet")},
    )
    registry().records(load=True)
    assert (state(registry(), "sweet"), state(registry(), "sour")) == ("available", "broken")


def test_environments_that_are_gone_are_dropped_from_the_file(
    broken, registry, memory_file, plugin_site
):
    content = json.loads(memory_file.read_text())
    content["/no/such/folder|/usr|old"] = {"version": "1", "failures": {"old": "x"}}
    memory_file.write_text(json.dumps(content))
    plugin_site.add("brand", rewards={"smell": "brand_s"}, files={"brand_s.py": BAD})
    registry().records(load=True)
    kept = json.loads(memory_file.read_text())
    assert sorted(key.rsplit("|", 1)[1] for key in kept) == ["acme", "brand"]
    assert [path.name for path in memory_file.parent.iterdir()] == [memory_file.name]


@pytest.mark.parametrize(
    "content", ["", "{", "[]", "null", '{"x": 1}', '{"x|y|acme": {"failures": 5}}', "\udcff"]
)
def test_a_damaged_file_counts_as_empty_and_is_replaced(broken, registry, memory_file, content):
    memory_file.write_bytes(content.encode("utf-8", "surrogateescape"))
    assert state(registry()) == "available"
    registry().records(load=True)
    assert state(registry()) == "broken"


def test_a_cache_that_cannot_be_written_is_no_error(plugin_site, tmp_path: Path):
    plugin_site.add("acme", rewards={"taste": "acme_t"}, files={"acme_t.py": BAD})
    blocker = tmp_path / "a-file"
    blocker.write_text("")
    memory = FailureMemory(blocker / "cache" / "failures.json")
    for _ in range(2):
        plugins = PluginRegistry(env={}, memory=memory)
        assert state(plugins) == "available"
        [found] = [r for r in plugins.records(load=True) if r.name == "taste"]
        assert found.state == "broken"


def test_the_file_lies_in_the_users_cache_folder(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tmp_path in FailureMemory().path.parents
