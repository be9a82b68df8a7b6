"""What a provider changes of the process while it is made and set up is put back, and told."""

from __future__ import annotations

import locale
import logging
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from verl_core.rewards.process_state import kept
from verl_reward_sdk import RewardProvider

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """So that a failure here is none of other tests."""
    folder, words = os.getcwd(), locale.setlocale(locale.LC_ALL)
    with np.errstate():
        yield
    os.chdir(folder)
    locale.setlocale(locale.LC_ALL, words)
    torch.set_default_dtype(torch.float32)
    torch.set_default_device(None)
    torch.set_grad_enabled(True)


def state() -> tuple[Any, ...]:
    return (
        os.getcwd(),
        np.geterr(),
        locale.setlocale(locale.LC_ALL),
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
    )


CHANGES: dict[str, Callable[[], Any]] = {
    "the working folder": lambda: os.chdir("/"),
    "numpy's error handling": lambda: np.seterr(all="raise"),
    "the locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "torch's default dtype": lambda: torch.set_default_dtype(torch.float64),
    "torch's default device": lambda: torch.set_default_device("meta"),
    "torch's recording of gradients": lambda: torch.set_grad_enabled(False),
}


@pytest.mark.parametrize("execution", ["inline", "thread"])
@pytest.mark.parametrize("when", ["__init__", "setup"])
def test_what_a_provider_changes_is_put_back_and_told_with_its_name(
    kit: Any,
    engine: Callable[..., Any],
    caplog: pytest.LogCaptureFixture,
    execution: str,
    when: str,
) -> None:
    here = when == "__init__" or execution == "inline"

    class Careless(RewardProvider):
        """Changes everything."""

        def __init__(self) -> None:
            if when == "__init__":
                self.change()

        def change(self) -> None:
            for change in CHANGES.values():
                change()

        def setup(self) -> None:
            if when == "setup":
                self.change()

        def score(self, batch: Any) -> list[float]:
            return [1.0]

    locale.setlocale(locale.LC_ALL, "C")
    before = state()
    built = engine({"type": "tone", "provider": Careless, "execution": execution})
    built.setup()
    assert state() == before
    told = [record.getMessage() for record in caplog.records]
    assert all("mount 'tone' (tests.Provider) changed" in text for text in told)
    of_process = {"the working folder", "the locale", "torch's default dtype"}
    changed = {what for what in CHANGES if any(f"changed {what} of" in text for text in told)}
    # Elsewhere numpy's, the device's and the gradients' belong to the thread that changed them.
    assert changed >= (set(CHANGES) if here else of_process)


def test_who_changes_nothing_is_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    with kept("mount 'm'"):
        pass
    assert caplog.records == []


def test_it_is_put_back_after_an_error_too(caplog: pytest.LogCaptureFixture) -> None:
    before = os.getcwd()

    @kept("mount 'm'")
    def fail() -> None:
        os.chdir("/")
        raise OSError("no weights")

    with pytest.raises(OSError, match="no weights"):
        fail()
    assert os.getcwd() == before
    assert "mount 'm' changed the working folder" in caplog.text


def test_a_folder_that_is_gone_cannot_be_put_back_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    os.chdir(gone)
    with caplog.at_level(logging.WARNING), kept("mount 'm'"):
        os.chdir("/")
        gone.rmdir()
    assert "the working folder could not be put back" in caplog.text


def test_torch_is_not_loaded_for_it_but_watched_once_a_plugin_loads_it() -> None:
    script = """
        import logging, sys
        from verl_core.rewards.process_state import kept
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        with kept("mount 'a'"):
            pass
        print("torch" in sys.modules)
        with kept("mount 'b'"):
            import torch
            torch.set_default_dtype(torch.float64)
        print(torch.get_default_dtype())
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines() == [
        "False",
        "mount 'b' changed torch's default dtype of the whole process from torch.float32 to"
        " torch.float64: put back",
        "torch.float32",
    ]
