"""Blocking work beside the event loop, on a thread of its own.

Not `asyncio.to_thread`: its pool is shared and small, and the interpreter waits for it at exit, so that one slow download would
hold up every other use and the shutdown. These threads are daemons, and one that nobody awaits any more ends by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def aside(work: Callable[[], T], name: str) -> T:
    """What `work` returns or raises. Cancelling the wait does not stop the work."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def tell(settle: Callable[[], None]) -> None:
        if not outcome.done():
            settle()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:  # it belongs to whoever awaits
            settle: Callable[[], None] = _setter(outcome.set_exception, error)
        else:
            settle = _setter(outcome.set_result, result)
        with contextlib.suppress(RuntimeError):  # the loop has been closed: nobody is left to tell
            loop.call_soon_threadsafe(tell, settle)

    threading.Thread(target=run, name=name, daemon=True).start()
    return await outcome


def _setter(settle: Callable[[T], None], value: T) -> Callable[[], None]:
    return lambda: settle(value)
