"""Several processes on one embedded index, and processes that are killed while they write."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from sits.ports.vectors import Clause, Item, open_vectors

_WORKER = Path(__file__).with_name("vector_worker.py")


@contextmanager
def worker(folder: Path, name: str, count: int) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(_WORKER), str(folder), name, str(count)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def expected(name: str, count: int) -> list[str]:
    """The ids that a worker leaves after so many turns."""
    return [f"{name} {number:05}" for number in range(count) if number % 10 != 5 or number // 10 * 10 + 9 >= count]


def is_sound(folder: Path) -> bool:
    connection = sqlite3.connect(folder / "vectors" / "items.db")
    try:
        rows: list[tuple[str]] = connection.execute("PRAGMA integrity_check").fetchall()
        return rows == [("ok",)]
    finally:
        connection.close()


def test_what_a_process_acknowledged_is_there_after_it_was_killed(tmp_path: Path) -> None:
    async def left(turn: int) -> list[str]:
        index = await open_vectors("embedded", tmp_path, timeout=20.0)
        ids = [key for key in await index.ids("c", "p", limit=10_000) if key.startswith(f"w{turn} ")]
        hits = await index.search("c", "p", np.ones(8, dtype=np.float32), k=1000, where=[Clause("by", "eq", f"w{turn}")])
        assert sorted(hit.id for hit in hits) == ids
        await index.aclose()
        return ids

    for turn, turns in enumerate((1, 37, 90)):
        with worker(tmp_path, f"w{turn}", 100_000) as process:
            assert process.stdout is not None
            for _ in range(turns):
                last = int(process.stdout.readline())
            process.kill()
            rest = process.stdout.read().splitlines()
        # Lines were still on their way; each was written in one piece.
        acknowledged = [last, *map(int, rest)][-1] + 1
        ids = asyncio.run(left(turn))
        # It may have got on with the next turn: put an item, and then perhaps deleted one.
        before, after = expected(f"w{turn}", acknowledged), expected(f"w{turn}", acknowledged + 1)
        assert ids in (before, [*before, after[-1]], after)
        assert is_sound(tmp_path)


def test_several_processes_write_and_search_at_once_and_none_loses_or_hides_anything(tmp_path: Path) -> None:
    async def follow() -> list[list[str]]:
        """Search all the while: what was once found of an item that is never deleted is found for ever."""
        index = await open_vectors("embedded", tmp_path, timeout=20.0)
        await index.create("c", 8)
        await index.upsert("c", "p", [Item("mine", np.ones(8, dtype=np.float32), {"by": "me"})])
        seen = 0
        with worker(tmp_path, "one", 60) as one, worker(tmp_path, "two", 60) as two:
            while one.poll() is None or two.poll() is None:
                count = len(await index.search("c", "p", np.ones(8, dtype=np.float32), k=1000, where=[Clause("n", "lt", 5)]))
                assert count >= seen
                seen = count
                await asyncio.sleep(0.005)
            assert (one.returncode, two.returncode) == (0, 0)
        found = await index.search("c", "p", np.ones(8, dtype=np.float32), k=1000)
        ids = await index.ids("c", "p")
        await index.aclose()
        return [sorted(hit.id for hit in found), ids]

    wanted = sorted(["mine", *expected("one", 60), *expected("two", 60)])
    assert asyncio.run(follow()) == [wanted, wanted]
    assert is_sound(tmp_path)
