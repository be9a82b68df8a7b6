"""Talking to a model's folder, as the closing summary of a run proposes."""

from __future__ import annotations

import json
import os
import pty
import select
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from pathlib import Path

import pytest

from verl_core.trainer.talk import Chat, _wrapped, how_trained


def talk(*arguments: str, said: str = "") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "verl_core.trainer.talk", *arguments]
    return subprocess.run(command, input=said.encode(), capture_output=True, check=False)


def test_each_line_gets_an_answer_and_the_same_one_again(tiny_model_dir: Path) -> None:
    done = talk(str(tiny_model_dir), "--max-new-tokens", "8", said="Is it heavy?\nIs it heavy?\n")
    assert done.returncode == 0, done.stderr
    half = len(done.stdout) // 2
    assert done.stdout[:half].strip()
    assert done.stdout[:half] == done.stdout[half:]


def test_the_prompts_of_a_data_file_can_be_asked(tiny_model_dir: Path, tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text(json.dumps({"prompt": "Is it heavy?"}) + "\n", encoding="utf-8")
    done = talk(str(tiny_model_dir), "--max-new-tokens", "8", "--prompts", str(data))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"> Is it heavy?\n")


def test_five_prompts_of_a_file_are_answered_or_as_many_as_are_asked_for(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    data = tmp_path / "prompts.jsonl"
    rows = [json.dumps({"question": f"Number {n}?"}) + "\n" for n in range(7)]
    data.write_text("".join(rows), encoding="utf-8")
    words = (str(tiny_model_dir), "--max-new-tokens", "1", "--prompts", str(data))
    for limit, count in (((), 5), (("--limit", "2"), 2), (("--limit", "0"), 7)):
        done = talk(*words, "--prompt-key", "question", *limit)
        assert done.returncode == 0, done.stderr
        assert done.stdout.count(b"> Number") == count


def test_help_teaches_by_examples_and_without_torch() -> None:
    program = (
        "import sys\nfrom verl_core.trainer.talk import main\n"
        "try: main(['--help'])\nfinally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    assert b"model --prompts data/heldout.jsonl" in done.stdout
    assert b"--limit N" in done.stdout


def test_a_file_of_prompts_that_is_not_there_is_told(tiny_model_dir: Path, tmp_path: Path) -> None:
    done = talk(str(tiny_model_dir), "--prompts", str(tmp_path / "nothing.jsonl"))
    assert done.returncode == 2
    assert b"nothing.jsonl: no such file" in done.stderr


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        (
            [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}],
            "It was trained on prompts of system + user messages; a line here is a bare question",
        ),
        ("Hello", "A line is one question, as in training."),
    ],
)
def test_who_asks_freely_is_told_how_the_model_was_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prompt: object, said: str
) -> None:
    (tmp_path / "heldout.jsonl").write_text(json.dumps({"prompt": prompt}) + "\n", "utf-8")
    run = tmp_path / "runs" / "shop"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text(f"data: {{eval: {tmp_path}/heldout.jsonl}}\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    told = how_trained(Path("runs/shop/model"))
    assert told.startswith(said)
    assert told.endswith("--prompts heldout.jsonl")
    assert "\n" not in told
    assert "--prompts FILE.jsonl" in how_trained(tmp_path / "elsewhere" / "model")


def test_a_terminal_gets_that_line_and_a_pipe_does_not(tiny_model_dir: Path) -> None:
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "verl_core.trainer.talk", str(tiny_model_dir)]
    with subprocess.Popen(command, stdin=slave, stdout=subprocess.PIPE) as process:
        os.close(slave)
        os.write(master, b"\x04")  # Ctrl-D
        said = process.stdout.read()  # type: ignore[union-attr]
    os.close(master)
    assert process.returncode == 0
    assert said.startswith(b"A line is one bare question.")
    assert talk(str(tiny_model_dir)).stdout == b""


def on_terminal(columns: int, *arguments: str, until: bytes = b"", then: bytes = b"") -> bytes:
    """What `talk` shows on a terminal; `then` is typed once it has shown `until`."""
    pid, master = pty.fork()
    if pid == 0:
        command = [sys.executable, "-m", "verl_core.trainer.talk", *arguments]
        env = {key: value for key, value in os.environ.items() if key != "COLUMNS"}
        os.execve(sys.executable, command, {**env, "TERM": "xterm"})
    ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    output = b""
    while select.select([master], [], [], 60)[0]:
        try:
            chunk = os.read(master, 65536)
        except OSError:  # Linux's end
            break
        if not chunk:
            break
        output += chunk
        if then and until in output:
            os.write(master, then)
            then = b""
    os.close(master)
    os.waitpid(pid, 0)
    return output


def test_a_terminal_breaks_lines_at_words_and_marks_each_line_of_a_prompt(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    data = tmp_path / "prompts.jsonl"
    prompt = "Product: kettle.\n\nCustomer: shall I add another one to the basket, or is it heavy?"
    data.write_text(json.dumps({"prompt": prompt}) + "\n", encoding="utf-8")
    words = (str(tiny_model_dir), "--max-new-tokens", "1", "--prompts", str(data))
    lines = on_terminal(40, *words).decode(errors="replace").splitlines()
    assert lines[:5] == [
        "> Product: kettle.",
        ">",
        "> Customer: shall I add another one to",
        "> the basket, or is it heavy?",
        lines[4],
    ]
    assert not lines[4].startswith(">")
    piped = talk(*words).stdout.decode(errors="replace").splitlines()
    assert piped[:3] == [f"> {line}".rstrip() for line in prompt.split("\n")]  # not wrapped


def test_answers_too_are_broken_at_words_by_the_columns_that_characters_take() -> None:
    assert _wrapped("Thank you! Shall I add one?", 14) == ["Thank you!", "Shall I add", "one?"]
    assert _wrapped("谢谢您的询问", 8) == ["谢谢您的", "询问"]
    assert _wrapped("", 8) == [""]


@pytest.mark.parametrize("key", [b"\x03", b"\x04"])
def test_ctrl_c_and_ctrl_d_leave_the_shell_a_line_of_its_own(
    tiny_model_dir: Path, key: bytes
) -> None:
    shown = on_terminal(80, str(tiny_model_dir), until=b"\n> ", then=key)
    assert shown.splitlines()[-1].startswith(b"> ")
    assert shown.endswith(b"\n")


def test_a_system_line_can_be_given_and_is_asked_under(tiny_model_dir: Path) -> None:
    words = (str(tiny_model_dir), "--max-new-tokens", "8")
    under = talk(*words, "--system", "Be kind.", said="Is it heavy?\n")
    assert under.returncode == 0, under.stderr
    chat = Chat(str(tiny_model_dir), max_new_tokens=8, temperature=0.0)
    messages = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "Is it heavy?"},
    ]
    answer = chat.answer(messages)
    assert answer != chat.answer("Is it heavy?")
    assert under.stdout.decode() == answer + "\n\n"


def test_prompts_of_a_file_have_system_lines_of_their_own(tmp_path: Path) -> None:
    done = talk("model", "--system", "Be kind.", "--prompts", str(tmp_path / "some.jsonl"))
    assert done.returncode == 2
    assert b"--system goes with lines that are typed" in done.stderr


def test_a_folder_without_a_model_is_named(tmp_path: Path) -> None:
    done = talk(str(tmp_path))
    assert done.returncode == 2
    assert str(tmp_path).encode() in done.stderr
    assert b"Traceback" not in done.stderr
