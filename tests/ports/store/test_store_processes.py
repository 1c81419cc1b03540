"""Processes that share a store: exact together, and nothing acknowledged is lost when one is killed."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from sits.ports.store import Add, every, open_store

_WORKER = str(Path(__file__).with_name("store_worker.py"))


def worker(address: str, data: Path, key: str, role: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, _WORKER, address, str(data), key, role], stdout=subprocess.PIPE, text=True)


def together(address: str, data: Path, key: str, role: str) -> list[int]:
    """What two processes of a role say when they run at the same time."""
    workers = [worker(address, data, key, role) for _ in range(2)]
    said = [process.communicate(timeout=60)[0] for process in workers]
    assert [process.returncode for process in workers] == [0, 0]
    return [int(text) for text in said]


def test_two_processes_admit_the_cap_together(address: str, tmp_path: Path) -> None:
    key = f"processes/{tmp_path.name}"
    given = together(address, tmp_path, key, "reserve")
    assert sum(given) == 100
    total = asyncio.run(_total(address, tmp_path, key))
    assert total == 100


async def _total(address: str, data: Path, key: str) -> int:
    store = await open_store(address, data)
    try:
        return (await store.add([Add(key, 0)])).totals[0]
    finally:
        await store.aclose()


def test_two_processes_lose_no_update(address: str, tmp_path: Path) -> None:
    key = f"processes/{tmp_path.name}"
    assert together(address, tmp_path, key, "count") == [20, 20]
    assert asyncio.run(_values(address, tmp_path, key)) == {key: b"40"}


async def _values(address: str, data: Path, prefix: str) -> dict[str, bytes]:
    store = await open_store(address, data)
    try:
        return {entry.key: entry.value async for entry in every(store, prefix)}
    finally:
        await store.aclose()


@pytest.mark.parametrize("lines", [1, 40, 150])
def test_what_was_acknowledged_outlives_a_killed_writer(address: str, tmp_path: Path, lines: int) -> None:
    key = f"killed/{tmp_path.name}"
    process = worker(address, tmp_path, key, "write")
    assert process.stdout is not None
    said = [process.stdout.readline() for _ in range(lines)]
    process.kill()
    said += process.stdout.read().splitlines()
    process.wait()
    process.stdout.close()
    acknowledged = {int(line) for line in said}
    assert len(acknowledged) >= lines
    kept = asyncio.run(_values(address, tmp_path, key))
    halves = [{int(name.split("/")[-2]) for name in kept if name.endswith(side)} for side in "ab"]
    assert halves[0] == halves[1], "half a commit is there"
    assert acknowledged <= halves[0]
