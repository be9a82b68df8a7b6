"""What the documents say to other trainers, whose environments are not this one.

Their commands are not run here: files, modules and options must be there, names of ours must exist
and take what they are given, and YAML in verl's form must be what our manager reads. What runs in
those environments is run there, by `make test-peers`.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from verl_core.integrations.verl_settings import SETTINGS, Settings

ENVIRONMENT = re.compile(r"(\.venv-\w+)/bin/([\w-]+)")
#: Their modules; a block that imports one is not run here.
PEERS = frozenset({"trl", "openrlhf", "verl", "datasets"})
#: Commands that tests/peers has of the real trainer, option by option.
COMPOSED = ("openrlhf.cli.train_ppo_ray",)


class Elsewhere:
    """Checks what belongs to other environments.

    Args:
        root: the checkout.
        folder: the copy of it in which documents are run.
    """

    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder = root, folder

    # -- commands ----------------------------------------------------------------------------

    def environment(self, name: str) -> None:
        """A virtual environment that a document makes is one that git ignores and `make
        test-peers` has too."""
        ignored = (self.root / ".gitignore").read_text("utf-8").splitlines()
        assert ".venv-*/" in ignored
        makefile = (self.root / "Makefile").read_text("utf-8")
        assert f"$(VENV){name.removeprefix('.venv')}/bin/python" in makefile, name

    def pinned(self, file: str, word: str) -> bool:
        """Whether a file of constraints pins a distribution, as ``name`` or ``name==1.0``."""
        lines = (self.root / file).read_text("utf-8").splitlines()
        pins = [line.partition(";")[0] for line in lines]
        return word in pins or word in [pin.partition("==")[0] for pin in pins]

    def script(self, words: Sequence[str]) -> None:
        """A script with its options, or a module with ``-m``."""
        if words[0] == "-m":
            assert words[1] in COMPOSED, f"no test in tests/peers knows {words[1]}"
            self._paths(words[2:])
            return
        path = self.folder / words[0]
        given = {word.partition("=")[0] for word in words[1:] if word.startswith("--")}
        assert given <= declared(path), f"{words[0]} has no {sorted(given - declared(path))}"

    def shell_script(self, words: Sequence[str]) -> None:
        """A script of ours with settings of verl's behind it."""
        path = self.folder / words[0]
        assert path.stat().st_mode & 0o100, f"{words[0]} cannot be executed"
        for word in words[1:]:
            key, equals, _ = word.lstrip("+").partition("=")
            assert equals, word
            self._setting(key)

    def exported(self, words: Sequence[str], page: Path) -> None:
        """A variable that a script beside the page reads."""
        name = words[0].partition("=")[0]
        scripts = [path.read_text("utf-8") for path in page.parent.glob("*.py")]
        assert any(f'os.environ.get("{name}")' in text for text in scripts), name

    def _setting(self, key: str) -> None:
        """A setting of ours in verl's config, such as ``reward.reward_kwargs.verl_reward.x``."""
        parts = tuple(key.split("."))
        assert parts[:-1] == SETTINGS, f"{key} is no setting of ours"
        assert parts[-1] in Settings.model_fields, key

    def _paths(self, words: Sequence[str]) -> None:
        """What lies in the checkout, by an absolute path, is there."""
        for word in words:
            if word.startswith(f"{self.folder}/"):
                assert Path(word).exists(), word

    # -- blocks ------------------------------------------------------------------------------

    @staticmethod
    def is_python(text: str) -> bool:
        """Whether Python code imports what is not installed here."""
        return any(name.partition(".")[0] in PEERS for name, _ in imports(ast.parse(text)))

    def python(self, text: str) -> None:
        """Code of a whole program: it compiles, and uses of ours what there is."""
        tree = ast.parse(text)
        compile(tree, "block", "exec")
        ours: dict[str, Any] = {}
        for module, names in imports(tree):
            if module.partition(".")[0] == "verl_core":
                ours |= {name: getattr(importlib.import_module(module), name) for name in names}
        assert ours, "it uses nothing of ours"
        for call in ast.walk(tree):
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name):
                function = ours.get(call.func.id)
                if function is not None:
                    keywords = {word.arg: None for word in call.keywords if word.arg is not None}
                    inspect.signature(function).bind(*call.args, **keywords)
        self._files(tree)

    def _files(self, tree: ast.AST) -> None:
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                text = node.value
                if text.startswith("examples/"):
                    assert (self.folder / text).exists(), text

    @staticmethod
    def is_verl(value: Any) -> bool:
        """Whether YAML is in the form of verl's config."""
        reward = value.get("reward") if isinstance(value, dict) else None
        return isinstance(reward, dict) and "reward_manager" in reward

    def verl(self, value: Mapping[str, Any]) -> None:
        """verl's config: it names our manager where verl looks for one, and settings it has."""
        assert list(value) == ["reward"]
        reward = dict(value["reward"])
        manager, kwargs = reward.pop("reward_manager"), reward.pop("reward_kwargs")
        assert not reward
        assert manager["source"] == "importlib"
        assert list(manager) == ["source", "module", "name"]
        scheme, _, module = manager["module"]["path"].partition("://")
        assert scheme == "pkg"
        spec = find_spec(module)
        assert spec is not None
        assert spec.origin is not None
        tree = ast.parse(Path(spec.origin).read_text("utf-8"))
        classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
        assert manager["name"] in classes, json.dumps(classes)
        assert list(kwargs) == [SETTINGS[-1]]
        Settings.model_validate(kwargs[SETTINGS[-1]])


def declared(script: Path) -> set[str]:
    """The options that a script gives to ``add_argument``."""
    return {
        argument.value
        for call in ast.walk(ast.parse(script.read_text("utf-8")))
        if isinstance(call, ast.Call) and getattr(call.func, "attr", "") == "add_argument"
        for argument in call.args
        if isinstance(argument, ast.Constant)
    }


def imports(tree: ast.AST) -> Iterator[tuple[str, list[str]]]:
    """``(module, names)`` of every import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            yield node.module or "", [alias.name for alias in node.names]
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, []
