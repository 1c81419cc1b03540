"""Reports on their way: clocks that are set, frames that nobody takes, odd bytes, and nothing more once it is over."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from embedding_kit import story

from sits.gateway.following import LARGEST, OLD_SECONDS, SUBJECT, WINDOW_SECONDS, Hear, Lateness, OverBus, Workers
from sits.gateway.reporting import BEAT_SECONDS, EVERY, Reporting
from sits.gateway.standing import Standing
from sits.observe.metrics import Registry
from sits.ports.bus import Bus
from sits.ports.bus.log import Log
from sits.ports.bus.memory import MemoryBus
from sits.routing.learning.bandit import Choice
from sits.routing.learning.learner import Decision
from sits.routing.policies import TargetState
from sits.routing.reports import LONGEST_WHO, MOST_PEERS, Report
from sits.state.outcomes import Outcomes
from sits.state.outcomes.outcomes import Learned

write = msgspec.msgpack.Encoder().encode
GOOD = write(Report("x", 1, True, {"a": 1}))
LEARNED = write(Learned("r", 1, Decision(0.5, 0.5, ("a",), Choice("a", 1.0, (1.0,), "a"), "a"), 1.0))
DEEP = b"\x91" * 100_000 + b"\xc0"

# (how late by both clocks, seconds since the one before, whether it is of now)
CLOCKS: dict[str, list[tuple[float, float, bool]]] = {
    "two clocks differ nobody knows how much": [(1e6, 0.0, True), (1e6 + 0.3, 0.1, True), (1e6 - 0.2, 0.1, True)],
    "what waited while the bus was away": [
        (0.01, 0.0, True), (60.0, 60.0, False), (40.0, 0.1, False), (OLD_SECONDS + 0.1, 0.1, False), (0.02, 0.1, True),
    ],
    "a clock is set back": [(5.0, 0.0, True), (-3600.0, 0.1, True), (-3600.0, 0.1, True)],
    "a clock is set forward": [
        (0.0, 0.0, True), (3600.0, 0.1, False), (3600.0, WINDOW_SECONDS, False), (3600.0, WINDOW_SECONDS, True),
    ],
    "one clock goes faster": [(0.1 * step, 1.0, True) for step in range(200)],
}  # fmt: skip


@pytest.mark.parametrize("heard", CLOCKS.values(), ids=CLOCKS)
def test_a_report_of_now_is_told_from_one_that_waited(heard: list[tuple[float, float, bool]]) -> None:
    lateness, now, found = Lateness(), 100.0, []
    for late, since, _ in heard:
        now += since
        found.append(lateness.fresh(late, now))
    assert found == [fresh for *_, fresh in heard]


def test_the_bus_tells_how_late_a_report_comes_by_our_clock_and_its_own() -> None:
    async def play() -> None:
        log, ours = Log(wall=lambda: 1000.0), [1000.0]

        async def connect() -> Bus:
            return MemoryBus(log)

        heard: list[tuple[bytes, float]] = []
        carrier = OverBus(connect, lambda: ours[0])
        carrier.start(lambda report, late: heard.append((report, late)))
        teller = MemoryBus(log)
        try:
            for clock in (1000.0, 4600.0, 0.0):
                ours[0], before = clock, len(heard)
                async with asyncio.timeout(20.0):
                    while len(heard) == before:
                        await teller.publish(SUBJECT, b"report")
                        await asyncio.sleep(0.001)
                assert heard[-1] == (b"report", clock - 1000.0)
        finally:
            await carrier.aclose()

    story(play)


class Followed:
    """Takes whatever is written."""

    def __init__(self) -> None:
        self.transport = self
        self.got: list[bytes] = []

    def get_write_buffer_size(self) -> int:
        return 0

    def write(self, frame: bytes) -> None:
        self.got.append(frame)


def test_what_no_worker_would_take_is_not_said_and_counted() -> None:
    workers, follower = Workers(), Followed()
    workers._followers.add(follower)  # type: ignore[arg-type]
    workers.say(b"x" * (LARGEST + 1))
    assert (workers.dropped, follower.got) == (1, [])
    workers.say(b"x" * LARGEST)
    assert (workers.dropped, len(follower.got)) == (1, 1)


class Carried:
    """A carrier that keeps what is said, and takes its time to close."""

    name, dropped, ready = "test", 0, True

    def __init__(self) -> None:
        self.said: list[bytes] = []
        self.closing, self.closed = asyncio.Event(), asyncio.Event()

    def start(self, hear: Hear) -> None:
        self.hear = hear

    def say(self, report: bytes) -> None:
        self.said.append(report)

    async def aclose(self, last: bytes = b"") -> None:
        self.last = last
        self.closing.set()
        await self.closed.wait()


class Told:
    """One process that hears of targets a and b; its clock is ours."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.standing = Standing(Registry(), wall=lambda: 0.0, clock=lambda: self.now)
        for name in ("a", "b"):
            self.standing.states[name] = TargetState(None, name)
        self.carrier = Carried()
        loop = asyncio.get_running_loop()
        self.outcomes = Outcomes("one")
        self.reporting = Reporting(self.standing, self.outcomes, self.carrier, "one", loop=loop, clock=lambda: self.now)
        self.reporting._names = frozenset(("a", "b"))
        self.reporting.start()


def test_nothing_is_said_or_written_down_once_it_is_over() -> None:
    async def play() -> None:
        told = Told()
        state = told.standing.states["a"]
        told.carrier.hear(GOOD, 0.0)
        state.started(told.now)  # the bell
        told.reporting.tick(told.now)  # all is told before it is over
        state.started(told.now)  # and again
        said = len(told.carrier.said)
        ending = asyncio.create_task(told.reporting.aclose())
        await told.carrier.closing.wait()
        told.reporting.peers.forget("x")
        told.carrier.hear(write(Report("y", 1, True, {})), 0.0)
        told.reporting.tick(told.now + 2 * BEAT_SECONDS)
        assert (state.journal, told.standing.beginnings.journal) == (None, None)
        later = asyncio.Event()
        asyncio.get_running_loop().call_later(2 * EVERY, later.set)  # after every timer that there was
        await later.wait()
        assert len(told.carrier.said) == said
        assert msgspec.msgpack.decode(told.carrier.last, type=Report).last, "but for the end itself"
        told.carrier.closed.set()
        await ending

    story(play)


ODD = {
    "deep behind what is known": b"\x99" + GOOD[1:] + DEEP,
    "deep in what others learned": write(Report("x", 1, True, {"a": 1}, (), (), (), b"\x91\x95" + LEARNED[1:] + DEEP)),
}


@pytest.mark.parametrize("data", ODD.values(), ids=ODD)
def test_what_nests_too_deeply_is_said_and_the_next_one_is_heard(data: bytes) -> None:
    async def play() -> None:
        told = Told()
        told.carrier.hear(data, 0.0)
        assert told.reporting.unread == 1 or "cannot be read" in told.outcomes.trouble
        told.carrier.hear(write(Report("x", 2, True, {"a": 3})), 0.0)
        assert told.standing.states["a"].peers == 3
        told.carrier.closed.set()
        await told.reporting.aclose()

    story(play)


def test_one_whose_clock_is_ahead_silences_nobody_and_what_waited_counts_for_nobody() -> None:
    async def play() -> None:
        told = Told()
        heard = {"ahead": -10.0, "right": 0.01, "behind": 10.0}
        for number in range(10):
            told.now += 1.0
            for who, late in heard.items():
                told.carrier.hear(write(Report(who, number, True, {"a": 1})), late)
            assert told.standing.states["a"].peers == 3
        told.now += 60.0  # the bus was away, and they are forgotten
        told.reporting.tick(told.now)
        assert (len(told.reporting.peers), told.reporting.unread) == (0, 0)
        for who, late in heard.items():
            told.carrier.hear(write(Report(who, 11, True, {"a": 7})), late + 59.0)
        assert (told.standing.states["a"].peers, told.reporting.unread) == (0, 3)
        for who, late in heard.items():
            told.carrier.hear(write(Report(who, 70, True, {"a": 2})), late)
        assert told.standing.states["a"].peers == 6
        told.carrier.closed.set()
        await told.reporting.aclose()

    story(play)


def test_of_so_many_only_it_is_known_how_late_they_come() -> None:
    async def play() -> None:
        told = Told()
        for number in range(3 * MOST_PEERS):
            told.carrier.hear(write(Report(f"p{number}", 1, True, {})), 0.0)
        told.carrier.hear(write(Report("p" * (LONGEST_WHO + 1), 1, True, {})), 0.0)
        assert (len(told.reporting._lateness), len(told.reporting.peers)) == (2 * MOST_PEERS, MOST_PEERS)
        told.carrier.closed.set()
        await told.reporting.aclose()

    story(play)
