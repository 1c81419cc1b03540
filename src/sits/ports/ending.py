"""Ending tasks for certain.

Up to Python 3.11 `asyncio.wait_for` loses a cancellation that comes in the moment in which what it waits for is done
(python/cpython issue 86296), and client libraries are full of it. So tasks are cancelled here until they have ended. A
`TaskGroup` cancels its tasks once, and waits without end for one that has lost that: `together` is for what asks such libraries.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

AGAIN_SECONDS = 0.2


async def end(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel tasks, again and again, and return when they have ended; what they raise is theirs and goes nowhere.

    Whoever is cancelled meanwhile is so when they have ended.
    """
    left = {task for task in tasks if task is not None}
    cancelled: asyncio.CancelledError | None = None
    while left:
        for task in left:
            task.cancel()
        try:
            await asyncio.wait(left, timeout=AGAIN_SECONDS)
        except asyncio.CancelledError as error:
            cancelled = error
        done = {task for task in left if task.done()}
        left -= done
        for task in done:
            if not task.cancelled():
                task.exception()
    if cancelled is not None:
        raise cancelled


async def together(*works: Coroutine[Any, Any, None]) -> None:
    """Do all of this at once until one of them comes to its end; then the others have ended, too, and so they have when this is
    cancelled.

    Raises:
        Exception: what the first one that failed has raised.
    """
    tasks = [asyncio.create_task(work) for work in works]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(*tasks)
    for task in tasks:
        if task in done and not task.cancelled():
            task.result()
