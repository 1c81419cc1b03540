"""Branches that run at the same time ask for the same under the same numbers at every run, wherever the flow was cut."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sits.ports.flows.base import Body, Context, Retry, State, Step, StepFailed
from sits.ports.flows.memory import MemoryFlows, rest
from sits.ports.flows.replay import Ending, Entry, Mail, Run

Part = list[Any]
"""What a branch does, one after the other: pairs of a word and its value, which may be branches again."""


class Broken(Exception):
    """What a branch raises that is told to."""


class Play:
    """One run of a program. What is asked for is named by all that was given so far, in whatever branch."""

    def __init__(self, context: Context) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.given: dict[int, object] = {}
        self.words: list[bytes] = []
        self.end: str | None = None
        self.over = False
        self._context = context
        self._lock = asyncio.Lock()

    async def perform(self, program: Part) -> bytes:
        with contextlib.suppress(Broken):
            await self._run(program)
        while await self._signal(1.0) is not None:
            pass
        self.end = repr((self._context.now(), self.given))
        await self._sleep(5_000.0)
        self.over = True
        return b""

    async def _run(self, part: Part) -> None:
        for what, value in part:
            await getattr(self, f"_{what}")(value)

    # One at a time

    async def _step(self, passes: int) -> None:
        await self._act("step", passes)

    async def _fail(self, passes: int) -> None:
        await self._act("fail", passes)

    async def _act(self, kind: str, passes: int) -> None:
        name = f"{kind}{len(self.given) % 3}"
        number = self._ask(name, passes)
        try:
            self.given[number] = await self._context.step(name, b"%d" % passes, retry=Retry(2, 0.5))
        except StepFailed as failed:
            self.given[number] = str(failed)

    async def _sleep(self, seconds: float) -> None:
        number = self._ask("sleep", seconds)
        await self._context.sleep(seconds)
        self.given[number] = self._context.now()

    async def _signal(self, seconds: float) -> bytes | None:
        number = self._ask("signal", seconds)
        word = self.given[number] = await self._context.signal("word", timeout=seconds)
        if word is not None:
            self.words.append(word)
        return word

    def _ask(self, *what: object) -> int:
        if not self.over:  # branches that are cancelled with the flow still try to undo what they did
            self.asked.append((*what, len(self.given), self._context.now()))
        return len(self.asked) - 1

    async def _turn(self, turns: int) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)

    async def _raise(self, passes: int) -> None:
        raise Broken

    # At the same time

    async def _branch(self, part: Part) -> None:
        try:
            await self._run(part)
        except asyncio.CancelledError:
            await self._step(0)  # what is to be undone
            raise

    async def _both(self, branches: list[Part]) -> None:
        """One that raises leaves the others running."""
        await asyncio.gather(*map(self._branch, branches))

    async def _group(self, branches: list[Part]) -> None:
        """One that raises cancels the others, and each undoes what it did."""
        try:
            async with asyncio.TaskGroup() as group:
                for part in branches:
                    group.create_task(self._branch(part))
        except* Broken:
            await self._step(0)

    async def _race(self, branches: list[Part]) -> None:
        """The first to end cancels the others."""
        tasks = [asyncio.create_task(self._branch(part)) for part in branches]
        if tasks:
            _, slower = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in slower:
                task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _alone(self, part: Part) -> None:
        """Branches wait for each other; what holds the lock waits for no other that wants it."""
        async with self._lock:
            await self._run(part)

    async def _deep(self, depth: int) -> None:
        await (asyncio.gather(self._deep(depth - 1)) if depth else self._step(0))


class Seen:
    """What came of a flow: how it ended, each of its runs, and what each step gave, by its key."""

    def __init__(self) -> None:
        self.plays: list[Play] = []
        self.results: dict[str, list[object]] = {}
        self.state: State | None = None

    async def crash(self, flows: MemoryFlows) -> None:
        for play in self.plays:
            play.over = True
        await flows.crash()

    def check(self, words: int) -> None:
        assert self.state is not None
        assert self.state.status == "done", self.state.error
        longest = max((play.asked for play in self.plays), key=len)
        given: dict[int, object] = {}
        for play in self.plays:
            assert play.asked == longest[: len(play.asked)]
            for number, result in play.given.items():
                assert given.setdefault(number, result) == result
        for key, results in self.results.items():
            number = int(key.removeprefix("1/"))
            assert number not in given or given[number] in results
        ends = {play.end for play in self.plays if play.end is not None}
        assert len(ends) == 1
        assert self.plays[-1].words == [b"%d" % number for number in range(words)]


async def play(program: Part, cuts: list[int], words: int) -> Seen:
    """Run it, crashing after so many passes of the loop each time, and once more when all of it has ended."""
    seen = Seen()

    async def body(context: Context, input: bytes) -> bytes:
        seen.plays.append(Play(context))
        return await seen.plays[-1].perform(program)

    async def step(step: Step) -> bytes:
        await rest(int(step.input))
        output = b"%d" % sum(map(len, seen.results.values()))
        seen.results.setdefault(step.key, []).append(output)
        return output

    async def fail(step: Step) -> bytes:
        await rest(int(step.input))
        raise ValueError("as told")

    flows = MemoryFlows()
    flows.flow("body", body)
    for number in range(3):
        flows.action(f"step{number}", step)
        flows.action(f"fail{number}", fail)
    await flows.run()
    await flows.start("body", "1")
    for number in range(words):
        await flows.send("1", "word", b"%d" % number)
        await rest(number)
    for cut in cuts:
        await rest(cut)
        await seen.crash(flows)
        await flows.run()
        await flows.advance(0.7)
    await flows.advance(1_000.0)
    await seen.crash(flows)  # in the last sleep: all of the log is given again
    await flows.run()
    await flows.advance(10_000.0)
    seen.state = await flows.result("1", timeout=30.0)
    await flows.aclose()
    return seen


_PASSES = st.integers(0, 6)
_LEAF = st.one_of(
    st.tuples(st.just("step"), _PASSES),
    st.tuples(st.just("step"), _PASSES),
    st.tuples(st.just("fail"), _PASSES),
    st.tuples(st.just("sleep"), st.sampled_from((0.0, 1.0, 5.0))),
    st.tuples(st.just("signal"), st.sampled_from((0.0, 3.0, 5.0))),
    st.tuples(st.just("turn"), st.sampled_from((1, 2, 5, 60))),
    st.tuples(st.just("deep"), st.sampled_from((1, 3, 15))),
    st.tuples(st.just("raise"), st.just(0)),
    st.tuples(st.just("alone"), st.lists(st.tuples(st.just("step"), _PASSES), max_size=2)),
)


def _branches(part: st.SearchStrategy[Part]) -> st.SearchStrategy[Any]:
    return st.tuples(st.sampled_from(("both", "both", "group", "race")), st.lists(part, min_size=2, max_size=4) | st.just([[]]))


_PART = st.recursive(st.lists(_LEAF, max_size=3), lambda inner: st.lists(_LEAF | _branches(inner), max_size=3), max_leaves=12)
_PROGRAM: st.SearchStrategy[Part] = st.lists(_branches(_PART), min_size=1, max_size=2)

_EMPTY: Part = []
_LATER: Part = [("both", [_EMPTY]), ("step", 0)]
"""A branch that has a few turns to go before it asks for anything."""
_UNDONE: Part = [("group", [[("sleep", 1.0), ("raise", 0)], [("step", 500)], [("signal", 5.0)], [("sleep", 5.0)], [("deep", 9)]])]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(program=[("both", [[("step", 1)], _LATER])], cuts=[], words=0)
@example(program=[("both", [[("step", 1)], [("turn", 60), ("step", 0)]])], cuts=[], words=0)
@example(program=[("both", [[("step", 0)], [("deep", 40)], [("turn", 300), ("step", 2)]])], cuts=[3, 9], words=0)
@example(program=[("both", [[("sleep", 1.0), ("step", 0)], [("deep", 15), ("sleep", 5.0)]])], cuts=[], words=0)
@example(program=_UNDONE, cuts=[7, 7], words=2)
@example(program=[("race", [[("step", 0)], [("step", 0)], [("signal", 5.0)]]), ("signal", 3.0)], cuts=[5], words=3)
@given(program=_PROGRAM, cuts=st.lists(st.integers(0, 40), max_size=6), words=st.integers(0, 3))
def test_each_run_asks_for_the_same_under_the_same_numbers(program: Part, cuts: list[int], words: int) -> None:
    asyncio.run(play(program, cuts, words)).check(words)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@example(program=[("both", [[("step", 1)], _LATER])], words=0)
@given(program=_PROGRAM, words=st.integers(0, 3))
def test_a_flow_that_is_not_cut_does_each_step_once(program: Part, words: int) -> None:
    seen = asyncio.run(play(program, [], words))
    seen.check(words)
    assert all(len(results) == 1 for results in seen.results.values())


# What branches do to each other


async def _through(
    body: Body, input: bytes = b"", *, log: list[Entry], mail: list[Mail], done: list[str] | None = None
) -> tuple[Ending, list[Entry]]:
    """Run a body on from a log, in which each step gives its name; how it ended, and what was remembered of it since."""
    news: list[Entry] = []

    async def act(step: Step) -> bytes:
        if done is not None:
            done.append(step.key)
        return step.key.encode()

    async def remember(entries: Sequence[Entry]) -> None:
        await rest(3)
        news.extend(entries)

    run = Run(
        "f",
        body,
        input,
        started=0.0,
        log=log,
        mail=mail,
        actions=dict.fromkeys("abc", act),
        clock=_Still(),
        remember=remember,
    )
    async with asyncio.timeout(30.0):
        return await run.main(), news


class _Still:
    """A clock that stands: who waits for a time waits for ever."""

    def now(self) -> float:
        return 0.0

    async def until(self, when: float) -> None:
        if when > 0.0:
            await asyncio.Event().wait()


async def _first_wins(context: Context, input: bytes) -> bytes:
    """The result of the faster of two; the other is cancelled, or goes on while the flow ends."""
    tasks = [asyncio.create_task(context.step(name)) for name in "ab"]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    return next(task.result() for task in tasks if task.done())


@pytest.mark.parametrize("beside", [[], [Entry(1, "step", "b", 0.0, output=b"slower")]], ids=["alone", "with the other"])
def test_what_was_remembered_beside_the_last_result_is_no_fault(beside: list[Entry]) -> None:
    """Killed after the last results were remembered, two in one commit, and before the end was."""
    log = [Entry(0, "step", "a", 0.0, output=b"faster"), *beside]
    assert asyncio.run(_through(_first_wins, log=log, mail=[])) == (Ending("done", b"faster"), [])


async def _gives_up_listening(context: Context, input: bytes) -> bytes:
    """A branch listens until a step has ended; then the flow itself does, for one word or up to `two`."""

    async def listen() -> None:
        heard.append(await context.signal("word"))

    heard: list[bytes | None] = []
    listening = asyncio.create_task(listen())
    await context.step("a")
    listening.cancel()
    heard.append(await context.signal("word"))
    if input and heard[-1] != b"two":
        heard.append(await context.signal("word"))
    return repr(heard).encode()


_STEP = Entry(0, "step", "a", 0.0, output=b"f/0")
_ONE, _TWO = Mail(0, "word", b"one"), Mail(1, "word", b"two")


@pytest.mark.parametrize(
    ("log", "mail", "output", "news"),
    [
        pytest.param(
            [_STEP], [_ONE], b"[b'one']", [Entry(2, "signal", "word", 0.0, output=b"one", mail=0)], id="it had not come"
        ),
        pytest.param(
            [_STEP, Entry(1, "signal", "word", 0.0, output=b"one", mail=0)],
            [_TWO],
            b"[b'one']",
            [Entry(2, "signal", "word", 0.0, output=b"one", mail=0)],
            id="it was for the branch in the same commit",
        ),
        pytest.param(
            [
                _STEP,
                Entry(1, "signal", "word", 0.0, output=b"one", mail=0),
                Entry(2, "signal", "word", 0.0, output=b"one", mail=0),
            ],
            [_TWO],
            b"[b'one', b'two']",
            [Entry(3, "signal", "word", 0.0, output=b"two", mail=1)],
            id="and the flow had it then",
        ),
        pytest.param(
            [Entry(1, "signal", "word", 0.0, output=b"one", mail=0), _STEP],
            [_TWO],
            b"[b'one', b'two']",
            [Entry(2, "signal", "word", 0.0, output=b"two", mail=1)],
            id="the branch had it before",
        ),
    ],
)
def test_a_signal_for_a_branch_that_was_cancelled_is_for_the_next(
    log: list[Entry], mail: list[Mail], output: bytes, news: list[Entry]
) -> None:
    input = b"two" if b"two" in output else b""
    assert asyncio.run(_through(_gives_up_listening, input, log=log, mail=mail)) == (Ending("done", output), news)


def test_signals_that_came_in_time_are_received_by_all_who_wait_and_nobody_else_waits_on() -> None:
    async def body(context: Context, input: bytes) -> bytes:
        return repr(await asyncio.gather(*(context.signal("word", timeout=0.0) for _ in range(4)))).encode()

    ending, news = asyncio.run(_through(body, log=[], mail=[_ONE, _TWO, Mail(2, "other")]))
    assert ending == Ending("done", b"[b'one', b'two', None, None]")
    assert [(entry.call, entry.mail) for entry in news] == [(0, 0), (1, 1), (2, None), (3, None)]


def test_who_is_cancelled_with_a_group_goes_on_in_the_same_order_at_every_run() -> None:
    """`TaskGroup` cancels from a set, in the order of its hashes."""

    async def body(context: Context, input: bytes) -> bytes:
        undone: list[bytes] = []

        async def branch(number: int) -> None:
            try:
                await context.sleep(1.0)
            except asyncio.CancelledError:
                undone.append(b"%d" % number)
                raise

        async def fail() -> None:
            await context.step("a")
            raise Broken

        try:
            async with asyncio.TaskGroup() as group:
                for number in range(40):
                    group.create_task(branch(number))
                group.create_task(fail())
        except* Broken:
            pass
        return b" ".join(undone)

    async def runs() -> set[bytes | None]:
        outputs = set()
        ballast: list[object] = []
        for number in range(5):
            ballast.append([object() for _ in range(number * 7)])  # so that addresses differ
            outputs.add((await _through(body, log=[], mail=[]))[0].output)
        return outputs

    (output,) = asyncio.run(runs())
    assert output is not None
    assert sorted(map(int, output.split())) == list(range(40))


def test_a_generator_that_is_left_half_way_ends_as_a_branch() -> None:
    async def body(context: Context, input: bytes) -> bytes:
        async def letters() -> AsyncIterator[bytes]:
            try:
                yield await context.step("a")
                yield b"never"
            finally:
                await context.step("b")

        async for letter in letters():
            return letter + await context.step("c")
        return b""

    done: list[str] = []
    first = asyncio.run(_through(body, log=[], mail=[], done=done))
    assert (first[0], sorted(done)) == (Ending("done", b"f/0f/1"), ["f/0", "f/1", "f/2"])


# Bodies that are none


async def _spins(context: Context, input: bytes) -> bytes:
    for _ in itertools.count():
        await asyncio.sleep(0)
    return b""


async def _waits_for_nobody(context: Context, input: bytes) -> bytes:
    await asyncio.Event().wait()
    return b""


async def _has_a_timer_of_its_own(context: Context, input: bytes) -> bytes:
    await asyncio.sleep(1.0)
    return b""


async def _has_a_thread(context: Context, input: bytes) -> bytes:
    return await asyncio.to_thread(bytes)


async def _asks_without_end(context: Context, input: bytes) -> bytes:
    while True:
        asyncio.create_task(context.sleep(1.0))  # noqa: RUF006 - it is kept
        await asyncio.sleep(0)


_STEPS_ONLY = "in a flow: it waits with its context's sleep and signal, and what else it does are steps"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        pytest.param(_spins, "the flow goes on and on without a step, a sleep or a signal", id="spins"),
        pytest.param(_waits_for_nobody, "the flow waits for something that is no step, sleep or signal", id="waits for nobody"),
        pytest.param(_has_a_timer_of_its_own, f"AttributeError: there is no call_later {_STEPS_ONLY}", id="a timer"),
        pytest.param(_has_a_thread, f"AttributeError: there is no run_in_executor {_STEPS_ONLY}", id="a thread"),
        pytest.param(_asks_without_end, "the flow asked for more than 500 steps, sleeps and signals", id="asks without end"),
    ],
)
def test_a_body_that_cannot_be_run_again_fails_and_says_why(
    body: Body, error: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("sits.ports.flows.stage.MOST_TURNS", 50_000)
    monkeypatch.setattr("sits.ports.flows.replay.MOST_CALLS", 500)
    assert asyncio.run(_through(body, log=[], mail=[])) == (Ending("failed", error=error), [])
    assert caplog.messages == []  # nothing of it is left pending


def test_a_body_that_spins_holds_nobody_up() -> None:
    async def run() -> tuple[State, State | None]:
        async def quick(context: Context, input: bytes) -> bytes:
            return b"quick"

        flows = MemoryFlows()
        flows.flow("spins", _spins)
        flows.flow("quick", quick)
        await flows.run()
        await flows.start("spins", "1")
        await flows.start("quick", "2")
        state = await flows.result("2", timeout=30.0)
        spinning = await flows.state("1")
        await flows.aclose()
        return state, spinning

    quick, spinning = asyncio.run(run())
    assert (quick.status, spinning and spinning.status) == ("done", "running")
