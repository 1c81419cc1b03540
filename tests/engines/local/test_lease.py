"""Leases: whether a model's process lives is what the kernel says, not what a file says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sits.engines.local.lease import Gate, Held, Lease, enter, holder, living, read

HOLD = """
import os, sys
from pathlib import Path
from sits.engines.local.lease import Held, Lease
held = Held(Path(sys.argv[1]))
held.write(Lease("http://127.0.0.1:1", "key", os.getpid(), 7, "m", left=len(sys.argv) > 2))
print(os.getpid(), flush=True)
sys.stdin.read()
"""


def hold(path: Path, *more: str) -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(path), *more], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert int(process.stdout.readline()) == process.pid
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.communicate()


def test_a_lease_lives_as_long_as_its_process(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    assert (holder(path), living(path), read(path)) == (None, None, None)
    process = hold(path)
    said = Lease("http://127.0.0.1:1", "key", process.pid, 7, "m")
    assert (holder(path), living(path)) == (process.pid, said)
    assert path.stat().st_mode & 0o777 == 0o600
    end(process)
    assert (holder(path), living(path), read(path)) == (None, None, said)


def test_two_cannot_hold_one_lease_and_looking_does_not_give_it_up(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    process = hold(path)
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            Held(path)
        assert holder(path) == process.pid
    end(process)
    Held(path)


def test_one_that_is_leaving_does_not_live(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    process = hold(path, "left")
    assert (holder(path), living(path)) == (process.pid, None)
    end(process)


@pytest.mark.parametrize("text", ["", "{", '{"address":1}', "\x00"])
def test_a_file_that_says_nothing_readable_is_no_lease(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    assert (read(path), living(path)) == (None, None)


def test_a_gate_is_shut_only_when_nobody_is_in_and_lets_nobody_in_then(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    gate = Gate(path)
    first, second = enter(path), enter(path)
    assert first is not None
    assert second is not None
    assert not gate.shut()
    os.close(first)
    assert not gate.shut()
    os.close(second)
    assert gate.shut()
    assert enter(path) is None
    gate.open()
    last = enter(path)
    assert last is not None
    os.close(last)


def test_a_shorter_lease_over_a_longer_one_is_readable(tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    held = Held(path)
    for name in ("a model with a long name", "m"):
        said = Lease("http://127.0.0.1:1", "key", os.getpid(), 7, name)
        held.write(said)
        assert read(path) == said
