"""A task that is to end ends, also when a library loses the first cancellation."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from sits.ports.ending import end, together


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


class Forgetful:
    """Loses its first cancellation, and says when it has ended."""

    def __init__(self) -> None:
        self.ended = False

    async def work(self) -> None:
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()
            await asyncio.Event().wait()
        finally:
            self.ended = True


async def fails() -> None:
    raise KeyError("at once")


async def ends() -> None:
    await asyncio.sleep(0)


def test_of_what_is_done_together_all_has_ended_when_one_has() -> None:
    async def story() -> None:
        one, other = Forgetful(), Forgetful()
        await together(one.work(), ends())
        with pytest.raises(KeyError, match="at once"):
            await together(other.work(), fails())
        assert one.ended
        assert other.ended

    asyncio.run(asyncio.wait_for(story(), 60))


@pytest.mark.parametrize("times", [1, 3], ids=["once", "again and again"])
def test_who_is_cancelled_has_ended_what_it_does_and_what_it_ends(times: int) -> None:
    async def story() -> None:
        works = [Forgetful(), Forgetful(), Forgetful()]

        async def ending() -> None:
            task = asyncio.create_task(works[2].work())
            await asyncio.sleep(0)
            await end(task)

        doing = asyncio.create_task(together(together(works[0].work(), works[1].work()), ending()))
        for _ in range(times):
            await asyncio.sleep(0.01)
            doing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await doing
        assert [one.ended for one in works] == [True, True, True]

    asyncio.run(asyncio.wait_for(story(), 60))
