"""The terminal display, in a real pseudo-terminal and in a pipe."""

from __future__ import annotations

import io
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
from fcntl import ioctl
from typing import Any

import pytest
from rich.console import Console

from verl_core.trainer.display import LiveDisplay, Phase, PlainDisplay, make_display
from verl_core.trainer.display.panel import clock, draw, sparkline
from verl_core.trainer.display.progress import Progress

RUN = """
from verl_core.trainer.display import make_display
with make_display("customer-service", 3, url="http://127.0.0.1:8000") as display:
    with display.phase("Loading the model"):
        pass
    with display.phase("Held-out evaluation, before", total=12, unit="prompts") as phase:
        for _ in range(12):
            phase.advance()
        phase.result = "fused 0.264"
    for step in range(1, 4):
        display.stage("rollout")
        display.step(step, {
            "reward/accuracy/mean": 0.1 * step, "reward/tone/mean": 0.9,
            "reward/guard/rate": 0.08 / step, "reward/fused/mean": 0.3 * step,
            "weights/accuracy": 1.0, "weights/tone": 2.0 if step < 3 else 0.5,
            "weights/revision": 1 if step < 3 else 2,
            "perf/rollout_tokens_per_s": 412.3, "perf/update_tokens_per_s": 301.2,
            "actor/loss": -0.0213, "actor/kl": 0.00123, "response/length_mean": 31.2,
            "timing_s/step": 17.2,
        })
"""


def figures(step: int, **more: Any) -> dict[str, Any]:
    return {
        "reward/accuracy/mean": 0.1 * step,
        "reward/guard/rate": 0.2 / step,
        "reward/fused/mean": 0.3 * step,
        "weights/accuracy": 1.0,
        "weights/revision": 1,
        "timing_s/step": 10.0,
        **more,
    }


def run_in_terminal(columns: int, **env: str) -> str:
    """What the run prints on a terminal of `columns` columns."""
    master, slave = pty.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    inherited = {k: v for k, v in os.environ.items() if k not in {"CI", "NO_COLOR", "COLUMNS"}}
    process = subprocess.Popen(
        [sys.executable, "-c", RUN],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env={**inherited, "TERM": "xterm-256color", **env},
    )
    os.close(slave)
    output = b""
    while True:
        ready, _, _ = select.select([master], [], [], 60)
        assert ready, "the display printed nothing for a minute"
        try:
            chunk = os.read(master, 65536)
        except OSError:  # the other side is closed: Linux reports an error, not an end
            break
        if not chunk:
            break
        output += chunk
    os.close(master)
    assert process.wait(timeout=30) == 0
    return output.decode()


def visible(output: str) -> list[str]:
    """The lines that were drawn, one over another, without control sequences."""
    return re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output))


@pytest.mark.parametrize("columns", [60, 80, 100, 120])
def test_the_panel_fits_its_terminal_and_shows_the_step(columns: int) -> None:
    output = run_in_terminal(columns)
    lines = visible(output)
    assert max(len(line) for line in lines) <= columns
    last = "\n".join(lines[-14:])
    assert "step 3/3" in last
    assert re.search(r"accuracy +0\.300 +▲ \+0\.200", last)
    assert re.search(r"fused +0\.900", last)
    assert re.search(r"guard +2\.7 %", last)
    assert "412 tok/s" in last
    assert re.search(r"tone .* 2 → 0\.5", last)
    assert any("✓ Held-out evaluation, before" in line and "fused 0.264" in line for line in lines)
    assert any("step 3: weights revision 1 -> 2, tone 2 -> 0.5" in line for line in lines)
    # The new revision stands out in black on yellow, and the cursor is given back.
    assert re.search(r"\x1b\[1;30;43mr2", output)
    assert output.rindex("\x1b[?25h") > output.rindex("\x1b[?25l")


@pytest.mark.parametrize("env", [{"CI": "1"}, {"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_a_terminal_that_wants_no_animation_gets_plain_lines(env: dict[str, str]) -> None:
    output = run_in_terminal(80, **env)
    assert "\x1b" not in output
    assert "step 2/3  fused 0.600 (+0.300)  accuracy 0.200  tone 0.900  guard 4.0 %" in output


def test_a_pipe_gets_one_line_a_step_and_a_phase_by_quarters() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RUN], capture_output=True, text=True, check=True, encoding="utf-8"
    )
    lines = done.stdout.splitlines()
    assert lines[0] == "Loading the model ..."
    title = "Held-out evaluation, before"
    assert lines[2:6] == [f"{title} ...", *(f"{title}: {n}/12 prompts" for n in (3, 6, 9))]
    assert re.fullmatch(rf"{title}: done in \d+\.\d s: fused 0\.264", lines[6])
    assert lines[7] == "step 1/3: rollout ..."  # the first step only
    assert sum("rollout ..." in line for line in lines) == 1
    steps = [line for line in lines if re.match(r"step \d/3  ", line)]
    assert len(steps) == 3
    assert steps[0].endswith("17.2 s  left 0:34")
    assert "weights r2" in steps[2]
    assert lines[-2] == "step 3: weights revision 1 -> 2, tone 2 -> 0.5"


def test_large_parts_of_a_phase_are_told_once_each_and_its_end_by_the_last_line_alone() -> None:
    target = io.StringIO()
    display = make_display("run", 1, console=Console(file=target, width=80), env={})
    with display.phase("evaluating", total=10, unit="prompts") as phase:
        for part in (6, 1, 3):
            phase.advance(part)
    assert [line.split(":")[-1].strip() for line in target.getvalue().splitlines()[1:-1]] == [
        "6/10 prompts"
    ]


def test_a_slow_step_says_to_which_stage_it_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    target = io.StringIO()
    display = make_display("run", 2, console=Console(file=target, width=80), env={})
    display.stage("rollout")
    display.step(1, figures(1))
    display.stage("rollout")
    monkeypatch.setattr("verl_core.trainer.display.display.QUIET_SECONDS", 0.0)
    display.stage("reward")
    display.stage("reward")  # scored again: no new stage
    said = [line for line in target.getvalue().splitlines() if line.endswith("...")]
    assert said == ["step 1/2: rollout ...", "step 2/2: reward ..."]


def test_plain_is_obeyed_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=80)
    assert isinstance(make_display("run", 2, console=console, env={}), LiveDisplay)
    assert isinstance(make_display("run", 2, console=console, env={}, plain=True), PlainDisplay)


def test_names_that_look_like_markup_are_printed_as_they_are() -> None:
    target = io.StringIO()
    with make_display("run", 1, console=Console(file=target, width=200), env={}) as display:
        display.say("[bold]not markup[/bold] [1/0]")
        display.step(1, {"reward/[red]x/mean": 0.5, "weights/[red]x": 1.0})
    assert "[bold]not markup[/bold] [1/0]" in target.getvalue()
    assert "[red]x 0.500" in target.getvalue()


def test_a_stream_without_unicode_gets_question_marks_not_a_crash() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    with make_display("run", 1, console=Console(file=stream, width=80), env={}) as display:
        display.say("准确 done")
    assert raw.getvalue() == b"?? done\n"


def test_a_phase_that_fails_says_so_and_lets_the_error_through() -> None:
    target = io.StringIO()
    display = make_display("run", 1, console=Console(file=target, width=80), env={})
    with pytest.raises(ValueError, match="broken"), display, display.phase("Loading"):
        raise ValueError("broken")
    assert "Loading: failed in 0.0 s" in target.getvalue()


def test_time_left_is_the_mean_of_the_last_steps_and_a_resumed_run_counts_from_its_step() -> None:
    progress = Progress("run", steps=14, step=10)
    assert progress.left is None
    progress.take(11, figures(1, **{"timing_s/step": 10.0}))
    progress.take(12, figures(2, **{"timing_s/step": 20.0}))
    assert progress.left == pytest.approx(30.0, abs=0.5)


def test_a_missing_figure_is_a_gap_and_not_a_zero() -> None:
    progress = Progress("run", steps=3)
    progress.take(1, {"reward/tone/mean": float("nan"), "weights/tone": 1.0})
    progress.take(2, {"weights/tone": 1.0})
    progress.take(3, {"reward/tone/mean": 0.5, "weights/tone": 1.0})
    assert progress.history["reward/tone/mean"] == [None, None, 0.5]
    assert sparkline(progress.history["reward/tone/mean"], 10) == "  ▄"


def test_rows_that_failed_or_were_masked_are_shown_beneath() -> None:
    progress = Progress("run", steps=2)
    progress.take(1, figures(1, **{"reward/accuracy/failed": 0.25, "reward/masked": 0.125}))
    console = Console(file=io.StringIO(), width=80)
    console.print(draw(progress, width=80))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "accuracy failed 25.0 %" in shown
    assert "rows masked 12.5 %" in shown


def test_a_change_is_the_figure_shown_less_the_mean_of_the_steps_that_its_title_names() -> None:
    progress = Progress("run", steps=9)
    means = [0.152, 0.2, 0.248, 0.9, 0.1, 0.3, 0.448]
    for step, mean in enumerate(means, start=1):
        progress.take(step, figures(step, **{"reward/accuracy/mean": mean}))
        if step == 1:
            assert progress.change("reward/accuracy/mean") is None
            assert "vs step" not in drawn(progress)
        if step == 3:
            assert "vs step 1 " in drawn(progress)
    shown = drawn(progress)
    assert "vs steps 1-3" in shown
    assert re.search(r"accuracy +0\.448 +▲ \+0\.248", shown)  # less (0.152 + 0.2 + 0.248) / 3
    assert re.search(r"guard +2\.9 % +▼ -9\.4 pp", shown)  # a share moves by percentage points


@pytest.mark.parametrize(("seconds", "shown"), [(5, "0:05"), (125, "2:05"), (3725.4, "1:02:05")])
def test_clock(seconds: float, shown: str) -> None:
    assert clock(seconds) == shown


def drawn(progress: Progress, width: int = 80) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(draw(progress, width=width))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_a_resumed_run_counts_trends_and_changes_from_its_start() -> None:
    target = io.StringIO()
    console = Console(file=target, width=200)
    with make_display("run", 4, start_step=2, console=console, env={}) as display:
        display.recall({"step": n, "time": "2026-01-01", **figures(n)} for n in (1, 2))
        assert display.progress.step == 2
        assert display.progress.left == pytest.approx(20.0, abs=0.5)
        display.step(3, figures(3))
    assert "step 3/4  fused 0.900 (+0.300)" in target.getvalue()
    assert display.progress.history["reward/accuracy/mean"] == pytest.approx([0.1, 0.2, 0.3])
    assert re.search(r"accuracy +0\.300 +▲ \+0\.200", drawn(display.progress))


def test_a_weight_is_shown_with_the_digits_that_it_has() -> None:
    progress = Progress("run", steps=3)
    progress.take(1, figures(1, **{"weights/accuracy": 1.985}))
    assert re.search(r"accuracy .* 1\.985 +│", drawn(progress))
    progress.take(2, figures(2, **{"weights/accuracy": 1.9852, "weights/revision": 2}))
    assert "1.985 → 1.9852" in drawn(progress, 100)


def test_the_panel_names_the_documents_and_the_time_that_has_elapsed() -> None:
    shown = drawn(Progress("run", steps=3, url="http://127.0.0.1:8000"))
    assert "weights and status: http://127.0.0.1:8000/docs" in shown
    assert "0:00 elapsed" in shown


def test_who_asks_a_run_to_stop_sees_it_in_the_panel_and_no_line_tears_it() -> None:
    target = io.StringIO()
    console = Console(file=target, force_terminal=True, width=80)
    display = make_display("run", 3, console=console, env={})
    display.stopping("stopping ...")
    assert target.getvalue() == ""
    # No step has begun, as where the evaluation before the first one is cut.
    assert "stopping (Ctrl-C once more stops at once)" in drawn(display.progress)
    display.stage("rollout")
    assert "stopping after this step (Ctrl-C once more stops at once)" in drawn(display.progress)
    display.progress.phase = Phase("evaluating")
    assert "stopping (Ctrl-C once more stops at once)" in drawn(display.progress)


def test_the_panel_that_stays_does_not_say_that_the_run_is_about_to_stop() -> None:
    target = io.StringIO()
    console = Console(file=target, force_terminal=True, width=80)
    with make_display("run", 3, console=console, env={}) as display:
        display.stage("rollout")
        display.stopping("stopping ...")
        display.step(1, figures(1))
    drawings = target.getvalue().split("╭")
    assert "stopping" in drawings[-2]
    assert "step 1/3" in drawings[-1]
    assert "stopping" not in drawings[-1]


def test_plain_lines_say_that_a_run_was_asked_to_stop() -> None:
    target = io.StringIO()
    make_display("run", 3, console=Console(file=target, width=80), env={}).stopping("stopping ...")
    assert target.getvalue() == "stopping ...\n"


@pytest.mark.parametrize(
    ("flat", "said"), [(4.0, "update none: answers to a prompt scored alike"), (0.0, "update none")]
)
def test_a_step_that_trained_on_nothing_says_so_and_names_no_speed(flat: float, said: str) -> None:
    target = io.StringIO()
    display = make_display("run", 3, console=Console(file=target, width=300), env={})
    more = {"actor/trained_tokens": 0.0, "reward/groups_flat": flat, "response/length_mean": 9.0}
    display.step(1, figures(1, **more))
    assert f"{said}  length 9.0" in target.getvalue()
    assert "tok/s" not in target.getvalue()


CRITIC = {"critic/loss": 0.1234, "critic/explained_variance": 0.456}


@pytest.mark.parametrize("width", [36, 44, 60, 80, 100, 120])
@pytest.mark.parametrize("name", ["accuracy", "a-mount-with-a-very-long-name"])
@pytest.mark.parametrize("more", [{}, CRITIC])
def test_no_mean_and_no_weight_gives_way_to_what_stands_beside_it(
    width: int, name: str, more: dict[str, float]
) -> None:
    progress = Progress("run", steps=30)
    flat = {"actor/trained_tokens": 0.0, "reward/groups_flat": 4.0, "actor/kl": 0.0123}
    for step in range(1, 9):
        long = {f"reward/{name}/mean": 0.05 * step, f"weights/{name}": 1.985 if step < 8 else 0.5}
        revision = {"weights/revision": 1 if step < 8 else 2}
        progress.take(step, figures(step) | long | flat | revision | more)
    lines = drawn(progress, width).splitlines()
    assert {len(line) for line in lines} == {width}
    [row] = [line for line in lines if line.startswith(f"│ {name[:5]}")]
    assert "0.400" in row
    assert "1.985 → 0.5" in row
    assert "update none (flat)" in " ".join("\n".join(lines).split())
    assert "scored alike" not in "".join(lines)


def test_a_step_tells_its_critics_figures_and_no_loss_that_rounding_made() -> None:
    target = io.StringIO()
    display = make_display("run", 3, console=Console(file=target, width=300), env={})
    display.step(1, figures(1, **{"actor/loss": -7.45e-09, "actor/kl": 2e-06}, **CRITIC))
    said = "kl 2e-06  loss 0  critic loss 0.123  explained variance 0.46"
    assert said in target.getvalue()
    shown = " ".join(drawn(display.progress).split())
    assert "loss 0 critic loss 0.123 explained variance 0.46" in shown


KEYS = """
import sys, termios
from verl_core.trainer.display import make_display

def shown():
    return bool(termios.tcgetattr(0)[3] & termios.ECHOCTL)

states = [shown()]
with make_display("run", 1):
    states.append(shown())
states.append(shown())
print("states", *states)
"""


@pytest.mark.parametrize(
    ("in_front", "states"), [(True, "True False True"), (False, "True True True")]
)
def test_control_keys_are_not_shown_while_the_panel_is_drawn(in_front: bool, states: str) -> None:
    program = KEYS
    if not in_front:  # what has a group of its own is not the terminal's foreground
        body = "".join(f"    {line}\n" for line in KEYS.splitlines())
        program = f"import os\nif os.fork() == 0:\n    os.setpgid(0, 0)\n{body}else:\n    os.wait()"
    pid, master = pty.fork()
    if pid == 0:
        kept = {k: v for k, v in os.environ.items() if k not in {"CI", "NO_COLOR"}}
        os.execve(sys.executable, [sys.executable, "-c", program], {**kept, "TERM": "xterm"})
    output = b""
    while select.select([master], [], [], 60)[0]:
        try:
            output += os.read(master, 65536)
        except OSError:  # Linux's end
            break
    os.close(master)
    os.waitpid(pid, 0)
    assert f"states {states}".encode() in output
