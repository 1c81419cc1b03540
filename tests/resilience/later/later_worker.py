"""A process that takes a request on and never answers it: `python later_worker.py DATA`; says its id on stdout."""

from __future__ import annotations

import asyncio
import secrets
import sys
from pathlib import Path

from sits.ports.store import open_store
from sits.resilience.later import Later, Made, Wanted


async def never(job: Wanted) -> Made:
    await asyncio.Event().wait()
    raise AssertionError("nobody sets it")


async def uncalled(url: str, id: str, made: Made) -> bool:
    return False


async def main() -> None:
    store = await open_store("sqlite", Path(sys.argv[1]))
    later = Later(store, never, uncalled, owner="killed", token=lambda: secrets.token_urlsafe(24), lease=0.6)
    await later.start()
    job = Wanted("chat", b"/v1/chat/completions", [], "问".encode(), "alice", "r", 60.0)
    print(await later.accept(job), flush=True)
    await asyncio.Event().wait()


asyncio.run(main())
