"""A file is replaced, in all the ways in which people and systems do it (rows 1, 10-20, 29)."""

from __future__ import annotations

import os
import shutil
import threading
import time

import pytest

from verl_reward_sdk import ConfigError


@pytest.fixture
def one(reloading):
    """An engine of one mount whose file holds 1."""
    reloading.write(1)
    return reloading.engine(reloading.mount())


def test_a_replaced_file_is_what_the_next_lease_scores_with(reloading, one, score, shown):
    assert score(one) == 1
    reloading.write(2)
    assert score(one) == 2
    assert shown(one)["generation"] == 2
    assert shown(one)["last_error"] is None
    assert set(shown(one)["digests"]) == {"n.txt"}


def test_a_slow_write_in_place_serves_only_once_it_stands_still(reloading, score, until):
    path = reloading.write(1)
    engine = reloading.engine(reloading.mount(reload="background"), settle=0.1)
    stop = threading.Event()

    def write():
        with path.open("r+") as file:
            for digit in "234567":
                file.write(digit)
                file.flush()
                stop.wait(0.05)

    writer = threading.Thread(target=write)
    writer.start()
    seen = {score(engine)}
    while writer.is_alive():
        seen.add(score(engine))
    assert seen == {1}
    until(lambda: score(engine) == 234567 - 234000 or engine.describe()[0]["last_error"])
    # 234567 is out of the score range: what was read is the whole of it, and is told
    assert "234567" in engine.describe()[0]["last_error"]


def test_the_same_size_and_a_forced_mtime_do_not_hide_a_change(reloading, one, score):
    path = reloading.folder / "n.txt"
    before = path.stat()
    path.write_text("3")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert path.stat().st_size == before.st_size
    assert score(one) == 3


def test_a_rename_that_reuses_the_inode_is_seen(reloading, one, score):
    path = reloading.folder / "n.txt"
    inode = path.stat().st_ino
    other = reloading.folder / "other.txt"
    os.rename(path, other)
    other.write_text("4")
    os.rename(other, path)
    assert path.stat().st_ino == inode
    assert score(one) == 4


def test_a_touch_reloads_nothing(reloading, one, score, shown, tmp_path):
    note = tmp_path / "note"
    reloading.write(1, "noted")
    engine = reloading.engine(reloading.mount("noted", init_kwargs={"note": str(note)}))
    (reloading.folder / "noted.txt").touch()
    assert score(engine, name="noted") == 1
    assert shown(engine, "noted")["generation"] == 1
    assert note.read_text() == "1\n"


def test_a_coarse_clock_hides_nothing(reloading, score):
    """As on NFS of old servers: times of whole seconds, mtime and ctime alike."""

    def coarse(path):
        found = os.stat(path)
        second = 10**9
        return type(
            "Coarse",
            (),
            {
                "st_dev": found.st_dev,
                "st_ino": found.st_ino,
                "st_size": found.st_size,
                "st_mtime_ns": found.st_mtime_ns // second * second,
                "st_ctime_ns": found.st_ctime_ns // second * second,
            },
        )

    path = reloading.write(1)
    while time.time() % 1 > 0.3:  # the change below is to fall into the same second
        time.sleep(0.05)
    os.utime(path)
    engine = reloading.engine(reloading.mount(), stat=coarse)
    stamp = coarse(path).st_ctime_ns
    assert score(engine) == 1
    path.write_text("2")
    assert coarse(path).st_ctime_ns == stamp, "this machine was too slow for the test"
    assert score(engine) == 2


def test_a_link_to_another_set_is_followed_as_a_whole(reloading, score, shown):
    for number in (1, 2):
        folder = reloading.folder / f"v{number}"
        folder.mkdir()
        (folder / "n.txt").write_text("number")
        (folder / "number").write_text(str(number))
    link = reloading.folder / "now"
    link.symlink_to("v1")
    engine = reloading.engine(
        reloading.mount(plugin="included", init_kwargs={"file": "now/n.txt"}, watch=["now/number"])
    )
    assert score(engine) == 1
    draft = reloading.folder / "draft"
    draft.symlink_to("v2")
    os.replace(draft, link)
    assert score(engine) == 2
    assert set(shown(engine)["digests"]) == {"now/n.txt", "now/number"}


def test_a_configmap_is_followed(reloading, score):
    """As kubelet writes it: the key is a link through ``..data``, which is swapped by a rename."""
    for number in (1, 2):
        folder = reloading.folder / f"..2026_{number}"
        folder.mkdir()
        (folder / "n.txt").write_text(str(number))
    (reloading.folder / "..data").symlink_to("..2026_1")
    (reloading.folder / "n.txt").symlink_to("..data/n.txt")
    engine = reloading.engine(reloading.mount())
    assert score(engine) == 1
    (reloading.folder / "..data_tmp").symlink_to("..2026_2")
    os.replace(reloading.folder / "..data_tmp", reloading.folder / "..data")
    shutil.rmtree(reloading.folder / "..2026_1")
    assert score(engine) == 2


def test_a_set_that_is_swapped_while_it_is_copied_is_never_a_mix(tmp_path):
    """Two files of one set, swapped as fast as this machine can: each copy is of one set."""
    from verl_core.rewards.reload.copies import take
    from verl_core.rewards.reload.fingerprint import Missing
    from verl_core.rewards.reload.private import PrivateRoot

    for number in (1, 2):
        folder = tmp_path / f"v{number}"
        folder.mkdir()
        for name in ("a", "b"):
            (folder / name).write_text(f"{number}" * 200_000)
    (tmp_path / "now").symlink_to("v1")
    stop = threading.Event()

    def swap():
        number = 1
        while not stop.is_set():
            number = 3 - number
            (tmp_path / "draft").symlink_to(f"v{number}")
            os.replace(tmp_path / "draft", tmp_path / "now")
            time.sleep(0.003)

    swapper = threading.Thread(target=swap)
    swapper.start()
    root = PrivateRoot(tmp_path / "private")
    seen = set()
    try:
        for _ in range(30):
            try:
                taken = take(
                    [str(tmp_path / "now" / "a"), str(tmp_path / "now" / "b")],
                    name="m",
                    copy=True,
                    settle=0.0,
                    root=root,
                )
            except Missing:
                continue
            digests = set(taken.digests.values())
            assert len(digests) == 1
            seen |= digests
            taken.drop()
    finally:
        stop.set()
        swapper.join()
    assert seen


def test_a_deleted_file_changes_nothing_but_the_status(reloading, one, score, shown):
    (reloading.folder / "n.txt").unlink()
    assert score(one) == 1
    assert shown(one)["state"] == "degraded"
    assert "n.txt" in shown(one)["last_error"]
    reloading.write(1)
    assert score(one) == 1
    assert shown(one)["state"] == "ready"
    assert shown(one)["last_error"] is None
    assert shown(one)["generation"] == 1
    reloading.write(2)
    assert score(one) == 2


def test_a_bad_file_is_refused_once_and_a_fixed_one_loads_at_once(
    reloading, score, shown, tmp_path
):
    note = tmp_path / "note"
    reloading.write(1)
    engine = reloading.engine(reloading.mount(init_kwargs={"note": str(note)}))
    reloading.write("x")
    for _ in range(5):
        assert score(engine) == 1
    assert note.read_text().count("x") == 1
    assert "could not convert" in shown(engine)["last_error"]
    assert str(reloading.folder / "n.txt") in shown(engine)["last_error"]
    assert shown(engine)["state"] == "ready"
    reloading.write(2)
    assert score(engine) == 2
    assert shown(engine)["last_error"] is None
    reloading.write("x")  # the same bad content comes back
    assert score(engine) == 2
    assert note.read_text().count("x") == 1
    assert "could not convert" in shown(engine)["last_error"]
    assert engine.reload("n")["outcome"] == "refused"  # a person may ask for it once more
    assert note.read_text().count("x") == 2


def test_editors_leave_things_that_are_no_change(reloading, score, shown, tmp_path):
    folder = reloading.model()
    engine = reloading.engine(reloading.mount(plugin="strict", init_kwargs={"model": "model"}))
    for name in (".config.json.swp", "config.json~", "#config.json#", "4913", "x.swp"):
        (folder / name).write_text("swap")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "x.pyc").write_text("")
    engine.lease()
    assert shown(engine)["generation"] == 1
    assert shown(engine)["candidate"] is None
    (folder / "config.json~").unlink()
    engine.lease()
    assert shown(engine)["generation"] == 1
    (folder / "notes.txt").write_text("this one is a file of the folder")
    engine.lease()
    assert shown(engine)["generation"] == 2


def test_a_watched_file_makes_a_generation_and_is_found_beside_the_copy(reloading, score, shown):
    reloading.write("number.txt")
    (reloading.folder / "number.txt").write_text("1")
    engine = reloading.engine(reloading.mount(plugin="included", watch=["number.txt"]))
    assert score(engine) == 1
    (reloading.folder / "number.txt").write_text("2")
    assert score(engine) == 2
    assert set(shown(engine)["digests"]) == {"n.txt", "number.txt"}


def test_a_watched_file_that_is_not_there_is_an_error_of_the_config(reloading):
    reloading.write(1)
    with pytest.raises(ConfigError, match=r"reward.n.watch\[0\].*no such file.*gone.txt"):
        reloading.engine(reloading.mount(watch=["gone.txt"]))


def test_word_lists_reload_as_rule_files_do(reloading, kit, shown):
    """The plugins that the project ships name the files that they read."""
    from dataclasses import replace

    words, allow = reloading.folder / "words.txt", reloading.folder / "allow.txt"
    words.write_text("forbidden\n")
    allow.write_text("a forbidden city\n")
    engine = reloading.engine(
        {
            "type": "guard",
            "plugin": "safety",
            "role": "gate",
            "penalty": -1.0,
            "init_kwargs": {"words": "words.txt", "allow": "allow.txt"},
        },
        {"type": "style", "plugin": "chrf"},
    )
    texts = ["a forbidden city", "a secret"]
    batch = kit.batch(columns={"ground_truth": ["a", "b"]}, training=False)
    batch = replace(batch, responses=texts, responses_raw=())

    def spoke():
        return [word > 0 for word in engine.score(batch).columns["guard"].words.tolist()]

    assert spoke() == [False, False]
    words.write_text("forbidden\nsecret\n")
    assert spoke() == [False, True]
    allow.write_text("nothing\n")
    assert spoke() == [True, True]
    words.write_text("forbidden\n\n")
    assert spoke() == [True, True]
    assert f"{words}:2: the line is empty" in shown(engine, "guard")["last_error"]
    assert set(shown(engine, "guard")["digests"]) == {"words.txt", "allow.txt"}
    assert shown(engine, "style")["digests"] == {}
