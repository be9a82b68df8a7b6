"""The parts of hot reload by themselves: private folders, rebased configs, manifests."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel, ConfigDict, PrivateAttr

from verl_core.rewards.reload.copies import Moving, Taken, take
from verl_core.rewards.reload.digests import WrongDigest, verify
from verl_core.rewards.reload.fingerprint import Missing, Scan, Watched
from verl_core.rewards.reload.private import PrivateRoot
from verl_core.rewards.reload.rebase import original, original_error, rebased
from verl_reward_sdk import AssetPath, ConfigError, ContractError

# -- private folders -------------------------------------------------------------------------------


def folders(parent):
    return {path.name for path in parent.iterdir() if path.is_dir()}


def holder(parent, then):
    """Another process with a private folder."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from verl_core.rewards.reload.private import PrivateRoot\n"
        f"folder = PrivateRoot(Path({str(parent)!r})).folder('m')\n"
        "(folder / 'copy').write_text('x'); print(folder.parent.name, flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code + then], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def test_a_private_folder_ends_with_its_process_and_that_of_a_killed_one_with_the_next(tmp_path):
    ended, name = holder(tmp_path, "")
    ended.communicate()
    assert name not in folders(tmp_path)
    killed, dead = holder(tmp_path, "time.sleep(600)")
    alive, living = holder(tmp_path, "time.sleep(600)")
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert {dead, living} <= folders(tmp_path)
    ours = PrivateRoot(tmp_path).folder("m")
    assert dead not in folders(tmp_path)
    assert living in folders(tmp_path)
    assert ours.is_dir()
    assert ours.stat().st_mode & 0o077 == 0
    alive.kill()
    alive.communicate()


def test_a_fork_has_a_folder_of_its_own_and_leaves_its_parents_alone(tmp_path):
    code = (
        "import os, sys; from pathlib import Path\n"
        "from verl_core.rewards.reload.private import PrivateRoot\n"
        f"root = PrivateRoot(Path({str(tmp_path)!r})); mine = root.folder('m')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    print(root.folder('m').parent != mine.parent); sys.exit(0)\n"
        "os.waitpid(pid, 0); print(mine.is_dir())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
    assert folders(tmp_path) == set()


def test_where_the_cache_cannot_be_written_the_temporary_folder_does(tmp_path):
    (tmp_path / "file").write_text("no folder")
    code = "from verl_core.rewards.reload.private import ROOT\nprint(ROOT.folder('m'))\n"
    env = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "file"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env
    )
    assert done.stdout.startswith(f"{tmp_path}/verl-reward-{os.getuid()}/")


# -- rebased configs -------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Pair:
    path: Path
    weight: float


class Inner(BaseModel):
    model_config = ConfigDict(frozen=True, extra="allow")
    file: AssetPath
    _noted: int = PrivateAttr(default=7)


class Outer(BaseModel):
    model_config = ConfigDict(frozen=True)
    inner: Inner
    named: dict[str, Path]
    listed: tuple[Path, ...]
    text: str
    other: str
    pair: Pair
    number: int = 3


def taken_of(folder, *assets):
    digests = dict.fromkeys(map(str, assets), "0" * 64)
    return Taken(Scan({}, {}, {}), digests, {}, (), {}, folder)


def test_every_path_that_is_an_asset_is_replaced_however_deep_it_lies(tmp_path):
    file, folder, apart = tmp_path / "a.yaml", tmp_path / "model", tmp_path / "apart.txt"
    file.touch(), folder.mkdir(), apart.touch()
    config = Outer(
        inner=Inner(file=file, more=folder / "deep" / "x"),
        named={"a": folder, "b": apart},
        listed=(file, apart),
        text=str(folder),
        other="just a text",
        pair=Pair(file, 0.5),
    )
    private = tmp_path / "private"
    made = rebased(config, taken_of(private, file, folder))
    copy = Path(f"{private}{file}")
    assert made.inner.file == copy
    assert made.inner.more == Path(f"{private}{folder}/deep/x")
    assert made.inner._noted == 7
    assert made.named == {"a": Path(f"{private}{folder}"), "b": apart}
    assert made.listed == (copy, apart)
    assert made.text == f"{private}{folder}"
    assert (made.other, made.number) == ("just a text", 3)
    assert made.pair == Pair(copy, 0.5)
    assert config.inner.file == file
    assert rebased(config, taken_of(private, apart / "none")) is config


def test_a_folder_with_a_name_that_begins_alike_is_another(tmp_path):
    model, other = tmp_path / "model", tmp_path / "model-2"
    taken = taken_of(tmp_path / "private", model)
    assert taken.private(str(other)) is None
    assert taken.private(str(model)) is not None


def test_errors_name_the_files_that_people_know():
    folder = Path("/cache/m-1")
    error = ConfigError("in /cache/m-1/etc/a", file="/cache/m-1/etc/a", hint="see /cache/m-1/etc/b")
    assert str(original_error(error, folder)) == "/etc/a: in /etc/a (see /etc/b)"
    broken = ContractError("bad /cache/m-1/x", provider="p", value="/cache/m-1/x")
    assert "/cache" not in str(original_error(broken, folder))
    assert original("/cache/m-1/x and /cache/m-1/y", folder) == "/x and /y"
    assert original("as it is", None) == "as it is"


# -- manifests -------------------------------------------------------------------------------------

DIGEST = "a" * 64


@pytest.mark.parametrize(
    "text",
    [
        DIGEST,
        f"{DIGEST}\n",
        f"{DIGEST}  f\n",
        f"{DIGEST} *f",
        f"# by hand\n\n{DIGEST.upper()}  ./f",
    ],
)
def test_the_forms_of_a_manifest(text):
    verify("/d/f", DIGEST, {"/d/f.sha256": text})
    with pytest.raises(WrongDigest, match=r"/d/f has the SHA-256 bbbbbbbbbbbb…, and /d/f.sha256"):
        verify("/d/f", "b" * 64, {"/d/f.sha256": text})


def test_a_list_of_a_folder_speaks_of_the_files_that_it_names():
    listed = {"/d/SHA256SUMS": f"{DIGEST}  f\n{'c' * 64}  g\n"}
    verify("/d/f", DIGEST, listed)
    verify("/d/other", "b" * 64, listed)
    with pytest.raises(WrongDigest):
        verify("/d/g", DIGEST, listed)
    with pytest.raises(WrongDigest, match="SHA256SUMS:1: expected a SHA-256"):
        verify("/d/f", DIGEST, {"/d/SHA256SUMS": "not a manifest\n"})


# -- taking ----------------------------------------------------------------------------------------


def test_copies_have_the_layout_of_their_originals(tmp_path):
    model = tmp_path / "model"
    (model / "deep").mkdir(parents=True)
    (model / "deep" / "w.bin").write_bytes(b"1" * 3_000_000)
    (model / "empty").mkdir()
    (model / ".hidden").write_text("x")
    (model / "up").symlink_to(tmp_path / "model")  # a circle
    root = PrivateRoot(tmp_path / "private")
    taken = take([str(model)], name="m", copy=True, settle=0.0, root=root)
    copy = taken.private(str(model))
    assert copy is not None
    assert (copy / "deep" / "w.bin").read_bytes() == b"1" * 3_000_000
    assert (copy / "empty").is_dir()
    assert not (copy / ".hidden").exists()
    taken.drop()
    assert not copy.exists()


def test_what_is_gone_or_never_stands_still_is_told_apart(tmp_path):
    with pytest.raises(Missing, match=r"gone\.txt: No such file"):
        take([str(tmp_path / "gone.txt")], name="m", copy=False)
    (tmp_path / "a").write_text("1")
    with pytest.raises(Moving):
        take([str(tmp_path / "a")], name="m", copy=False, until=lambda: True)


def test_a_file_that_cannot_be_read_is_no_change(tmp_path, reloading, score, shown):
    if os.geteuid() == 0:
        pytest.skip("root may read everything")
    path = reloading.write(1)
    engine = reloading.engine(reloading.mount())
    path.chmod(0)
    assert score(engine) == 1
    assert "Permission denied" in shown(engine)["last_error"]


def test_calm_files_cost_one_stat_each_and_nothing_else(tmp_path):
    asked = []

    def counted(path):
        asked.append(path)
        return os.stat(path)

    paths = [tmp_path / f"{number}" for number in range(5)]
    for path in paths:
        path.write_text("x")
        os.utime(path, (0, 0))
    watched = Watched([str(path) for path in paths], counted)
    taken = take([str(path) for path in paths], name="m", copy=False, first_waits=False)
    watched.took(taken.scan, taken.files)
    assert not watched.calm()  # their ctime is young
    assert not watched.changed()
    watched._settled = True  # two seconds later
    asked.clear()
    assert watched.calm()
    assert asked == [str(path) for path in paths]
