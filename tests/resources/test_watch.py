"""Reloading: a good change is taken whole, a bad one leaves the old and says why; on a real file system."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import shutil
from collections.abc import Awaitable, Callable

import pytest

from sits.resources.kinds import Metadata, Model, ModelSpec, Resource
from sits.resources.problem import ConfigError
from sits.resources.snapshot import Snapshot
from sits.resources.watch import Reloader, Status, watch


def text(name: str) -> str:
    return f"kind: Model\nmetadata: {{name: {name}}}\nspec: {{engine: vllm, endpoint: 'http://h'}}\n"


def registered(name: str) -> Model:
    return Model(Metadata(name), ModelSpec(engine="vllm", endpoint="http://r"))


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "conf"
    made.mkdir()
    (made / "m.yaml").write_text(text("a"), encoding="utf-8")
    return made


def test_a_good_change_is_swapped_in_and_told(folder: pathlib.Path) -> None:
    reloader = Reloader(folder)
    heard: list[tuple[Snapshot | None, Snapshot]] = []
    reloader.on_change(lambda old, new: heard.append((old, new)))
    first = reloader.start(now=10.0)
    assert reloader.status == Status(1, first.hash, 10.0, 0)
    (folder / "m.yaml").write_text(text("b"), encoding="utf-8")
    status = reloader.reload(now=20.0)
    second = reloader.current
    assert status == Status(2, second.hash, 20.0, 0)
    assert (list(first.models), list(second.models)) == (["a"], ["b"])
    assert heard == [(None, first), (first, second)]


def test_a_bad_change_keeps_the_old_and_says_why_until_mended(folder: pathlib.Path) -> None:
    reloader = Reloader(folder)
    first = reloader.start(now=1.0)
    (folder / "m.yaml").write_text(text("b").replace("engine", "engin"), encoding="utf-8")
    status = reloader.reload(now=2.0)
    assert reloader.current is first
    assert (status.version, status.hash, status.loaded_at, status.rejected, status.last_error_at) == (1, first.hash, 1.0, 1, 2.0)
    assert [problem.path for problem in status.last_error] == ["spec.engin"]
    (folder / "m.yaml").write_text(text("a"), encoding="utf-8")
    assert reloader.reload(now=3.0) == Status(1, first.hash, 1.0, 1)
    assert reloader.current is first


def test_the_same_content_is_no_change(folder: pathlib.Path) -> None:
    reloader = Reloader(folder)
    first = reloader.start(now=1.0)
    (folder / "other.yml").write_text("# a comment\n" + text("a"), encoding="utf-8")
    (folder / "m.yaml").unlink()
    assert reloader.stale()
    assert reloader.reload(now=2.0) == Status(1, first.hash, 1.0, 0)
    assert reloader.current is first
    assert not reloader.stale()


def test_a_folder_that_goes_away_or_empty_keeps_the_old(folder: pathlib.Path) -> None:
    reloader = Reloader(folder)
    first = reloader.start(now=1.0)
    (folder / "m.yaml").unlink()
    assert [str(problem) for problem in reloader.reload(now=2.0).last_error] == [
        f"{folder} no resource is left here; the last good ones stay in force; restart to serve none"
    ]
    folder.rmdir()
    assert [str(problem) for problem in reloader.reload(now=3.0).last_error] == [
        f"{folder} no such file or folder; check the path"
    ]
    assert (reloader.current, reloader.status.rejected) == (first, 2)


def test_a_bad_start_raises_and_leaves_nothing_in_force(folder: pathlib.Path) -> None:
    (folder / "m.yaml").write_text("kind: Nothing", encoding="utf-8")
    reloader = Reloader(folder)
    with pytest.raises(ConfigError):
        reloader.start(now=1.0)
    with pytest.raises(RuntimeError):
        _ = reloader.current


def test_registered_resources_are_taken_with_a_refresh_and_kept_by_a_reload(folder: pathlib.Path) -> None:
    added: list[Resource] = []
    reloader = Reloader(folder, registered=lambda: added)
    reloader.start(now=1.0)
    assert sorted(reloader.preview([registered("r")]).models) == ["a", "r"]
    assert sorted(reloader.current.models) == ["a"]
    with pytest.raises(ConfigError, match="may not redefine it"):
        reloader.preview([registered("a")])
    added.append(registered("r"))
    assert sorted(reloader.refresh(now=2.0).models) == ["a", "r"]
    (folder / "n.yaml").write_text(text("b"), encoding="utf-8")
    assert reloader.reload(now=3.0).version == 3
    assert sorted(reloader.current.models) == ["a", "b", "r"]


def test_a_refresh_works_while_the_files_are_bad(folder: pathlib.Path) -> None:
    added: list[Resource] = []
    reloader = Reloader(folder, registered=lambda: added)
    reloader.start(now=1.0)
    (folder / "m.yaml").write_text("kind: [", encoding="utf-8")
    reloader.reload(now=2.0)
    added.append(registered("r"))
    assert sorted(reloader.refresh(now=3.0).models) == ["a", "r"]
    assert reloader.status.last_error_at == 2.0


def test_a_hundred_reloads_by_turns_good_and_bad_lose_nothing(folder: pathlib.Path) -> None:
    reloader = Reloader(folder)
    reloader.start(now=0.0)
    for turn in range(1, 101):
        (folder / "m.yaml").write_text(text(f"m{turn}") if turn % 2 else "kind: [", encoding="utf-8")
        reloader.reload(now=float(turn))
        assert list(reloader.current.models) == [f"m{turn if turn % 2 else turn - 1}"]
    assert (reloader.status.version, reloader.status.rejected) == (51, 50)


def atomic_rename(folder: pathlib.Path) -> None:
    (folder / ".m.yaml.swp").write_text(text("b"), encoding="utf-8")
    (folder / ".m.yaml.swp").replace(folder / "m.yaml")


def new_file_below(folder: pathlib.Path) -> None:
    (folder / "more").mkdir()
    (folder / "more" / "b.yaml").write_text(text("b"), encoding="utf-8")


def write_in_place(folder: pathlib.Path) -> None:
    (folder / "m.yaml").write_text(text("b"), encoding="utf-8")


def folder_made_again(folder: pathlib.Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "m.yaml").write_text(text("b"), encoding="utf-8")


async def watched(reloader: Reloader, change: Callable[[], Awaitable[None]], done: Callable[[], bool]) -> None:
    """Run the real watcher around `change` until `done`, ten seconds at the most."""
    stop, looked = asyncio.Event(), asyncio.Event()
    task = asyncio.create_task(watch(reloader, stop, seen=lambda status: looked.set(), clock=lambda: 5.0, poll=0.1))
    try:
        async with asyncio.timeout(60):
            await change()
            while not done():
                await looked.wait()
                looked.clear()
    finally:
        stop.set()
        await asyncio.wait_for(task, 60)


@pytest.mark.parametrize("change", [write_in_place, atomic_rename, new_file_below, folder_made_again], ids=lambda c: c.__name__)
def test_the_watcher_takes_a_change(folder: pathlib.Path, change: Callable[[pathlib.Path], None]) -> None:
    reloader = Reloader(folder)
    reloader.start(now=1.0)

    async def act() -> None:
        await asyncio.to_thread(change, folder)

    asyncio.run(watched(reloader, act, lambda: "b" in reloader.current.models))
    assert reloader.status.loaded_at == 5.0


def test_the_watcher_follows_the_link_swap_of_a_config_map(tmp_path: pathlib.Path) -> None:
    def put(version: str, name: str) -> None:
        (tmp_path / version).mkdir()
        (tmp_path / version / "m.yaml").write_text(text(name), encoding="utf-8")

    put("..1", "a")
    put("..2", "b")
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "m.yaml").symlink_to("..data/m.yaml")
    reloader = Reloader(tmp_path)
    assert list(reloader.start(now=1.0).models) == ["a"]

    async def act() -> None:
        (tmp_path / "..data_tmp").symlink_to("..2")
        os.replace(tmp_path / "..data_tmp", tmp_path / "..data")

    asyncio.run(watched(reloader, act, lambda: "b" in reloader.current.models))
    assert list(reloader.current.models) == ["b"]


def test_the_watcher_survives_a_folder_that_is_gone_and_comes_back(folder: pathlib.Path) -> None:
    reloader = Reloader(folder)
    reloader.start(now=1.0)

    async def go() -> None:
        await asyncio.to_thread(shutil.rmtree, folder)

    def make() -> None:
        folder.mkdir()
        (folder / "m.yaml").write_text(text("b"), encoding="utf-8")

    async def come() -> None:
        await asyncio.to_thread(make)

    asyncio.run(watched(reloader, go, lambda: reloader.status.rejected > 0))
    assert list(reloader.current.models) == ["a"]
    asyncio.run(watched(reloader, come, lambda: "b" in reloader.current.models))
    assert reloader.status.last_error == ()


def test_the_watcher_of_one_file_takes_its_change(folder: pathlib.Path) -> None:
    reloader = Reloader(folder / "m.yaml")
    reloader.start(now=1.0)

    async def act() -> None:
        atomic_rename(folder)

    asyncio.run(watched(reloader, act, lambda: "b" in reloader.current.models))
    assert list(reloader.current.models) == ["b"]


def test_events_wake_the_watcher_without_waiting_for_the_poll(folder: pathlib.Path) -> None:
    reloader = Reloader(folder)
    reloader.start(now=1.0)

    async def story() -> None:
        stop, looked = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(watch(reloader, stop, seen=lambda status: looked.set(), poll=60.0))
        async with asyncio.timeout(60):
            # The watch may not be armed yet when the first change is made, so it is made again.
            while not looked.is_set():
                write_in_place(folder)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(looked.wait(), 0.5)
        stop.set()
        await asyncio.wait_for(task, 60)

    asyncio.run(story())
    assert list(reloader.current.models) == ["b"]
