"""Readings of a machine: from files as kernels write them, and from the machine that this runs on."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import pytest
from pressure_rig import holding

from sits.resilience.pressure.machine import Lag, Machine

PAGE = os.sysconf("SC_PAGE_SIZE")
GIB = 1024**3


def write(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine of 8 GiB, 2 of them free."""
    write(tmp_path, "proc/meminfo", f"MemTotal: {8 * GIB // 1024} kB\nMemFree: 1 kB\nMemAvailable: {2 * GIB // 1024} kB\n")
    write(tmp_path, "proc/self/statm", f"999 {GIB // PAGE} 1 1 0 1 0\n")
    write(tmp_path, "proc/stat", "cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1 1 1 1 1 1 1\n")
    return tmp_path


def test_memory_is_of_the_machine(root: Path) -> None:
    machine = Machine(root)
    assert (machine.process_memory(), machine.host_memory()) == (0.125, 0.75)


@pytest.mark.parametrize(
    ("group", "files"),
    [
        pytest.param("0::/a/b", {"a/memory.max": 4 * GIB, "a/memory.current": 3 * GIB}, id="version 2"),
        pytest.param("0::/../a/b", {"memory.max": 4 * GIB, "memory.current": 3 * GIB}, id="in a container"),
        pytest.param(
            "3:memory:/a", {"memory/a/memory.limit_in_bytes": 4 * GIB, "memory/a/memory.usage_in_bytes": 3 * GIB}, id="version 1"
        ),
    ],
)
def test_memory_is_of_the_control_group_where_that_has_less(root: Path, group: str, files: dict[str, int]) -> None:
    write(root, "proc/self/cgroup", f"1:name=systemd:/\n{group}\n")
    write(root, "sys/fs/cgroup/a/b/memory.max", "max\n")
    for path, number in files.items():
        write(root, f"sys/fs/cgroup/{path}", f"{number}\n")
    machine = Machine(root)
    assert (machine.process_memory(), machine.host_memory()) == (0.25, 0.75)


def test_the_processors_are_busy_as_a_share_of_the_time_since_the_last_look(root: Path) -> None:
    machine = Machine(root)
    assert machine.host_cpu() is None
    assert machine.host_cpu() is None, "no time has passed"
    write(root, "proc/stat", "cpu  180 0 110 705 105 0 0 0 0 0\n")
    assert machine.host_cpu() == pytest.approx(0.9)


def test_the_memory_of_local_models_is_that_of_the_processes_that_hold_a_lease(root: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    machine = Machine(root, run)
    assert machine.local_memory() == 0.0
    process = holding(run / "m.json")
    write(root, f"proc/{process.pid}/statm", f"1 {2 * GIB // PAGE} 1\n")
    try:
        assert machine.local_memory() == 0.25
        machine.local_limit = 4 * GIB
        assert machine.local_memory() == 0.5
    finally:
        process.kill()
        process.communicate()
    assert machine.local_memory() == 0.0


def test_accelerators_are_read_from_what_their_drivers_write(root: Path) -> None:
    machine = Machine(root)
    assert (machine.accelerator_memory(), machine.accelerator_use()) == (None, None)
    for card, used, busy in (("card0", 2 * GIB, 30), ("card1", 6 * GIB, 70)):
        write(root, f"sys/class/drm/{card}/device/mem_info_vram_used", f"{used}\n")
        write(root, f"sys/class/drm/{card}/device/mem_info_vram_total", f"{8 * GIB}\n")
        write(root, f"sys/class/drm/{card}/device/gpu_busy_percent", f"{busy}\n")
    write(root, "sys/class/drm/card2/device/mem_info_vram_used", "1\n")
    assert (machine.accelerator_memory(), machine.accelerator_use()) == (0.75, 0.7)


def test_what_the_machine_does_not_tell_is_absent(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    assert [machine.process_memory(), machine.host_memory(), machine.host_cpu(), machine.local_memory()] == [None] * 4


def test_this_machine_tells() -> None:
    machine = Machine()
    machine.host_cpu()
    for share in (machine.process_memory(), machine.host_memory()):
        assert share is not None
        assert 0 < share < 1


def test_a_loop_that_is_held_up_is_late() -> None:
    async def story() -> None:
        loop = asyncio.get_running_loop()
        lag = Lag(loop)
        assert lag.take() is None
        lag.start()
        lag.start()
        quiet = loop.create_future()
        loop.call_later(0.12, quiet.set_result, None)
        await quiet
        lag.take()
        until = time.monotonic() + 0.3
        while time.monotonic() < until:
            pass
        late = lag.take()
        assert late is not None
        assert late >= 240
        await asyncio.sleep(0)
        lag.stop()
        assert lag.take() is None

    asyncio.run(story())
