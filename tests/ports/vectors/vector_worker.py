"""A process that writes into an embedded index and prints what was acknowledged: `vector_worker.py FOLDER NAME COUNT`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import numpy as np

from sits.ports.vectors import Clause, Item, open_vectors


async def work(folder: Path, name: str, count: int) -> None:
    index = await open_vectors("embedded", folder, timeout=20.0)
    await index.create("c", 8)
    row = np.arange(1, 9, dtype=np.float32)
    for number in range(count):
        key = f"{name} {number:05}"
        await index.upsert("c", "p", [Item(key, row + number % 7, {"by": name, "n": number})])
        if number % 10 == 9:
            await index.delete("c", "p", [f"{name} {number - 4:05}"])
        (hit,) = await index.search("c", "p", row, k=1, where=[Clause("n", "eq", number), Clause("by", "eq", name)])
        assert hit.id == key
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()
    await index.aclose()


if __name__ == "__main__":
    asyncio.run(work(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])))
