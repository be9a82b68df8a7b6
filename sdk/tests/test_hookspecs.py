"""Tests of the hook specifications themselves: each is documented, and each has a test."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

from verl_reward_sdk import hookspecs

HERE = Path(__file__).parent
README = (HERE.parent / "README.md").read_text(encoding="utf-8")
HOOKS = {
    name: function
    for name, function in vars(hookspecs).items()
    if hasattr(function, "verl_reward_spec")
}


def parameters(name):
    return list(inspect.signature(HOOKS[name]).parameters)


def test_every_hook_of_the_architecture_is_specified():
    assert list(HOOKS) == [
        "verl_reward_providers",
        "verl_reward_fusion_policies",
        "verl_reward_nodes",
        "verl_reward_commands",
        "verl_reward_routes",
        "verl_reward_batch_scored",
        "verl_reward_weights_changed",
        "verl_reward_generation_changed",
    ]


def test_every_public_function_of_the_module_is_a_hook():
    functions = [
        name
        for name, value in vars(hookspecs).items()
        if inspect.isfunction(value) and not name.startswith("_")
    ]
    assert functions == list(HOOKS)


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_says_when_it_is_called(name):
    doc = inspect.getdoc(HOOKS[name])
    assert re.search(r"^Called ", doc, re.MULTILINE), f"{name} does not say when it is called"
    assert len(doc.splitlines()) >= 3


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_is_typed(name):
    signature = inspect.signature(HOOKS[name])
    assert signature.return_annotation is not inspect.Signature.empty
    for parameter in signature.parameters.values():
        assert parameter.annotation is not inspect.Parameter.empty


@pytest.mark.parametrize("name", HOOKS)
def test_a_hooks_signature_stands_in_the_readme(name):
    assert f"| `{name}({', '.join(parameters(name))})` |" in README


@pytest.mark.parametrize("name", HOOKS)
def test_a_hook_has_a_test_that_calls_it(name):
    tree = ast.parse((HERE / "test_hooks.py").read_text(encoding="utf-8"))
    tests = [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name.startswith(f"test_{name}_")
    ]
    assert tests, f"no test of {name} in test_hooks.py"
    for test in tests:
        calls = [
            node.func.attr
            for node in ast.walk(test)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        ]
        assert name in calls
        assert any(isinstance(node, ast.Assert) for node in ast.walk(test))


def test_the_fixtures_of_the_installed_sdk_import_no_numpy_and_no_pydantic():
    code = (
        "import sys, verl_reward_sdk.testing.fixtures; "
        "print(sorted({'numpy', 'pydantic', 'torch'} & set(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
