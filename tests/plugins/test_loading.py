"""What importing a plugin brings to light."""

from __future__ import annotations

import sys
import threading

import pytest

from verl_reward_sdk import PLUGIN_API_VERSION, PluginError, RewardProvider

HEAD = "from verl_reward_sdk import RewardProvider, hookimpl\n"
API = "VERL_REWARD_API = 1\n"
HOOK = "@hookimpl\ndef verl_reward_providers():\n    yield Taste\n"
CLASS = "class Taste(RewardProvider):\n    name = 'taste'\n"


@pytest.fixture
def load(plugin_site, registry):
    """Installs a module behind the name `taste`, loads it, and gives its record."""

    def go(source, *, name="taste", module="acme_taste"):
        plugin_site.add("acme", rewards={name: module}, files={f"{module}.py": source})
        [found] = [r for r in registry().records(load=True) if r.name == name]
        return found

    return go


def test_a_good_plugin_is_loaded_and_gives_its_class(plugin_site, registry, module_of):
    plugin_site.add("acme", rewards={"taste": "acme_t"}, files={"acme_t.py": module_of("taste")})
    plugins = registry()
    cls = plugins.provider("Taste")
    assert issubclass(cls, RewardProvider)
    assert cls.name == "taste"
    assert plugins.check("taste").state == "loaded"
    assert plugins.check("taste").api == PLUGIN_API_VERSION
    assert plugins.provider("taste") is cls


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("raise ValueError('no salt')", "ValueError: no salt"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import sys; sys.exit('bye')", "SystemExit: bye"),
        ("raise type('Odd', (BaseException,), {})('odd end')", "Odd: odd end"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("import a_library_nobody_has", "ModuleNotFoundError: No module named 'a_library_nob"),
        ("from verl_reward_sdk import Nothing", "ImportError: cannot import name 'Nothing'"),
        ("def f(:", "SyntaxError: "),
    ],
)
def test_a_plugin_that_fails_at_import_is_broken_and_everything_else_works(
    plugin_site, registry, module_of, statement, reason
):
    source = f"{API}\n{statement}\n"
    plugin_site.add("acme", rewards={"taste": "acme_bad"}, files={"acme_bad.py": source})
    plugin_site.add("calm", rewards={"calm": "calm_ok"}, files={"calm_ok.py": module_of("calm")})
    plugins = registry()
    found = {r.name: r for r in plugins.records(load=True)}
    assert found["taste"].state == "broken"
    assert found["taste"].reason.startswith(reason)
    assert f"{plugin_site.folder / 'acme_bad.py'}:3" in found["taste"].reason
    assert found["calm"].state == "loaded"
    with pytest.raises(PluginError) as caught:
        plugins.provider("taste")
    assert reason in str(caught.value)
    assert "acme 1.0" in str(caught.value)
    assert plugins.provider("calm").name == "calm"


def test_the_place_is_the_plugins_own_line_not_the_librarys(plugin_site, registry):
    files = {
        "acme_pkg/__init__.py": f"{API}from acme_pkg import deep\n",
        "acme_pkg/deep.py": "import json\n\njson.loads('{')\n",
    }
    plugin_site.add("acme", rewards={"taste": "acme_pkg"}, files=files)
    [found] = [r for r in registry().records(load=True) if r.name == "taste"]
    assert found.reason.startswith("JSONDecodeError: ")
    assert found.reason.endswith(f"({plugin_site.folder / 'acme_pkg' / 'deep.py'}:3)")


def test_ctrl_c_during_an_import_is_not_swallowed(plugin_site, registry):
    source = f"{API}raise KeyboardInterrupt\n"
    plugin_site.add("acme", rewards={"taste": "acme_slow"}, files={"acme_slow.py": source})
    with pytest.raises(KeyboardInterrupt):
        registry().provider("taste")


def test_a_module_that_is_not_there_is_broken(plugin_site, registry):
    plugin_site.add("acme", rewards={"taste": "acme_gone", "smell": "acme_gone.inner"})
    reasons = {r.name: r.reason for r in registry().records(load=True) if r.dist == "acme"}
    assert reasons["taste"] == "there is no module 'acme_gone'"
    assert "No module named 'acme_gone'" in reasons["smell"]


@pytest.mark.parametrize(
    "line",
    [
        "VERL_REWARD_API = 1",
        "VERL_REWARD_API: int = 1",
        "OTHER = VERL_REWARD_API = 1",
    ],
)
def test_a_literal_api_is_accepted(load, line):
    found = load(f"{HEAD}{line}\n{CLASS}{HOOK}")
    assert (found.state, found.api) == ("loaded", 1)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "declares no plugin API"),
        ("def f():\n    VERL_REWARD_API = 1", "declares no plugin API"),
        ("from verl_reward_sdk import PLUGIN_API_VERSION as VERL_REWARD_API", "declares no"),
        (
            "from verl_reward_sdk import PLUGIN_API_VERSION\nVERL_REWARD_API = PLUGIN_API_VERSION",
            "must be one literal number",
        ),
        ("VERL_REWARD_API = 0 + 1", "must be one literal number"),
        ("VERL_REWARD_API = True", "must be one literal number"),
        ("VERL_REWARD_API = '1'", "must be one literal number"),
        ("VERL_REWARD_API: int", "must be one literal number"),
        ("VERL_REWARD_API = 1\nVERL_REWARD_API = 2", "must be one literal number"),
        ("VERL_REWARD_API = 1\nVERL_REWARD_API += 0", "must be one literal number"),
        ("VERL_REWARD_API = 1\nglobals()['VERL_REWARD_API'] = 2", "is 2 once imported"),
    ],
)
def test_an_api_that_is_not_one_literal_is_broken(load, line, reason):
    found = load(f"{HEAD}{line}\n{CLASS}{HOOK}")
    assert found.state == "broken"
    assert reason in found.reason


@pytest.mark.parametrize("number", [0, 2, 17])
def test_another_api_is_incompatible_and_its_code_never_runs(load, number):
    found = load(f"VERL_REWARD_API = {number}\nraise RuntimeError('ran')\n")
    assert (found.state, found.api) == ("incompatible", number)
    assert found.reason == f"speaks plugin API {number}, and this version speaks 1"
    assert "acme_taste" not in sys.modules


def test_a_module_without_its_source_is_broken(plugin_site, registry, tmp_path):
    import py_compile

    source = tmp_path / "source.py"
    source.write_text(f"{HEAD}{API}{CLASS}{HOOK}")
    py_compile.compile(str(source), str(plugin_site.folder / "acme_taste.pyc"), doraise=True)
    plugin_site.add("acme", rewards={"taste": "acme_taste"})
    [found] = [r for r in registry().records(load=True) if r.name == "taste"]
    assert found.state == "broken"
    assert "without its source" in found.reason


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (CLASS, "has no hook verl_reward_providers"),
        (CLASS + HOOK.replace("@hookimpl\n", ""), "is not marked with @hookimpl"),
        (HOOK.replace("Taste", "from ()"), "provides nothing, and no 'taste'"),
        (HOOK.replace("yield Taste", "return None"), "provides nothing, and no 'taste'"),
        (CLASS.replace("'taste'", "'toast'") + HOOK, "provides toast, and no 'taste'"),
        (HOOK.replace("Taste", "'taste'"), "yields 'taste', no RewardProvider class"),
        (HOOK.replace("yield Taste", "return 5"), "must yield classes, not 5"),
        (CLASS.replace("'taste'", "' '") + HOOK, "its class Taste has no name"),
        (CLASS.replace("'taste'", "5") + HOOK, "its class Taste has no name"),
        (
            CLASS + "class Tart(Taste):\n    name = 'TASTE'\n" + HOOK + "    yield Tart\n",
            "its classes Taste and Tart are both named 'taste'",
        ),
        (CLASS + HOOK + "    raise LookupError('late')\n", "LookupError: late ("),
        (
            CLASS + HOOK.replace("verl_reward_providers", "verl_reward_provider"),
            "'verl_reward_provider', which is no hook: did you mean 'verl_reward_providers'?",
        ),
        (CLASS + HOOK.replace("()", "(batch)"), "Argument(s) {'batch'}"),
    ],
)
def test_a_module_that_does_not_provide_its_name_is_broken_and_says_why(load, body, reason):
    found = load(f"{HEAD}{API}{body}")
    assert found.state == "broken"
    assert reason in found.reason


def test_of_several_names_of_one_module_only_the_missing_one_is_broken(
    plugin_site, registry, module_of
):
    names = {"sweet": "acme_t", "sour": "acme_t", "bitter": "acme_t"}
    plugin_site.add("acme", rewards=names, files={"acme_t.py": module_of("sweet", "sour")})
    plugins = registry()
    states = {r.name: r.state for r in plugins.records(load=True) if r.dist == "acme"}
    assert states == {"sweet": "loaded", "sour": "loaded", "bitter": "broken"}
    assert [p.__name__ for p in plugins.manager.get_plugins()].count("acme_t") == 1


def test_a_refused_plugin_does_not_observe(plugin_site, registry):
    source = (
        f"{HEAD}{API}SEEN = []\n@hookimpl\ndef verl_reward_batch_scored(table):\n"
        "    SEEN.append(table)\n@hookimpl\ndef verl_reward_providers():\n    yield 5\n"
    )
    plugin_site.add("acme", rewards={"taste": "acme_spy"}, files={"acme_spy.py": source})
    plugins = registry()
    plugins.records(load=True)
    plugins.notify("verl_reward_batch_scored", table="table")
    assert sys.modules["acme_spy"].SEEN == []


def test_threads_that_ask_at_once_import_a_plugin_once(plugin_site, registry, module_of):
    slow = module_of("taste") + "\nimport time\ntime.sleep(0.05)\n"
    plugin_site.add("acme", rewards={"taste": "acme_slow"}, files={"acme_slow.py": slow})
    plugins, classes = registry(), []
    threads = [
        threading.Thread(target=lambda: classes.append(plugins.provider("taste"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(classes) == 8
    assert len(set(classes)) == 1


def test_a_failed_plugin_is_tried_once_in_a_process(plugin_site, registry):
    source = f"{API}import sys\nsys.tried = getattr(sys, 'tried', 0) + 1\nraise ValueError('no')\n"
    plugin_site.add("acme", rewards={"taste": "acme_bad"}, files={"acme_bad.py": source})
    plugins = registry()
    try:
        for _ in range(3):
            with pytest.raises(PluginError):
                plugins.provider("taste")
        plugins.records(load=True)
        assert sys.tried == 1
    finally:
        del sys.tried
