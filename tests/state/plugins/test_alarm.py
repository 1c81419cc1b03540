"""Calls that sleep or spin are cut, under uvloop, and nobody else is."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import re
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
import uvloop

from sits.routing.plugins.limits import Cut
from sits.state.plugins.alarm import AGAIN, MOST, SignalAlarm

LIMIT = 0.05
SURE = 0.5
"""Seconds that a call of nothing never takes, and that a test can wait for."""
AMPLE = 60.0
"""Seconds that a call has which is to be in time, however busy the machine is."""


@pytest.fixture
def alarm():
    made = SignalAlarm()
    yield made
    made.close()


@pytest.fixture
def armed(monkeypatch):
    """For how many seconds the timer was set, each time: what is cut by it is cut then, as exactly as the kernel can."""
    seconds, real = [], signal.setitimer

    def setitimer(which, after, *more):
        seconds.append(after)
        return real(which, after, *more)

    monkeypatch.setattr(signal, "setitimer", setitimer)
    return seconds


def spins():
    while True:
        pass


def sleeps():
    time.sleep(3600)


def waits():
    threading.Event().wait()


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
def test_a_call_is_cut_at_its_limit_and_not_before_and_the_loop_goes_on(alarm, armed, loop, function, limit):
    async def story():
        begun = time.perf_counter()
        with pytest.raises(Cut):
            alarm.call(limit, function)
        assert time.perf_counter() >= begun + limit
        await asyncio.sleep(0)
        assert await asyncio.wait_for(asyncio.to_thread(lambda: "alive"), AMPLE) == "alive"

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(story())
    # A timer that went off too early is set for what was left; the last one is for whoever catches what was raised.
    assert (armed[0], max(armed), armed[-1]) == (limit, limit, AGAIN)


class Looks:
    """A machine on which each look finds so many more seconds used, and processors taken away."""

    def __init__(self, used, taken):
        self.used, self.taken, self.looks = used, taken, 0

    def __call__(self):
        self.looks += 1
        return self.looks * self.used, self.looks * self.taken


@pytest.mark.parametrize(
    ("used", "taken", "looks"),
    [
        pytest.param(0.0, 0, 2, id="it waits"),
        pytest.param(0.03, 0, 2, id="it computes"),
        pytest.param(0.03, 1, 3, id="it computes when others let it"),
        pytest.param(0.0, 1, MOST + 2, id="others have the processor, and it is not back"),
    ],
)
def test_a_call_is_cut_once_others_are_not_to_blame(used, taken, looks):
    """The first look is when the timer is armed, the second when the call should be over."""
    seen = Looks(used, taken)
    with contextlib.closing(SignalAlarm(seen)) as alarm, pytest.raises(Cut):
        alarm.call(LIMIT, lambda: _busy_until(time.perf_counter() + AMPLE))
    # A signal that is early or late on a busy machine is one look more.
    assert looks <= seen.looks <= looks + 2


def test_a_call_that_others_have_held_up_is_not_cut():
    seen = Looks(0.0, 1)
    with contextlib.closing(SignalAlarm(seen)) as alarm:
        assert alarm.call(LIMIT, lambda: _busy(lambda: seen.looks >= 4) or "in time") == "in time"


class Dies:
    """Says what happens while it is collected, and for how long that goes on."""

    def __init__(self, at_last):
        self.at_last, self.itself = at_last, self

    def __del__(self):
        self.at_last()


class Referred:
    """Collected by the garbage collection only."""

    def __init__(self, at_last):
        self.itself = self
        weakref.finalize(self, at_last)


class Watched:
    """Collected at once, and whoever watches the garbage collection is busy."""

    def __init__(self, at_last):
        self.at_last = at_last
        gc.callbacks.append(self.watches)

    def watches(self, phase, info):
        if phase == "stop":
            self.at_last()
            gc.callbacks.remove(self.watches)


@pytest.fixture
def swallowed(monkeypatch):
    """What was raised where nothing gets out. Garbage of other tests is not collected in this one."""
    gc.collect()
    gc.freeze()
    kinds = []
    monkeypatch.setattr(sys, "unraisablehook", lambda seen: kinds.append(seen.exc_type))
    yield kinds
    gc.unfreeze()


@pytest.mark.parametrize("kind", [Dies, Referred, Watched])
def test_who_cleans_up_is_not_cut_in_the_place_of_the_plugin(kind, swallowed):
    seen, done = Looks(1.0, 0), []

    def cleans():
        _busy_until(time.perf_counter() + 3 * LIMIT)
        done.append(True)

    def collects():
        kind(cleans)
        gc.collect()
        _busy_until(time.perf_counter() + AMPLE)

    with contextlib.closing(SignalAlarm(seen)) as alarm, pytest.raises(Cut):
        alarm.call(LIMIT, collects)
    assert (done, swallowed) == ([True], [])


@pytest.mark.parametrize("kind", [Dies, Referred])
def test_cleaning_up_that_does_not_end_is_cut_as_well(kind, swallowed):
    seen = Looks(1.0, 0)

    def collects():
        kind(spins)
        gc.collect()
        _busy_until(time.perf_counter() + AMPLE)

    with contextlib.closing(SignalAlarm(seen)) as alarm, pytest.raises(Cut):
        alarm.call(LIMIT, collects)
    assert swallowed == [Cut]
    assert seen.looks > MOST


TAKERS = {
    "the default": lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL),
    "nobody": lambda: signal.signal(signal.SIGALRM, signal.SIG_IGN),
    "its own": lambda: signal.signal(signal.SIGALRM, lambda *_: None),
}


@pytest.mark.parametrize("seconds", [LIMIT, AMPLE], ids=["a call", "loading a file"])
@pytest.mark.parametrize("take", TAKERS.values(), ids=TAKERS)
def test_who_takes_the_signal_for_itself_is_told_so_and_the_next_call_is_cut_all_the_same(alarm, take, seconds):
    alarm.call(LIMIT, int)  # the timer runs
    with pytest.raises(RuntimeError, match="took the signal SIGALRM for itself"):
        alarm.call(seconds, take)
    with pytest.raises(Cut):
        alarm.call(LIMIT, sleeps)


def test_a_file_that_takes_the_signal_while_it_is_loaded_is_not_ended_by_a_timer_of_before(alarm):
    def loads():
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        _busy_until(time.perf_counter() + 3 * LIMIT)

    alarm.call(LIMIT, int)
    with pytest.raises(RuntimeError, match="took the signal SIGALRM for itself"):
        alarm.call(AMPLE, loads)


@pytest.mark.parametrize(("signals", "ends"), [(1, "back"), (2, "cut")])
def test_a_signal_that_comes_late_is_no_reason_to_cut_and_the_next_one_is(signals, ends):
    """The timer was armed for a call before, and nothing is known of the one of now, which should be over by then."""

    def away():
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        _busy_until(time.perf_counter() + 2 * LIMIT)
        for _ in range(signals):
            signal.raise_signal(signal.SIGALRM)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        return "back"

    with contextlib.closing(SignalAlarm(Looks(0.0, 0))) as alarm:
        alarm.call(LIMIT, int)
        try:
            found = alarm.call(LIMIT, away)
        except Cut:
            found = "cut"
    assert found == ends


def test_a_good_plugin_on_a_busy_processor_is_never_cut(alarm):
    """Eight others want the same processor, so that it is often away in the middle of a call for longer than its limit."""
    limit, before = 0.005, os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    others = [subprocess.Popen(["/bin/sh", "-c", "while :; do :; done"]) for _ in range(8)]
    try:
        long, end = 0, time.perf_counter() + AMPLE
        while long < 10 and time.perf_counter() < end:
            begun = time.perf_counter()
            alarm.call(limit, sum, range(2000))
            long += time.perf_counter() - begun > limit
        assert long == 10, "the processor was never away"
        for bad in (spins, sleeps):
            with pytest.raises(Cut):
                alarm.call(limit, bad)
    finally:
        for other in others:
            other.kill()
            other.wait()
        os.sched_setaffinity(0, before)


def test_one_that_catches_what_is_raised_is_cut_again(alarm, armed):
    caught = []

    def catches():
        while len(caught) < 5:
            try:
                time.sleep(3600)
            except BaseException as raised:
                caught.append(type(raised))

    for _ in range(20):  # where the machine is busy it may be cut within its own handler, and has caught fewer
        caught.clear()
        with contextlib.suppress(Cut):
            alarm.call(LIMIT, catches)
        if len(caught) == 5:
            break
    assert caught == [Cut] * 5
    assert armed.count(AGAIN) >= 5


def test_what_a_call_returns_and_raises_comes_through(alarm):
    assert alarm.call(AMPLE, divmod, 7, 2) == (3, 1)
    with pytest.raises(ZeroDivisionError):
        alarm.call(AMPLE, divmod, 7, 0)
    with pytest.raises(RecursionError):
        alarm.call(AMPLE, recurses)


def test_nothing_is_raised_into_whoever_comes_after(alarm, armed):
    """The timer of a call that was in time goes off in the middle of other work."""
    assert alarm.call(SURE, lambda: "in time") == "in time"
    _busy(lambda: signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0))
    assert armed == [SURE], "and is not set again"


def test_each_call_has_its_whole_time(alarm, armed):
    """The timer of an earlier call goes off during a later one, and is set for what that one has left."""
    alarm.call(SURE, int)
    alarm.call(AMPLE, lambda: _busy(lambda: len(armed) == 2))
    assert armed == [SURE, pytest.approx(AMPLE, abs=AMPLE / 2)]


def _busy(done):
    """Raises AssertionError: it is not done for too long."""
    end = time.perf_counter() + AMPLE / 2
    while not done():
        assert time.perf_counter() < end


def _busy_until(time_):
    while time.perf_counter() < time_:
        pass


def test_a_long_limit_before_does_not_make_a_short_one_long(alarm, armed):
    alarm.call(AMPLE, int)
    with pytest.raises(Cut):
        alarm.call(LIMIT, spins)
    assert armed[:2] == [AMPLE, LIMIT]
    assert max(armed[2:]) <= LIMIT


def test_a_call_within_a_call_ends_with_the_outer_one(alarm, armed):
    with pytest.raises(Cut):
        alarm.call(LIMIT, alarm.call, AMPLE, spins)
    assert max(armed) == LIMIT
    with pytest.raises(Cut):
        alarm.call(LIMIT, spins)


def test_a_call_that_is_just_in_time_or_just_late_never_reaches_beyond(alarm):
    """The race: the timer goes off about when the call returns, again and again."""
    cut = 0
    for step in range(150):
        until = time.perf_counter() + 0.002 + (step - 75) * 4e-6
        try:
            alarm.call(0.002, _busy_until, until)
        except Cut:
            cut += 1
        _busy_until(time.perf_counter() + 0.0005)
    assert 0 < cut < 150


def test_after_it_is_closed_nothing_is_cut():
    made = SignalAlarm()
    made.close()
    until = time.perf_counter() + 3 * LIMIT
    made.call(LIMIT, _busy_until, until)
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_a_process_that_ends_with_the_timer_running_ends_well():
    code = "from sits.state.plugins.alarm import AGAIN, SignalAlarm; a = SignalAlarm(); a.call(0.001, int)"
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
