"""Calls that sleep or spin are cut, under uvloop, and nobody else is."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import threading
import time

import pytest
import uvloop

from sits.routing.plugins.limits import Cut
from sits.state.plugins.alarm import SignalAlarm

LIMIT = 0.05


@pytest.fixture
def alarm():
    made = SignalAlarm()
    yield made
    made.close()


def spins():
    while True:
        pass


def sleeps():
    time.sleep(5)


def catches():
    for _ in range(5):
        with contextlib.suppress(BaseException):
            time.sleep(5)


def waits():
    threading.Event().wait(5)


def locks():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def matches():
    re.match(r"(a+)+b", "a" * 60)


def recurses():
    return recurses()


TABLE = [
    pytest.param(spins, LIMIT, id="spins"),
    pytest.param(sleeps, LIMIT, id="sleeps"),
    pytest.param(waits, LIMIT, id="waits for an event"),
    pytest.param(matches, LIMIT, id="matches without end"),
    pytest.param(locks, LIMIT, id="waits for a lock"),
]


@pytest.mark.parametrize("loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
@pytest.mark.parametrize(("function", "limit"), TABLE)
def test_a_call_is_cut_at_its_limit_and_the_loop_goes_on(alarm, loop, function, limit):
    async def story():
        begun = time.perf_counter()
        with pytest.raises(Cut):
            alarm.call(limit, function)
        took = time.perf_counter() - begun
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "alive"), 5) == "alive"
        return took

    with asyncio.Runner(loop_factory=loop) as runner:
        assert LIMIT <= runner.run(story()) < 1.0


def test_one_that_catches_what_is_raised_is_cut_again(alarm):
    begun = time.perf_counter()
    alarm.call(LIMIT, catches)
    assert time.perf_counter() - begun < 2.0


def test_what_a_call_returns_and_raises_comes_through(alarm):
    assert alarm.call(LIMIT, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        alarm.call(LIMIT, divmod, 7, 0)
    with pytest.raises(RecursionError):
        alarm.call(1.0, recurses)


def test_nothing_is_raised_into_whoever_comes_after(alarm):
    """The timer of a call that was in time goes off in the middle of other work."""
    assert alarm.call(LIMIT, lambda: "in time") == "in time"
    before = signal.getitimer(signal.ITIMER_REAL)[0]
    assert 0 < before <= LIMIT
    begun = time.perf_counter()
    while time.perf_counter() < begun + 3 * LIMIT:
        pass
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_each_call_has_its_whole_time(alarm):
    """The timer of an earlier call is no reason to cut a later one."""
    end = time.perf_counter() + 6 * LIMIT
    calls = 0
    while time.perf_counter() < end:
        until = time.perf_counter() + LIMIT / 5
        alarm.call(LIMIT, _busy, until)
        calls += 1
    assert calls > 5


def _busy(until):
    while time.perf_counter() < until:
        pass


def test_a_long_limit_before_does_not_make_a_short_one_long(alarm):
    alarm.call(10.0, int)
    begun = time.perf_counter()
    with pytest.raises(Cut):
        alarm.call(LIMIT, spins)
    assert time.perf_counter() - begun < 1.0


def test_a_call_within_a_call_ends_with_the_outer_one(alarm):
    begun = time.perf_counter()
    with pytest.raises(Cut):
        alarm.call(LIMIT, alarm.call, 10.0, spins)
    assert time.perf_counter() - begun < 1.0
    with pytest.raises(Cut):
        alarm.call(LIMIT, spins)


def test_a_call_that_is_just_in_time_or_just_late_never_reaches_beyond(alarm):
    """The race: the timer goes off about when the call returns, again and again."""
    cut = 0
    for step in range(150):
        until = time.perf_counter() + 0.002 + (step - 75) * 4e-6
        try:
            alarm.call(0.002, _busy, until)
        except Cut:
            cut += 1
        _busy(time.perf_counter() + 0.0005)
    assert 0 < cut < 150


def test_after_it_is_closed_nothing_is_cut():
    made = SignalAlarm()
    made.close()
    until = time.perf_counter() + 3 * LIMIT
    made.call(LIMIT, _busy, until)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_process_that_ends_with_the_timer_running_ends_well():
    code = "from sits.state.plugins.alarm import SignalAlarm; a = SignalAlarm(); a.call(0.001, int)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0


def test_it_is_for_the_main_thread():
    seen = []

    def other():
        try:
            SignalAlarm()
        except RuntimeError as error:
            seen.append(str(error))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert seen == ["signals are handled in the main thread only"]
