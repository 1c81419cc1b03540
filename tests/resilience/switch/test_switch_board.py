"""The facts of switches get around by bus and by store, whichever of the two there is, and outlive both being away."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import Bus
from sits.ports.bus.log import Log
from sits.ports.bus.memory import MemoryBus
from sits.ports.store.base import Change, Entry, Put, Store
from sits.ports.store.memory import MemoryStore, Shelf
from sits.resilience.switch.board import AUDIT, EVENTS, PREFIX, Board, noted_by
from sits.resilience.switch.state import Course, Event, Phase
from sits.resilience.switch.watching import Row, rows_of
from sits.state.crdt import Round, encode

KEY = "k" * 32
SOON = 30.0


def wall() -> float:
    return 1_764_000_000.0


def on_loop(story: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @functools.wraps(story)
    def test() -> None:
        asyncio.run(story())

    del test.__wrapped__
    return test


class Away(MemoryStore):
    """A store that can be away, or lose a race."""

    away = False
    racer: Round | None = None

    async def get(self, key: str) -> Entry | None:
        self._check_there()
        return await super().get(key)

    async def scan(self, prefix: str, *, after: str = "", limit: int = 1000) -> list[Entry]:
        self._check_there()
        return await super().scan(prefix, after=after, limit=limit)

    async def commit(self, changes: Sequence[Change]) -> int:
        self._check_there()
        racer, self.racer = self.racer, None
        if racer is not None:
            await super().commit([Put(PREFIX + KEY, encode(racer))])
        return await super().commit(changes)

    def _check_there(self) -> None:
        if self.away:
            raise SitsError(Code.STATE_UNAVAILABLE, "away")


def store() -> Away:
    return Away(wall, shelf=Shelf())


class Place:
    """A board of one process, and what it heard."""

    def __init__(self, node: str, store: Store | None = None, log: Log | None = None) -> None:
        self.heard: list[str] = []
        self._log = log

        def hear(key: str, events: list[Event]) -> None:
            self.heard += [event.what for event in events]

        connect = self._bus if log is not None else None
        self.board = Board(store, connect, node=node, incarnation="1", wall=wall, heard=hear)

    async def _bus(self) -> Bus:
        return MemoryBus(self._log)

    def do(self, *whats: str) -> None:
        for what in whats:
            course, note = self.course, noted_by("op", "", wall())
            delta = course.reach(Phase.SHIFT, 1, note) if what == "shift" else getattr(course, what)(note)
            self.board.note(KEY, delta)

    @property
    def course(self) -> Course:
        return self.board.course(KEY)


async def until(met: Callable[[], bool]) -> None:
    async with asyncio.timeout(SOON):
        while not met():  # noqa: ASYNC110 - the bus sends no event for this
            await asyncio.sleep(0.01)


@on_loop
async def test_what_is_noted_on_one_is_heard_on_the_other_by_the_bus_and_announced_once() -> None:
    log = Log(wall=wall)
    one, two = Place("one", log=log), Place("二", log=log)
    listener = await MemoryBus(log).subscribe(EVENTS)
    one.do("start")
    for place in (one, two):
        place.board.start()
    await until(lambda: two.course.live)
    two.do("abort")
    await two.board.hurry()
    await until(lambda: one.course.rolled_back)
    assert (one.heard, two.heard) == (["abort"], ["start"])
    for place in (one, two, one, two):
        await place.board.announce()
    told = [(await anext(listener)).id for _ in range(2)]
    assert told == [f"{KEY}-1-start", f"{KEY}-1-abort"]
    for place in (one, two):
        await place.board.aclose()


@on_loop
async def test_rows_get_around_by_the_bus_and_those_of_an_old_generation_are_none() -> None:
    log = Log(wall=wall)
    one, two = Place("one", log=log), Place("two", log=log)
    one.do("start")
    one.board.tell(KEY, Row(1000, ready=2).packed(7))
    for place in (one, two):
        place.board.start()
    await until(lambda: "one~1" in two.board.rows(KEY))
    assert rows_of(two.board.rows(KEY))["one~1"] == (7, Row(1000, ready=2))
    two.do("abort", "start")
    assert two.board.rows(KEY) == {}
    for place in (one, two):
        await place.board.aclose()


@on_loop
async def test_workers_hear_of_each_other_by_the_store_and_one_that_comes_back_knows_all() -> None:
    shared = store()
    one, two = Place("one", shared), Place("two", shared)
    one.do("start", "shift")
    one.board.tell(KEY, Row(4001, ready=3).packed(2))
    await one.board.save(rows=True)
    await two.board.load()
    assert (two.course.state, two.course.step) == ("shift", 1)
    assert rows_of(two.board.rows(KEY))["one~1"][1].ready == 3
    two.do("abort")
    await two.board.save(rows=True)
    again = Place("one", shared)
    await again.board.load()
    assert again.course.rolled_back
    assert [event.what for event in await again.board.audit(KEY)] == ["start", "shift, step 2", "abort"]


@on_loop
async def test_two_that_write_at_once_keep_what_both_noted() -> None:
    shared = store()
    one, two = Place("one", shared), Place("two", shared)
    one.do("start")
    await one.board.save(rows=False)
    await two.board.load()
    one.do("shift")
    two.do("promote")
    shared.racer = one.course.round
    await two.board.save(rows=False)
    entry = await shared.get(PREFIX + KEY)
    assert entry is not None
    assert two.course.promoted
    assert (two.course.phase, two.course.step) == (Phase.SHIFT, 1)
    fresh = Place("three", shared)
    await fresh.board.load()
    assert fresh.course.round == two.course.round


@on_loop
async def test_what_the_store_missed_while_it_was_away_is_written_when_it_is_back() -> None:
    shared = store()
    one = Place("one", shared)
    shared.away = True
    one.do("start", "abort")
    for _ in range(2):
        with pytest.raises(SitsError, match="away"):
            await one.board.save(rows=False)
    shared.away = False
    await one.board.save(rows=False)
    two = Place("two", shared)
    await two.board.load()
    assert two.course.rolled_back
    assert len(await shared.scan(AUDIT)) == 2


@on_loop
async def test_an_old_or_unreadable_entry_of_the_store_takes_nothing_away() -> None:
    shared = store()
    one = Place("one", shared)
    one.do("start", "shift")
    await one.board.save(rows=False)
    for content in (encode(Round(1, {})), b"garbage"):
        await shared.commit([Put(PREFIX + KEY, content)])
        await one.board.load()
        assert one.course.state == "shift"
    one.do("promote")
    await one.board.save(rows=False)
    two = Place("two", shared)
    await two.board.load()
    assert two.course.round == one.course.round


@on_loop
async def test_without_store_and_bus_a_process_is_alone_and_all_works() -> None:
    one = Place("one")
    one.board.start()
    one.do("start")
    await one.board.hurry()
    await one.board.load()
    await one.board.save(rows=True)
    await one.board.announce()
    assert [event.what for event in await one.board.audit(KEY)] == ["start"]
    await one.board.aclose()
