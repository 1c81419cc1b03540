"""After a kill -9 a request that was taken on is answered by whoever comes next."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from later_world import made, run

from sits.ports.store import open_store
from sits.resilience.later import Later, Made, Wanted

WORKER = Path(__file__).with_name("later_worker.py")


@run
async def test_what_a_killed_process_had_taken_on_is_resumed(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, str(WORKER), str(tmp_path), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    id = (await process.stdout.readline()).decode().strip()
    process.kill()
    await process.wait()
    store = await open_store("sqlite", tmp_path)
    asked: list[bytes] = []
    done = asyncio.Event()

    async def ask(job: Wanted) -> Made:
        asked.append(job.body)
        return made("好")

    async def call(url: str, id: str, answer: Made) -> bool:
        raise AssertionError("nobody wants to be called")

    async def seen(seconds: float) -> None:
        if asked and not len(later):
            done.set()
        await asyncio.sleep(seconds)

    later = Later(store, ask, call, owner="next", token=lambda: "", sleep=seen, lease=0.6)
    await later.start()
    try:
        async with asyncio.timeout(60):
            await done.wait()
        assert (await later.find(id, "alice"), await later.find(id, "bob"), asked) == (made("好"), None, ["问".encode()])
    finally:
        await later.aclose()
        await store.aclose()
