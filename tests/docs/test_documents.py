"""Every command and block of the documents does what it says; every link leads somewhere.

A line such as `` `tone.yaml`: `` above a block makes it a file, which the blocks after it find. A
command or a language that no test knows fails: nothing is passed over.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from verl_core.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parents[2]
PLUGINS = sorted(path.parent.name for path in ROOT.glob("plugins/*/pyproject.toml"))
ENGLISH, CHINESE = ROOT / "README.md", ROOT / "README.zh.md"
#: Documents whose blocks are run here. The Chinese README has the blocks of the English one, which
#: a test below makes sure of; the SDK's has a test of its own, tests/plugins/test_sdk_readme.py.
RUN = [
    ENGLISH,
    *(ROOT / page for page in ("CONTRIBUTING.md", "SECURITY.md")),
    *(ROOT / "plugins" / name / "README.md" for name in PLUGINS),
    *sorted(ROOT.glob("examples/*/README.md")),
    *(
        ROOT / "docs" / page
        for page in ("fusion.md", "mounts.md", "peers.md", "reload.md", "serve.md", "weights.md")
    ),
]
ALL = [
    *RUN,
    CHINESE,
    *(ROOT / folder / "README.md" for folder in ("docs", "sdk", "benchmarks")),
    ROOT / "CHANGELOG.md",
    # Those with blocks have tests of their own: test_operations.py.
    *(ROOT / "docs" / page for page in ("config.md", "operations.md", "page.md")),
]

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^(#+) (.+)$", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    """A document without its fenced blocks."""
    return _FENCED.sub("", path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("document", RUN, ids=name_of)
def test_every_block_does_what_it_says(document, checkout):
    checkout.run(document)


def test_a_command_that_no_test_knows_is_not_passed_over(checkout, blocks_of):
    bash = next(block for block in blocks_of(ENGLISH) if block.language == "bash")
    for text in ("rm -rf runs\n", "verl-reward list | head\n", "make no-such-target\n"):
        with pytest.raises((pytest.fail.Exception, AssertionError)):
            checkout.block_bash(type(bash)(bash.place, "bash", text, "", None), None)


def test_the_mistake_in_the_readme_is_told_as_the_readme_says(checkout, blocks_of, capsys):
    blocks = blocks_of(ENGLISH)
    config = next(block for block in blocks if (block.file or "").endswith("my-run.yaml"))
    told = next(block.text for block in blocks if block.text.startswith("error: "))
    for block in blocks:
        if block.file is not None:
            (checkout.folder / block.file).write_text(block.text, encoding="utf-8")
    path = checkout.folder / str(config.file)
    path.write_text(config.text.replace("plugin: rouge", "plugin: roug", 1), encoding="utf-8")
    from verl_core.cli.main import main

    assert main(["train", str(path), "--check"]) == 2
    assert capsys.readouterr().err == told


def test_both_readmes_have_the_same_sections_and_blocks(blocks_of):
    def shape(path: Path) -> list[int]:
        return [len(marks) for marks, _ in _HEADING.findall(prose(path))]

    def code(path: Path) -> list[tuple[str, str | None, str]]:
        return [
            (block.language, block.file, re.sub(r" *# .*$", "", block.text, flags=re.MULTILINE))
            for block in blocks_of(path)
        ]

    assert shape(ENGLISH) == shape(CHINESE)
    assert code(ENGLISH) == code(CHINESE)


@pytest.mark.parametrize("page", [ENGLISH, CHINESE], ids=name_of)
def test_the_readme_names_every_command_and_every_distribution(page):
    text = page.read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([a-z]+)[ `]", text, re.MULTILINE)
    assert set(COMMANDS) <= set(rows)
    for name in ("sdk", *(f"plugins/{plugin}" for plugin in PLUGINS)):
        assert f"]({name}/README.md)" in text


@pytest.mark.parametrize("document", ALL, ids=name_of)
def test_links_lead_somewhere(document):
    text = re.sub(r"`[^`\n]*`", "", prose(document))
    for target in _LINK.findall(text):
        if re.match(r"[a-z]+:", target):
            assert target.startswith("https://"), target
            continue
        path, _, anchor = target.partition("#")
        place = (document.parent / path).resolve() if path else document
        assert place.exists(), f"{name_of(document)} links to {target}, which is not there"
        assert place.is_relative_to(ROOT), f"{target} leads out of the repository"
        if anchor:
            slugs = [
                re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
                for _, heading in _HEADING.findall(prose(place))
            ]
            assert anchor in slugs, f"{name_of(document)} links to {target}: no such heading"
