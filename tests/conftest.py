"""Fixtures that tests of several packages share."""

from __future__ import annotations

import importlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml


@pytest.fixture(autouse=True, scope="session")
def _no_signal_is_ignored() -> None:
    """A shell that starts the tests in its background has SIGINT ignored, nohup SIGHUP, and every
    process that a test starts would inherit that and never hear the signal."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    for number, handler in usual.items():
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many tests a missing browser has cost."""
    skipped = terminalreporter.stats.get("skipped", ())
    count = sum("no Chromium" in str(report.longrepr) for report in skipped)
    if count:
        terminalreporter.write_line(f"{count} tests of the page were skipped: there is no Chromium")


class PluginSite:
    """A folder of `sys.path` with distributions that a test makes up: real files, no install."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.folder = root / "site"
        self.home = root / "home"
        for folder in (self.folder, self.home):
            folder.mkdir(parents=True)

    def add(
        self,
        dist: str,
        version: str = "1.0",
        *,
        rewards: Mapping[str, str] | None = None,
        extensions: Mapping[str, str] | None = None,
        requires: Sequence[str] = (),
        files: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Path:
        """Write a distribution; gives its dist-info folder.

        Args:
            rewards: entry points of the group `verl_reward`, name -> module.
            extensions: those of the group `verl_reward_extensions`.
            requires: its requirements.
            files: path under the site folder -> content.
            folder: another folder than this site's.
        """
        site = folder or self.folder
        info = site / f"{dist.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        metadata = [f"Metadata-Version: 2.1\nName: {dist}\nVersion: {version}\n"]
        metadata += [f"Requires-Dist: {requirement}\n" for requirement in requires]
        (info / "METADATA").write_text("".join(metadata), encoding="utf-8")
        groups = {"verl_reward": rewards, "verl_reward_extensions": extensions}
        lines = []
        for group, entries in groups.items():
            if entries:
                lines += [f"[{group}]", *(f"{name} = {value}" for name, value in entries.items())]
        (info / "entry_points.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        for path, content in (files or {}).items():
            file = site / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(content, encoding="utf-8")
        importlib.invalidate_caches()
        return info

    def run(
        self,
        *command: str,
        env: Mapping[str, str] | None = None,
        path: Sequence[Path] = (),
        options: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run ``verl-reward`` in a process of its own, with this site and a home folder of its own.

        Args:
            command: the command line.
            env: more environment variables.
            path: more folders of `sys.path`, after the site's.
            options: options of the interpreter.
        """
        environment = {key: v for key, v in os.environ.items() if not key.startswith("VERL_REWARD")}
        environment.pop("COLUMNS", None)
        environment |= {
            "PYTHONPATH": os.pathsep.join(map(str, (self.folder, *path))),
            "HOME": str(self.home),
            "XDG_CACHE_HOME": str(self.home / ".cache"),
            **(env or {}),
        }
        return subprocess.run(
            [sys.executable, *options, "-m", "verl_core.cli.main", *command],
            capture_output=True,
            text=True,
            env=environment,
            cwd=self.root,
            timeout=60,
            check=False,
        )


@pytest.fixture
def plugin_site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PluginSite]:
    """A `PluginSite` that this process imports from too; its modules are gone after the test."""
    site = PluginSite(tmp_path / "plugin-site")
    for variable in [name for name in os.environ if name.startswith("VERL_REWARD")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("XDG_CACHE_HOME", str(site.home / ".cache"))
    monkeypatch.syspath_prepend(str(site.folder))
    before = set(sys.modules)
    yield site
    root = str(tmp_path)
    for name in set(sys.modules) - before:
        spec = getattr(sys.modules[name], "__spec__", None)
        if spec is not None and str(spec.origin).startswith(root):
            del sys.modules[name]


@pytest.fixture
def fresh_imports(tmp_path: Path) -> Iterator[None]:
    """For tests whose configs name modules in `tmp_path`: after them `sys.path` and `sys.modules`
    are as before."""
    path, modules = list(sys.path), dict(sys.modules)
    yield
    sys.path[:] = path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
            if name in modules:
                sys.modules[name] = modules[name]
    importlib.invalidate_caches()


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny random Llama (2 layers, grouped heads, context 512) in float32, a
    byte-level tokenizer (ids 0-255 are bytes) and a chat template. The same bits each time."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    from verl_core.trainer.quiet import quiet_transformers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={char: i for i, char in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    folder = tmp_path_factory.mktemp("tiny-model")
    with quiet_transformers():
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=raw,
            bos_token="<|im_start|>",
            eos_token="<|im_end|>",
            pad_token="<|im_end|>",
            chat_template=CHAT_TEMPLATE,
        )
        tokenizer.save_pretrained(folder)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=512,
            initializer_range=0.3,  # far from uniform, so that wrong positions or masks show
            tie_word_embeddings=True,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
        torch.manual_seed(0)
        LlamaForCausalLM(config).save_pretrained(folder)
    return folder


QUESTIONS = ["What does it cost?", "Is it heavy?", "Is it any good?", "When will it come?", "Why?"]

RULES = r"""score: {base: 0.0, min: 0.0, max: 1.0}
rules:
  - {name: vowels, regex: '[aeiou]', points: 0.4, reason: has a vowel}
  - {name: spaced, regex: '\s', points: 0.3, reason: has a space}
  - {name: short, length: {unit: chars, max: 12}, points: 0.3, reason: short}
"""


class TinyRun:
    """A folder with a run's files; `config` may be changed before it is written."""

    def __init__(self, folder: Path, model: Path) -> None:
        self.folder = folder
        rows = [
            {"id": f"q{i}", "prompt": f"{QUESTIONS[i % 5]} ({i})", "ground_truth": "It is fine."}
            for i in range(12)
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "prompts.jsonl").write_text(lines, encoding="utf-8")
        (folder / "heldout.jsonl").write_text("".join(lines.splitlines(True)[:6]), "utf-8")
        (folder / "rules.yaml").write_text(RULES, encoding="utf-8")
        (folder / "words.txt").write_text("zq\n", encoding="utf-8")
        self.config: dict[str, Any] = {
            "name": "tiny",
            "model": {"path": str(model)},
            "data": {"train": "prompts.jsonl", "eval": "heldout.jsonl"},
            "reward": [
                {"type": "style", "plugin": "rules", "init_kwargs": {"rules": "rules.yaml"}},
                {"type": "overlap", "plugin": "chrf", "weight": 0.5},
                {
                    "type": "guard",
                    "plugin": "safety",
                    "role": "gate",
                    "penalty": -1.0,
                    "init_kwargs": {"words": "words.txt"},
                },
            ],
            "rollout": {"n": 4, "prompts_per_step": 2, "max_new_tokens": 8, "dtype": "float32"},
            "optim": {"lr": 1e-3, "autocast": "none"},
            "trainer": {"steps": 3, "micro_batch_rows": 4, "checkpoint_every": 1, "threads": 1},
            "server": {"enabled": False},
            "tracking": {"tensorboard": False},
            "output": str(folder / "runs"),
        }

    def write(self) -> Path:
        path = self.folder / "run.yaml"
        path.write_text(yaml.safe_dump(self.config, sort_keys=False), encoding="utf-8")
        return path

    def train(self, *overrides: str, resume: str | None = None) -> Path:
        """Train in this process; gives the run's folder."""
        from verl_core.config import load_run_config
        from verl_core.trainer.setup import Session
        from verl_core.trainer.train import train

        cfg = load_run_config(self.write(), list(overrides))
        with Session(cfg, resume=resume, plain=True) as run:
            train(run)
            return run.folder.path

    def command(self, *arguments: str) -> list[str]:
        """``verl-reward train run.yaml …`` as a process of its own would get it."""
        words = [sys.executable, "-m", "verl_core.cli.main", "train", str(self.write())]
        return [*words, "--plain", *arguments]

    def run(self, *arguments: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments),
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            cwd=self.folder,
            env=self.environment(),
        )

    def environment(self) -> dict[str, str]:
        kept = {key: v for key, v in os.environ.items() if not key.startswith("VERL_REWARD")}
        return {**kept, "OMP_NUM_THREADS": "1", "XDG_CACHE_HOME": str(self.folder / "cache")}


@pytest.fixture
def tiny_run(tmp_path: Path, tiny_model_dir: Path) -> TinyRun:
    """A `TinyRun` in a folder of its own."""
    folder = tmp_path / "project"
    folder.mkdir()
    return TinyRun(folder, tiny_model_dir)


def records(path: Path) -> list[dict[str, Any]]:
    """The objects of a JSON-lines file."""
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.fixture
def read_jsonl() -> Callable[[Path], list[dict[str, Any]]]:
    return records


@pytest.fixture
def our_children() -> Callable[[], list[psutil.Process]]:
    """The processes below this one that were not there when the test began, children's own too."""
    before = set(psutil.Process().children(recursive=True))
    return lambda: [
        child for child in psutil.Process().children(recursive=True) if child not in before
    ]
