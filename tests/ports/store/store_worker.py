"""Another process on a store, for the tests: `python store_worker.py ADDRESS DATA KEY ROLE`; says on stdout what it was told."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from sits.inner.errors import Code, SitsError
from sits.ports.store import ABSENT, Add, Put, Store, open_store


async def reserve(store: Store, key: str) -> None:
    """Ask for 60 places, six at a time; say how many were given."""
    given = 0
    for _ in range(10):
        answers = await asyncio.gather(*(store.add([Add(key, 1, cap=100)]) for _ in range(6)))
        given += sum(answer.refused is None for answer in answers)
    print(given)


async def count(store: Store, key: str) -> None:
    """Count up a value 20 times by compare-and-set."""
    done = 0
    while done < 20:
        entry = await store.get(key)
        value, version = (b"0", ABSENT) if entry is None else (entry.value, entry.version)
        try:
            await store.commit([Put(key, b"%d" % (int(value) + 1), expect=version)])
        except SitsError as error:
            if error.code is not Code.CONFLICT:
                raise
            continue
        done += 1
    print(done)


async def write(store: Store, key: str) -> None:
    """Write pairs until killed, eight at a time; say which pair was acknowledged."""

    async def pairs(lane: int) -> None:
        for number in range(lane, 1_000_000, 8):
            await store.commit([Put(f"{key}/{number}/{side}", b"%d" % number) for side in "ab"])
            print(number, flush=True)

    await asyncio.gather(*map(pairs, range(8)))


async def main() -> None:
    address, data, key, role = sys.argv[1:]
    store = await open_store(address, Path(data), timeout=20.0)
    await {"reserve": reserve, "count": count, "write": write}[role](store, key)
    await store.aclose()


asyncio.run(main())
