"""A data folder has one gateway at a time."""

from __future__ import annotations

import os
import signal
import stat
from pathlib import Path

import pytest

from sits.gateway.claim import FILE, claimed
from sits.inner.errors import Code, SitsError


def test_who_comes_second_hears_who_has_it(tmp_path: Path) -> None:
    data = tmp_path / "数据"
    with claimed(data) as note:
        note("127.0.0.1:8080")
        with pytest.raises(SitsError, match=f"{data} .* pid {os.getpid()} at 127.0.0.1:8080 on ") as refused, claimed(data):
            raise AssertionError("two have it")
        assert refused.value.code is Code.CONFLICT
    with claimed(data) as note:
        note("again")
        assert "at again" in (data / "run" / FILE).read_text()
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_worker_has_it_for_as_long_as_it_lives_and_a_kill_leaves_nothing(tmp_path: Path) -> None:
    with claimed(tmp_path):
        worker = os.fork()
        if worker == 0:
            signal.pause()
            os._exit(0)
    try:
        with pytest.raises(SitsError, match="or a worker that it left behind"), claimed(tmp_path):
            raise AssertionError("two have it")
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    with claimed(tmp_path) as note:
        note("second")
        assert "at second" in (tmp_path / "run" / FILE).read_text()


def test_workers_of_one_that_was_killed_are_waited_for(tmp_path: Path) -> None:
    ready, told = os.pipe()
    parent = os.fork()
    if parent == 0:
        with claimed(tmp_path) as note:
            note("first")
            worker = os.fork()
            if worker == 0:
                os.close(ready)
                signal.pause()
            os.write(told, str(worker).encode())
            os._exit(0)
    os.waitpid(parent, 0)
    worker = int(os.read(ready, 20))
    os.close(ready)
    os.close(told)
    waited: list[str] = []

    def waits(who: str) -> None:
        waited.append(who)
        os.kill(worker, signal.SIGTERM)

    with claimed(tmp_path, waits):
        assert [who.partition(" on ")[0] for who in waited] == [f"pid {parent} at first"]


def test_a_folder_that_cannot_be_made_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SitsError, match="Not a directory"), claimed(tmp_path / "file" / "data"):
        raise AssertionError("it has it")
