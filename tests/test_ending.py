"""A task that is to end ends, also when a library loses the first cancellation."""

from __future__ import annotations

import asyncio
import contextlib

from sits.gateway.ending import end


def test_a_task_that_loses_a_cancellation_is_cancelled_again() -> None:
    async def story() -> int:
        lost = 0

        async def stubborn() -> None:
            nonlocal lost
            while True:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    lost += 1
                    if lost == 3:
                        raise

        async def failing() -> None:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            raise KeyError("while ending")

        tasks = [asyncio.create_task(stubborn()), asyncio.create_task(failing())]
        await asyncio.sleep(0)
        await end(*tasks, None)
        assert all(task.done() for task in tasks)
        return lost

    assert asyncio.run(story()) == 3
