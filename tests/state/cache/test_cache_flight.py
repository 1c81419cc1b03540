"""Equal questions asked at the same time are asked once, and nobody's failure is another's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from sits.inner.sweep import Sweep
from sits.state.cache.answer import Answer
from sits.state.cache.flight import Flights, Seat

ANSWER = Answer("chat", "你好".encode(), 0.0, 100.0)
KEY = b"k" * 32


class Rig:
    """Flights on a real loop and a virtual clock."""

    def __init__(self, most: int = 100) -> None:
        self.sweep = Sweep()
        self.flights = Flights(asyncio.get_running_loop().create_future, self.sweep, most)
        self.seats: list[Seat] = []
        self.waits: list[asyncio.Task[str]] = []

    async def join(self, count: int, wait: float = 30.0, now: float = 0.0) -> None:
        for _ in range(count):
            seat = self.flights.join(KEY, now, wait)
            self.seats.append(seat)
            self.waits.append(asyncio.ensure_future(seat.wait()))
        await self.turn()

    async def turn(self) -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    @property
    def states(self) -> list[str]:
        return [seat.state for seat in self.seats]

    @property
    def empty(self) -> bool:
        return (len(self.flights), self.flights.waiting, len(self.sweep)) == (0, 0, 0)


def run(story: Coroutine[Any, Any, None]) -> None:
    asyncio.run(story)


def test_a_hundred_equal_questions_are_asked_once_and_all_get_the_answer() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.join(100)
        assert rig.states == ["leads"] + ["waits"] * 99
        rig.seats[0].land(ANSWER)
        assert await asyncio.gather(*rig.waits[1:]) == ["landed"] * 99
        assert [seat.answer for seat in rig.seats] == [ANSWER] * 100
        for seat in rig.seats:
            seat.leave()
        assert rig.empty

    run(story())


def test_other_questions_do_not_wait() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.join(1)
        assert rig.flights.join(b"o" * 32, 0.0, 30.0).state == "leads"

    run(story())


def test_when_the_leader_fails_the_next_in_line_leads_and_nobody_else_notices() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.join(4)
        rig.seats[0].leave()
        await rig.turn()
        assert rig.states == ["alone", "leads", "waits", "waits"]
        assert await rig.waits[1] == "leads"
        rig.seats[1].leave()
        rig.seats[2].land(ANSWER)
        assert await rig.waits[3] == "landed"
        assert rig.empty

    run(story())


def test_a_client_that_leaves_while_it_waits_is_out_of_the_line() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.join(3)
        rig.waits[1].cancel()
        await rig.turn()
        assert rig.waits[1].cancelled()
        rig.seats[0].leave()
        assert await rig.waits[2] == "leads"
        rig.seats[2].leave()
        assert rig.empty

    run(story())


def test_one_that_is_made_leader_and_has_gone_before_it_knows_hands_over_as_well() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.join(3)
        rig.seats[0].leave()
        rig.seats[1].leave()
        assert await rig.waits[2] == "leads"

    run(story())


def test_an_answer_that_may_not_be_shared_lets_all_others_go_at_once() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.join(3)
        rig.seats[0].scatter()
        assert await asyncio.gather(*rig.waits[1:]) == ["alone", "alone"]
        assert rig.empty
        assert rig.flights.join(KEY, 0.0, 30.0).state == "leads"

    run(story())


def test_nobody_waits_longer_than_it_would_and_the_flight_goes_on_without_it() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.join(2, wait=10.0)
        await rig.join(1, wait=20.0)
        rig.sweep.run(9.9)
        assert rig.states == ["leads", "waits", "waits"]
        rig.sweep.run(10.0)
        assert await rig.waits[1] == "alone"
        assert rig.states == ["leads", "alone", "waits"]
        rig.seats[1].land(ANSWER)  # It goes on alone: its answer is its own.
        assert rig.seats[2].state == "waits"
        rig.seats[0].land(ANSWER)
        assert await rig.waits[2] == "landed"
        assert rig.empty

    run(story())


@pytest.mark.parametrize("wait", [0.0, -1.0])
def test_whoever_would_not_wait_asks_on_its_own(wait: float) -> None:
    async def story() -> None:
        rig = Rig()
        await rig.join(1)
        await rig.join(1, wait=wait)
        assert rig.states == ["leads", "alone"]

    run(story())


def test_there_is_a_limit_to_how_many_wait() -> None:
    async def story() -> None:
        rig = Rig(most=2)
        await rig.join(5)
        assert rig.states == ["leads", "waits", "waits", "alone", "alone"]

    run(story())


def test_leaving_twice_or_after_the_end_changes_nothing() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.join(2)
        rig.seats[0].land(ANSWER)
        for _ in range(2):
            for seat in rig.seats:
                seat.leave()
        rig.seats[0].land(ANSWER)
        rig.seats[0].scatter()
        assert rig.states == ["landed", "landed"]
        assert rig.empty

    run(story())


def test_a_chain_of_failures_reaches_everybody_in_turn() -> None:
    async def story() -> None:
        rig = Rig()
        await rig.join(50)
        for seat in rig.seats:
            assert seat.state == "leads"
            seat.leave()
        assert rig.empty

    run(story())
