"""Classes named in a config: from its folder first, proved, and built in that folder."""

from __future__ import annotations

import importlib
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from torch import nn

from verl_core.trainer.node_loader import build, check_arguments, load_class
from verl_core.trainer.reward import RewardNode
from verl_reward_sdk import ConfigError

HEAD = "from verl_core.trainer.reward import RewardNode\n"


@pytest.fixture
def put(tmp_path, fresh_imports):
    """``put("name", source)`` writes a module into the config's folder, which it gives."""

    def write(name, source):
        (tmp_path / f"{name}.py").write_text(HEAD + textwrap.dedent(source), "utf-8")
        importlib.invalidate_caches()
        return tmp_path

    return write


def refused(call, *arguments):
    with pytest.raises(ConfigError) as caught:
        call(*arguments)
    return str(caught.value)


# -- load_class -----------------------------------------------------------------------------------


def test_a_module_beside_the_config_comes_before_an_installed_one(put):
    folder = put("tabnanny", "class Mine(RewardNode): pass\n")
    cls = load_class("tabnanny.Mine", RewardNode, folder)
    assert cls.__name__ == "Mine"
    assert Path(sys.modules["tabnanny"].__file__) == folder / "tabnanny.py"


def test_a_module_beside_the_config_is_imported_once_and_may_import_its_neighbour(put):
    put("weights_of_mine", "PRICE = 3\n")
    folder = put(
        "mine", "from weights_of_mine import PRICE\nclass Mine(RewardNode): price = PRICE\n"
    )
    cls = load_class("mine.Mine", RewardNode, folder)
    assert cls.price == 3
    assert load_class("mine.Mine", RewardNode, folder) is cls


def test_modules_of_one_name_in_two_folders_are_two_modules(put, tmp_path):
    first = put("mine", "class Mine(RewardNode): place = 1\n")
    second = tmp_path / "second"
    second.mkdir()
    (second / "mine.py").write_text(HEAD + "class Mine(RewardNode): place = 2\n", "utf-8")
    places = [load_class("mine.Mine", RewardNode, folder).place for folder in (first, second)]
    assert places == [1, 2]


def test_a_class_of_an_installed_package_is_found_by_its_dotted_name(tmp_path):
    name = "verl_core.trainer.reward.RewardNode"
    assert load_class(name, RewardNode, tmp_path) is RewardNode


@pytest.mark.parametrize(
    ("dotted", "words"),
    [
        ("os.system", "os.system is a builtin_function_or_method, but not a RewardNode"),
        ("os.PathLike", "os.PathLike is a class, but not a RewardNode"),
        ("mine.number", "mine.number is a int, but not a RewardNode"),
        ("mine.Mien", "has no 'Mien' (did you mean 'Mine'?)"),
        ("mien.Mine", "no module 'mien' beside the config"),
        ("Mine", "names no module (write module.Class)"),
        ("os.path.no.Where", "no module 'os.path.no'"),
    ],
)
def test_what_is_no_reward_node_is_refused_by_what_it_is(put, dotted, words):
    folder = put("mine", "number = 3\nclass Mine(RewardNode): pass\n")
    assert words in refused(load_class, dotted, RewardNode, folder)


def test_a_name_close_to_a_module_beside_the_config_names_that_module(put):
    folder = put("tone_reward", "class Mine(RewardNode): pass\n")
    assert "did you mean 'tone_reward'?" in refused(
        load_class, "tone_rewrad.Mine", RewardNode, folder
    )


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("1 / 0\n", "ZeroDivisionError: division by zero"),
        ("import no_such_library\n", "No module named 'no_such_library'"),
        ("class Mine(RewardNode) pass\n", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_told_and_not_kept(put, source, words):
    folder = put("mine", source)
    said = refused(load_class, "mine.Mine", RewardNode, folder)
    assert "failed" in said
    assert words in said
    assert "mine" not in sys.modules
    put("mine", "class Mine(RewardNode): pass\n")
    assert load_class("mine.Mine", RewardNode, folder).__name__ == "Mine"


def test_a_package_beside_the_config_that_lacks_a_library_is_not_called_missing(put, tmp_path):
    package = tmp_path / "kit_of_mine"
    package.mkdir()
    (package / "__init__.py").write_text("import no_such_library\n", "utf-8")
    said = refused(load_class, "kit_of_mine.Mine", RewardNode, put("other", ""))
    assert "importing it failed: No module named 'no_such_library'" in said


# -- build ----------------------------------------------------------------------------------------

READS = """
from pathlib import Path
class Reads(RewardNode):
    def __init__(self, file="words.txt", limit=3):
        self.text, self.where = Path(file).read_text("utf-8"), Path.cwd()
"""


def test_a_node_is_built_with_the_configs_folder_as_working_directory(put):
    folder = put("reads", READS)
    (folder / "words.txt").write_text("a few words", "utf-8")
    before = Path.cwd()
    node = build(load_class("reads.Reads", RewardNode, folder), {"limit": 1}, (), folder)
    assert node.text == "a few words"
    assert node.where == folder
    assert Path.cwd() == before


def test_a_constructor_that_raises_is_told_and_the_working_directory_is_back(put):
    folder = put("reads", READS)
    before = Path.cwd()
    cls = load_class("reads.Reads", RewardNode, folder)
    said = refused(build, cls, {"file": "nowhere.txt"}, (), folder)
    assert said.startswith("Reads could not be built: FileNotFoundError")
    assert "nowhere.txt" in said
    assert Path.cwd() == before


@pytest.mark.parametrize(
    ("kwargs", "words"),
    [
        ({"flie": "a"}, ["Reads takes no argument 'flie'", "did you mean 'file'?"]),
        ({"file": "a", "qqq": 1}, ["Reads takes no argument 'qqq'", "known: "]),
    ],
)
def test_an_argument_that_the_constructor_does_not_take_is_told_by_the_nearest(put, kwargs, words):
    folder = put("reads", READS)
    cls = load_class("reads.Reads", RewardNode, folder)
    for call in (lambda: check_arguments(cls, kwargs), lambda: build(cls, kwargs, (), folder)):
        said = refused(call)
        for word in words:
            assert word in said


def test_an_argument_that_is_missing_is_told_with_all_that_it_takes(put):
    folder = put("needs", "class Needs(RewardNode):\n    def __init__(self, a, b=1): pass\n")
    said = refused(check_arguments, load_class("needs.Needs", RewardNode, folder), {"b": 2})
    assert "missing a required argument: 'a'" in said
    assert "it takes: a, b" in said


def test_a_constructor_with_open_arguments_takes_any_but_not_too_few(put):
    folder = put(
        "opened", "class Opened(RewardNode):\n    def __init__(self, a, **b): self.b = b\n"
    )
    cls = load_class("opened.Opened", RewardNode, folder)
    assert build(cls, {"a": 1, "x": 2}, (), folder).b == {"x": 2}
    assert "missing a required argument: 'a'" in refused(check_arguments, cls, {"x": 2})


# -- pickled files --------------------------------------------------------------------------------

PICKLED = """
import torch
from torch import nn

class Part(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(2, 2), nn.ReLU())

class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.part = Part()

class Loads(RewardNode):
    def __init__(self):
        self.model = torch.load("model.pt")
"""


@pytest.fixture
def pickled(put):
    """A node that loads a pickled module, whose parts are a class of its own and torch's."""
    folder = put("pickled", PICKLED)
    cls = load_class("pickled.Loads", RewardNode, folder)
    torch.save(sys.modules["pickled"].Whole(), folder / "model.pt")
    return cls, folder


def test_a_pickled_module_is_refused_until_its_class_is_allowed(pickled):
    cls, folder = pickled
    said = refused(build, cls, {}, (), folder)
    assert "loads a pickled file whose classes are not allowed" in said
    assert "safe_globals" in said
    assert "safetensors" in said


def test_allowing_the_class_allows_its_submodules_and_only_while_it_is_built(pickled):
    cls, folder = pickled
    node = build(cls, {}, ("pickled.Whole",), folder)
    assert isinstance(node.model, nn.Module)
    assert "not allowed" in refused(build, cls, {}, (), folder)


def test_another_class_allowed_does_not_allow_this_one(pickled):
    cls, folder = pickled
    said = refused(build, cls, {}, ("collections.OrderedDict",), folder)
    assert "not allowed" in said


def test_a_class_to_allow_that_is_not_there_is_told_by_the_nearest(pickled):
    cls, folder = pickled
    said = refused(build, cls, {}, ("pickled.Whoel",), folder)
    assert "did you mean 'Whole'?" in said
