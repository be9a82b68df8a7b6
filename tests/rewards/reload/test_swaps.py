"""Generations under load: who is scored with which, and what becomes of the old (21-24, 27)."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest

from verl_core.rewards.reload.closing import flush
from verl_core.rewards.reload.places import UnknownMount
from verl_reward_sdk import RewardError


@pytest.fixture
def one(reloading, tmp_path):
    """An engine of one mount whose file holds 1; it notes what it loads and closes."""
    reloading.write(1)
    return reloading.engine(reloading.mount(init_kwargs={"note": str(tmp_path / "note")}))


@pytest.fixture
def noted(tmp_path):
    def lines():
        flush(30)
        return (tmp_path / "note").read_text().split("\n")[:-1]

    return lines


@pytest.mark.parametrize("execution", ["inline", "thread", "process"])
def test_64_requests_at_once_never_fail_and_never_mix(reloading, kit, execution):
    """Each request is one lease: its rows have one score, that of its generation."""
    reloading.write(1)
    engine = reloading.engine(
        reloading.mount(execution=execution, reload="background", on_error="raise")
    )
    stop = threading.Event()

    def swap():
        number = 1
        while not stop.wait(0.01):
            number += 1
            reloading.write(number % 900 + 1)

    def ask(_):
        found = []
        for _ in range(6):
            table = engine.score(kit.batch(3))
            column = table.columns["n"]
            assert (column.codes == 0).all()
            (score,) = set(column.scores.tolist())
            found.append((table.generations["n"], score))
        return found

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        with ThreadPoolExecutor(64) as pool:
            seen = [pair for pairs in pool.map(ask, range(64)) for pair in pairs]
    finally:
        stop.set()
        swapper.join()
    assert len(seen) == 64 * 6
    of_generation = {}
    for generation, score in seen:
        assert of_generation.setdefault(generation, score) == score
    assert engine.describe()[0]["failures"] == 0


def test_a_lease_ends_on_the_generation_that_it_began_with(reloading, one, score, shown, noted):
    lease = one.lease()
    reloading.write(2)
    assert score(one) == 2
    assert score(one, lease) == 1
    assert lease.generations["n"] == 1
    assert shown(one)["retired"] == 1
    assert "closed 1" not in noted()
    del lease
    assert shown(one)["retired"] == 0
    assert "closed 1" in noted()
    assert score(one) == 2


def test_a_lease_that_was_ended_scores_no_more_and_holds_nothing(reloading, one, score, kit, noted):
    lease = one.lease()
    scoring = one.open(kit.batch(2), lease=lease)
    reloading.write(2)
    assert score(one) == 2
    lease.end()
    with pytest.raises(RewardError, match="ended"):
        score(one, lease)
    scoring.run(["n"])  # what is being scored goes on
    assert scoring.finish().columns["n"].scores.tolist() == [1, 1]
    assert "closed 1" not in noted()
    del scoring
    assert "closed 1" in noted()


def test_a_step_has_the_same_generations_whenever_it_is_asked_for(reloading, one, score):
    assert score(one, one.lease(1)) == 1
    reloading.write(2)
    assert score(one, one.lease(1)) == 1
    assert score(one, one.lease_of(9, {"n": 2.0}, 1)) == 1
    assert one.lease_of(9, {"n": 2.0}, 1).weights == {"n": 2.0}
    assert score(one, one.lease(2)) == 2


def test_a_stream_scores_its_step_on_the_generation_that_it_began_with(reloading, one, kit):
    batch = kit.batch(4)
    stream = one.stream(batch.sample_ids, lease=one.lease(3))
    stream.submit(batch.take([0, 1]))
    reloading.write(2)
    one.lease()
    assert one.mounts["n"].generation == 2
    stream.submit(batch.take([2, 3]))
    stream.run(["n"])
    assert stream.finish().columns["n"].scores.tolist() == [1] * 4


def test_a_table_holds_no_generation(reloading, one, kit, noted):
    table = one.score(kit.batch(2))
    reloading.write(2)
    one.lease()
    assert "closed 1" in noted()
    assert table.generations == {"n": 1}


def test_of_two_swaps_during_one_load_the_newest_wins(reloading, tmp_path, score, until, shown):
    go = tmp_path / "go"
    go.touch()
    note = tmp_path / "note"
    reloading.write(1)
    kwargs = {"wait_for": str(go), "note": str(note)}
    engine = reloading.engine(reloading.mount(init_kwargs=kwargs, reload="background"))
    go.unlink()
    reloading.write(2)
    assert score(engine) == 1
    until(lambda: "2" in note.read_text())  # it is being loaded
    for number in (3, 4):
        reloading.write(number)
        assert score(engine) == 1
    go.touch()
    until(lambda: score(engine) == 4)
    assert "3" not in note.read_text()
    assert shown(engine)["generation"] == 2  # 2 never served


def test_background_scores_with_the_old_one_meanwhile(reloading, tmp_path, score, until, shown):
    go = tmp_path / "go"
    go.touch()
    reloading.write(1)
    engine = reloading.engine(
        reloading.mount(init_kwargs={"wait_for": str(go)}, reload="background")
    )
    go.unlink()
    reloading.write(2)
    assert score(engine) == 1
    until(lambda: (shown(engine)["candidate"] or {}).get("state") == "loading")
    assert score(engine) == 1
    go.touch()
    until(lambda: shown(engine)["generation"] == 2)
    assert score(engine) == 2


def test_blocking_waits_for_reload_wait_and_no_longer(reloading, tmp_path, score, until, shown):
    go = tmp_path / "go"
    go.touch()
    reloading.write(1)
    engine = reloading.engine(reloading.mount(init_kwargs={"wait_for": str(go)}, reload_wait=0.2))
    go.unlink()
    reloading.write(2)
    assert score(engine) == 1  # it waited, and the load went on
    assert shown(engine)["candidate"]["state"] == "loading"
    go.touch()
    until(lambda: shown(engine)["candidate"] is None)
    assert score(engine) == 2


def test_a_coroutine_waits_without_holding_up_its_loop(reloading, tmp_path, kit):
    go = tmp_path / "go"
    go.touch()
    reloading.write(1)
    engine = reloading.engine(reloading.mount(init_kwargs={"wait_for": str(go)}))
    go.unlink()
    reloading.write(2)

    async def both():
        scoring = asyncio.create_task(engine.ascore(kit.batch(2)))
        turns = 0
        while engine.describe()[0]["candidate"] is None or turns < 20:
            await asyncio.sleep(0.01)
            turns += 1
        go.touch()  # nobody but this loop's own task does that
        return await scoring

    table = asyncio.run(both())
    assert table.columns["n"].scores.tolist() == [2, 2]
    assert table.generations == {"n": 2}


def test_64_coroutines_at_once_never_mix(reloading, kit):
    reloading.write(1)
    engine = reloading.engine(reloading.mount(execution="thread", on_error="raise"))

    async def ask(number):
        found = []
        for turn in range(5):
            if number == 0:
                reloading.write(turn + 2)
            table = await engine.ascore(kit.batch(3))
            (score,) = set(table.columns["n"].scores.tolist())
            found.append((table.generations["n"], score))
        return found

    async def all_of_them():
        return await asyncio.gather(*(ask(number) for number in range(64)))

    of_generation = {}
    for found in asyncio.run(all_of_them()):
        for generation, score in found:
            assert of_generation.setdefault(generation, score) == score
    assert of_generation[max(of_generation)] == 6


def test_two_mounts_load_one_after_the_other(reloading, tmp_path, kit, until):
    """Also where they are of two engines, as training's and evaluation's are."""
    for name in ("a", "b", "c"):
        reloading.write(1, name)
    go = tmp_path / "go"
    go.touch()
    slow = {"init_kwargs": {"wait_for": str(go)}, "reload": "background"}
    first = reloading.engine(reloading.mount("a", **slow), reloading.mount("b", **slow))
    second = reloading.engine(reloading.mount("c", **slow))
    go.unlink()
    for name in ("a", "b", "c"):
        reloading.write(2, name)
    first.lease(), second.lease()

    def states():
        found = [*first.describe(), *second.describe()]
        return sorted((mount["candidate"] or {}).get("state", "") for mount in found)

    until(lambda: states() == ["loading"] + ["waiting for another mount to load"] * 2)
    go.touch()
    until(lambda: states() == [""] * 3)
    assert {m["generation"] for m in (*first.describe(), *second.describe())} == {2}


def test_what_a_provider_learns_goes_on_in_the_next_generation(reloading, kit):
    reloading.write(1)
    engine = reloading.engine(reloading.mount(plugin="learning"))
    table = engine.score(kit.batch(4, step=1), lease=engine.lease(1))
    engine.step_end(table)
    lease = engine.lease(2)
    table = engine.score(kit.batch(4, step=2), lease=lease)  # has seen 8
    reloading.write(2)
    engine.lease()
    assert engine.mounts["n"].generation == 2
    engine.step_end(table)  # which the first generation scored
    del lease
    assert engine.state()["providers"] == {"n": {"seen": 8}}
    table = engine.score(kit.batch(4, step=3), lease=engine.lease(3))
    assert table.columns["n"].scores.tolist() == [12] * 4
    assert table.generations == {"n": 2}


def test_the_cache_knows_each_generation_by_its_content(reloading, score, shown):
    reloading.write(1)
    engine = reloading.engine(reloading.mount(cache={}))
    assert [score(engine), score(engine)] == [1, 1]
    assert shown(engine)["cache"]["hits"] == 3
    reloading.write(2)
    assert [score(engine), score(engine)] == [2, 2]
    assert shown(engine)["cache"]["hits"] == 6
    reloading.write(1)  # what was said under the first generation is known
    assert score(engine) == 1
    assert shown(engine)["generation"] == 3
    assert shown(engine)["cache"]["hits"] == 9


def test_observers_see_a_change_when_it_serves(reloading, one, score):
    changes = sys.modules["reloading_plugin"].CHANGES
    changes.clear()
    reloading.write(2)
    assert score(one) == 2
    ((mount, before, after),) = changes
    assert mount == "n"
    assert [before["number"], after["number"]] == [1, 2]
    assert before["digests"].keys() == after["digests"].keys() == {"n.txt"}
    assert before["digests"] != after["digests"]
    assert after["version"] == "verl-reward-reloading 1.0"


def test_a_breaker_is_not_moved_by_a_candidate(reloading, score, shown):
    reloading.write(1)
    engine = reloading.engine(
        reloading.mount(
            breaker={"failures": 1, "reset": 60}, execution="thread", init_kwargs={"most": 10}
        )
    )
    score(engine)
    reloading.write(2000)  # out of the score range: the proof fails
    assert score(engine) == 1
    assert "2000" in shown(engine)["last_error"]
    assert shown(engine)["breaker"] == "closed"
    assert shown(engine)["failures"] == 0


@pytest.mark.parametrize(("execution", "swaps"), [("inline", 100), ("thread", 20), ("process", 2)])
def test_100_swaps_and_100_failed_ones_leave_nothing_behind(
    reloading, score, noted, tmp_path, our_children, execution, swaps
):
    """The generations, their threads and their copies are gone; `benchmarks/swap_memory.py` weighs
    it with a file of 100 MB."""
    reloading.write(1)
    one = reloading.engine(
        reloading.mount(init_kwargs={"note": str(tmp_path / "note")}, execution=execution),
        settle=0.001,
    )
    lease = one.lease()
    root = lease.mounts["n"].taken.folder.parent
    del lease
    kinds = []
    for number in range(swaps):
        kinds.append(weakref.ref(one.mounts["n"]))
        reloading.write(number % 2 + 2)
        assert score(one) == number % 2 + 2
        reloading.write(f"bad {number}")
        assert score(one) == number % 2 + 2
    flush(30)
    threads = [thread.name for thread in threading.enumerate()]
    assert not [name for name in threads if name.startswith("reload-")]
    assert len([path for path in root.iterdir() if path.is_dir()]) == 1
    assert len(our_children()) == (execution == "process")
    gc.collect()
    assert not [ref for ref in kinds if ref() is not None]
    assert sum(line.startswith("closed") for line in noted()) == swaps


def test_a_closed_engine_lets_go_of_all_generations(reloading, one, score, noted, until):
    lease = one.lease()
    root = lease.mounts["n"].taken.folder.parent
    reloading.write(2)
    assert score(one) == 2
    one.close()
    assert {"closed 1", "closed 2"} <= set(noted())
    until(lambda: not [path for path in root.iterdir() if path.is_dir()])
    assert one.describe()[0]["state"] == "closed"


# -- asked for -------------------------------------------------------------------------------------


def test_reload_says_what_became_of_it(reloading, one, shown):
    assert one.reload("n")["outcome"] == "unchanged"
    reloading.write(2)
    found = one.reload("n")
    assert found["outcome"] == "swapped"
    assert found["generation"] == 2
    assert "n.txt changed" in found["detail"]
    assert {k: v for k, v in found.items() if k not in ("outcome", "detail")} == shown(one)
    reloading.write("bad")
    found = one.reload("n")
    assert [found["outcome"], found["generation"]] == ["refused", 2]
    assert "could not convert" in found["detail"]
    assert found["detail"] == found["last_error"]
    with pytest.raises(UnknownMount, match=r"there is no mount 'm' .*known: n"):
        one.reload("m")


def test_reload_finds_what_leases_were_told_not_to_look_for(reloading, score):
    reloading.write(1)
    engine = reloading.engine(reloading.mount(), watch=False)
    reloading.write(2)
    assert score(engine) == 1
    assert engine.reload("n")["outcome"] == "swapped"
    assert score(engine) == 2


def test_a_process_mount_comes_back_with_the_code_that_is_installed_now(
    reloading, plugin_site, score, shown, our_children
):
    engine = reloading.engine(reloading.mount(plugin="code", execution="process", workers=2))
    assert score(engine) == 1
    workers = {child.pid for child in our_children()}
    module = plugin_site.folder / "reloading_plugin.py"
    text = module.read_text()
    module.write_text(text.replace('VERSION = "1"', 'VERSION = "2"'))
    assert score(engine) == 1
    assert "starts a worker with it" in shown(engine)["code_changed"]
    found = engine.reload("n")
    assert found["outcome"] == "restarted"
    assert found["generation"] == 2
    assert score(engine) == 2
    assert shown(engine)["code_changed"] is None
    flush(30)
    assert not workers & {child.pid for child in our_children() if child.is_running()}


def test_another_version_is_reported_where_the_code_is_in_this_process(
    reloading, plugin_site, score, shown
):
    engine = reloading.engine(reloading.mount(plugin="code"))
    assert shown(engine)["code"] == "verl-reward-reloading 1.0"
    old = plugin_site.folder / "verl_reward_reloading-1.0.dist-info"
    new = old.with_name("verl_reward_reloading-2.0.dist-info")
    metadata = (old / "METADATA").read_text().replace("Version: 1.0", "Version: 2.0")
    (old / "METADATA").write_text(metadata)
    old.rename(new)
    time.sleep(0.01)
    found = engine.reload("n")
    assert found["outcome"] == "unchanged"
    assert "verl-reward-reloading 2.0 is installed now" in found["detail"]
    assert "execution: process" in found["detail"]
    assert score(engine) == 1


@pytest.mark.parametrize("execution", ["thread", "process"])
def test_swaps_wherever_it_runs(reloading, score, shown, execution):
    reloading.write(1)
    engine = reloading.engine(reloading.mount(execution=execution))
    assert score(engine) == 1
    reloading.write(2)
    assert score(engine) == 2
    reloading.write("bad")
    assert score(engine) == 2
    said = shown(engine)["last_error"]
    assert "could not convert" in said
    assert ".cache" not in said
    assert str(reloading.folder) in said
