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
    with claimed(data, "127.0.0.1:8080"):
        with pytest.raises(SitsError, match=f"{data} .* pid {os.getpid()} at 127.0.0.1:8080 on ") as refused, claimed(data, "x"):
            raise AssertionError("two have it")
        assert refused.value.code is Code.CONFLICT
    with claimed(data, "again"):
        assert "at again" in (data / "run" / FILE).read_text()
    assert stat.S_IMODE(data.stat().st_mode) == 0o700


def test_a_worker_has_it_for_as_long_as_it_lives_and_a_kill_leaves_nothing(tmp_path: Path) -> None:
    with claimed(tmp_path, "first"):
        worker = os.fork()
        if worker == 0:
            signal.pause()
            os._exit(0)
    try:
        with pytest.raises(SitsError, match="or a worker that it left behind"), claimed(tmp_path, "second"):
            raise AssertionError("two have it")
    finally:
        os.kill(worker, signal.SIGKILL)
        os.waitpid(worker, 0)
    with claimed(tmp_path, "second"):
        assert "at second" in (tmp_path / "run" / FILE).read_text()


def test_a_folder_that_cannot_be_made_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SitsError, match="Not a directory"), claimed(tmp_path / "file" / "data", "x"):
        raise AssertionError("it has it")
