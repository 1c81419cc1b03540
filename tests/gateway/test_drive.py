"""A driven coroutine runs at once, goes on where its wait ends, and needs no task."""

from __future__ import annotations

import asyncio

from sits.gateway.drive import Drive, Moment


def test_the_first_step_runs_before_drive_returns_and_the_rest_within_happen() -> None:
    seen: list[str] = []
    moment = Moment()

    async def work() -> None:
        seen.append("begun")
        await moment
        seen.append("woken")

    drive = Drive(work())
    assert (seen, drive.done) == (["begun"], False)
    moment.happen()
    assert (seen, drive.done) == (["begun", "woken"], True)


def test_a_moment_that_has_happened_is_not_waited_for() -> None:
    moment = Moment()
    moment.happen()

    async def work() -> None:
        await moment
        await moment

    assert Drive(work()).done


def test_waits_may_follow_each_other_and_nest() -> None:
    moments = [Moment() for _ in range(3)]
    seen: list[int] = []

    async def inner(number: int) -> None:
        await moments[number]
        seen.append(number)

    async def work() -> None:
        for number in range(3):
            await inner(number)

    drive = Drive(work())
    for moment in moments:
        moment.happen()
    assert (seen, drive.done) == ([0, 1, 2], True)


def test_futures_of_the_loop_may_be_awaited_too() -> None:
    async def main() -> list[object]:
        loop = asyncio.get_running_loop()
        future, over, seen = loop.create_future(), loop.create_future(), []

        async def work() -> None:
            seen.append(await future)
            over.set_result(None)

        Drive(work())
        loop.call_soon(future.set_result, "answer")
        await over
        return seen

    assert asyncio.run(main()) == ["answer"]


def test_an_exception_of_a_future_is_raised_where_it_is_awaited() -> None:
    async def main() -> str:
        loop = asyncio.get_running_loop()
        future, over = loop.create_future(), loop.create_future()

        async def work() -> None:
            try:
                await future
            except ValueError as error:
                over.set_result(str(error))

        Drive(work())
        loop.call_soon(future.set_exception, ValueError("broken"))
        return await over

    assert asyncio.run(main()) == "broken"
