"""A defect of whoever reads the files, or judges them, ends nobody who watches: it is said, and the next ones are taken."""

from __future__ import annotations

import asyncio
import logging
import pathlib
from collections.abc import AsyncIterator, Iterator

import pytest

from sits.resources import watch as watching
from sits.resources.problem import Fault
from sits.resources.reading import Reading, read
from sits.resources.snapshot import Snapshot
from sits.resources.watch import Reloader, Status, watch


def write(folder: pathlib.Path, name: str) -> None:
    draft = folder.parent / "draft"
    draft.write_text(f"kind: Model\nmetadata: {{name: {name}}}\nspec: {{engine: vllm, endpoint: 'http://h'}}\n")
    draft.replace(folder / "m.yaml")


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    made = tmp_path / "conf"
    made.mkdir()
    write(made, "good")
    return made


def judge(snapshot: Snapshot) -> Iterator[tuple[str, str, Fault]]:
    if "bad" in snapshot.models:
        raise ZeroDivisionError("float division by zero")
    return iter(())


def reading(path: pathlib.Path) -> Reading:
    """`read`, and a defect of it where the model is called deep."""
    found = read(path)
    if any(one.resource.metadata.name == "deep" for one in found.declared):
        raise RecursionError("maximum recursion depth exceeded")
    return found


DEFECTS = [
    pytest.param("bad", "a defect: ZeroDivisionError: float division by zero", id="who judges"),
    pytest.param("deep", "a defect: RecursionError: maximum recursion depth exceeded", id="who reads"),
]


@pytest.mark.parametrize(("name", "said"), DEFECTS)
def test_the_watcher_outlives_a_defect_and_takes_what_comes_after_it(
    name: str, said: str, folder: pathlib.Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "read", reading)
    reloader = Reloader(folder, judge=judge)
    first = reloader.start(now=1.0)
    heard: list[Status] = []

    async def story() -> None:
        stop, told = asyncio.Event(), asyncio.Event()

        def seen(status: Status) -> None:
            heard.append(status)
            told.set()

        task = asyncio.create_task(watch(reloader, stop, seen=seen, clock=lambda: 2.0, poll=0.05))
        for each in (name, "better"):
            write(folder, each)
            # Of a defect of reading it is told at every look, also at one that was under way when the next file came.
            while not (reloader.status.last_error if each == name else list(reloader.current.models) == [each]):
                told.clear()
                await asyncio.wait_for(told.wait(), 60)
            if each == name:
                assert reloader.current is first
                assert [problem.message for problem in reloader.status.last_error] == [said]
                assert reloader.status.last_error_at == 2.0
        stop.set()
        await asyncio.wait_for(task, 60)

    asyncio.run(story())
    assert list(reloader.current.models) == ["better"]
    assert (reloader.status.rejected, reloader.status.last_error) == (1, ())
    # Once, however often it was looked at.
    told = [one for one in caplog.records if one.levelno == logging.ERROR]
    assert [(one.name, one.exc_info is not None) for one in told] == [("sits.resources", True)]
    assert said in told[0].getMessage()


def test_a_subscriber_that_fails_is_told_by_status_and_the_swap_stays(folder: pathlib.Path) -> None:
    reloader = Reloader(folder)
    reloader.start(now=1.0)

    def fails(old: Snapshot | None, new: Snapshot) -> None:
        raise KeyError("gone")

    reloader.on_change(fails)
    write(folder, "next")
    status = reloader.reload(now=2.0)
    assert (status.version, [problem.message for problem in status.last_error]) == (2, ["a defect: KeyError: 'gone'"])
    assert list(reloader.current.models) == ["next"]


def test_where_the_system_watches_no_more_files_they_are_looked_at_all_the_same(
    folder: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import watchfiles

    async def full(*_: object, **__: object) -> AsyncIterator[None]:
        raise OSError(28, "inotify watch limit reached")
        yield

    monkeypatch.setattr(watchfiles, "awatch", full)
    reloader = Reloader(folder)
    reloader.start(now=1.0)

    async def story() -> None:
        stop, told = asyncio.Event(), asyncio.Event()
        task = asyncio.create_task(watch(reloader, stop, seen=lambda _: told.set(), poll=0.02))
        await asyncio.sleep(0)
        write(folder, "next")
        await asyncio.wait_for(told.wait(), 60)
        stop.set()
        await asyncio.wait_for(task, 60)

    asyncio.run(story())
    assert list(reloader.current.models) == ["next"]
