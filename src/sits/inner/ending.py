"""Ending tasks for certain."""

from __future__ import annotations

import asyncio

AGAIN_SECONDS = 0.2


async def end(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel tasks and wait until they have ended; what they raise is theirs and goes nowhere.

    They are cancelled again and again: up to Python 3.11 `asyncio.wait_for` loses a cancellation that comes in the moment in
    which what it waits for is done (python/cpython issue 86296), and client libraries are full of it.
    """
    left = {task for task in tasks if task is not None}
    while left:
        for task in left:
            task.cancel()
        done, left = await asyncio.wait(left, timeout=AGAIN_SECONDS)
        for task in done:
            if not task.cancelled():
                task.exception()
