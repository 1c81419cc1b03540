"""Cutting a call that sleeps or spins: SIGALRM, whose handler raises into the call.

A timer armed and disarmed for each call costs two system calls. This one is left to run out: a call notes until when it may go
on, and the handler looks whether anybody is still in a call that should be over. So it goes off once in the time of the limit
while plugins are called at all, and not once when they are not.

The handler raises only while `call` is on the stack, so that nothing is ever raised into anybody but the plugin; and again every
10 ms, for a plugin may catch what was raised and go on. What no signal can end: C code that does not return to the interpreter,
and a loop that catches every BaseException again.

Time goes by for a call that does nothing wrong, too, when others have the processor. So a call that should be over goes on for
another 10 ms where the processor was taken from it since the last look, until it has used its limit itself. One that waits has
no processor that could be taken from it, and one that did nothing wrong is back by then. The looks are those of the handler, and
one more each time that the timer is armed: a call costs nothing more.

What is collected during a call may be anybody's: an object's `__del__`, a callback of a weak reference or of the garbage
collection runs there, and what is raised into one gets no further and leaves it half done. They are waited for, 200 ms at most.

A plugin that takes the signal for itself would have the process ended by the next one: after each call it is looked who has it.
"""

from __future__ import annotations

import atexit
import gc
import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from sits.routing.plugins.limits import Alarm, Cut
from sits.state.plugins.footprint import turns

AGAIN = 0.01
"""Seconds until it is raised once more, and between looks at a call that should be over."""
OWN = AGAIN / 2.0
"""Seconds of processor that such a call may still use, where it is not known what it has used before."""
LONG = 0.5
"""For a call that may take so many seconds the timer is set anew, also where it would go off sooner: loading a file is one, and
what a file does to the signal is found when it is loaded."""
MOST = 20
"""Times that a call is excused, whatever others do: 200 ms."""


class SignalAlarm(Alarm):
    """For the main thread of a process that uses SIGALRM for nothing else. `close` gives the signal back."""

    cuts = True

    def __init__(self, turns: Callable[[], tuple[float, int]] = turns) -> None:
        """`turns` says for how many seconds this thread had a processor, and how often one was taken from it.

        Raises:
            RuntimeError: not in the main thread, where Python runs handlers of signals.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals are handled in the main thread only")
        self._until: float = 0.0
        """When the call that is running must be over; 0 between calls."""
        self._turns = turns
        self._seen_of: float = 0.0
        """Which call was looked at, by when it must be over."""
        self._used: float = 0.0
        self._taken: int = 0
        """What was seen of it first, and last."""
        self._excuses: int = 0
        self._own: float = 0.0
        """What it may use from there on."""
        self._goes_off: float = math.inf
        """When the timer does; infinite when it does not run."""
        self._handler = self._rang
        self._before = signal.signal(signal.SIGALRM, self._handler)
        # An interpreter that ends takes its handlers away: the timer would end the process then.
        atexit.register(self.close)

    def call(self, seconds: float, function: Callable[..., Any], *args: Any) -> Any:
        if self._until:
            return function(*args)  # a call within a call: that one's limit holds
        until = self._until = time.perf_counter() + seconds
        try:
            if self._goes_off > until or seconds >= LONG:
                self._look(until, seconds)
                self._arm(until, seconds)
            return function(*args)
        finally:
            self._until = 0.0
            if _handler_of(signal.SIGALRM) is not self._handler and self._goes_off != -math.inf:
                self._take_back()

    def _take_back(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, self._handler)
        self._goes_off = math.inf
        raise RuntimeError("took the signal SIGALRM for itself, which ends calls that take too long")

    def close(self) -> None:
        if self._goes_off == -math.inf:
            return
        self._goes_off = -math.inf  # before any call: nothing is armed again
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, self._before)
        atexit.unregister(self.close)

    def _arm(self, at: float, seconds: float) -> None:
        self._goes_off = at
        signal.setitimer(signal.ITIMER_REAL, seconds)

    def _look(self, until: float, own: float) -> None:
        self._seen_of, self._own, self._excuses = until, own, 0
        self._used, self._taken = self._turns()

    def _excused(self, until: float) -> bool:
        """Whether a call that should be over is not to blame, as far as is known. How long it was away says nothing."""
        if self._seen_of != until:
            self._look(until, OWN)  # the timer went off earlier, and its signal comes only now
            return True
        used, taken = self._turns()
        before, self._taken = self._taken, taken
        self._excuses += 1
        return taken != before and used - self._used < self._own and self._excuses <= MOST

    def _rang(self, _: int, frame: FrameType | None) -> None:
        if self._goes_off == -math.inf:
            return
        self._goes_off = math.inf
        until = self._until
        if not until:
            return
        now = time.perf_counter()
        if now < until:
            self._look(until, max(until - now, OWN))
            self._arm(until, max(until - now, 1e-4))
            return
        excused = self._excused(until)
        self._arm(now + AGAIN, AGAIN)
        if excused:
            return
        called, cleans = _stands(frame)
        if called and not (cleans and self._excuses <= MOST):
            raise Cut


def _stands(frame: FrameType | None) -> tuple[bool, bool]:
    """Whether a frame is within a `call`, and whether something is cleaned up in between: what is raised there gets nowhere."""
    watching = [getattr(one, "__code__", None) for one in gc.callbacks]
    cleans = False
    while frame is not None:
        code = frame.f_code
        if code is _CALL:
            return True, cleans
        cleans = cleans or code.co_name == "__del__" or code in watching or frame.f_globals.get("__name__") == "weakref"
        frame = frame.f_back
    return False, cleans


_CALL = SignalAlarm.call.__code__
_signals: Any = getattr(signal, "_signal", signal)
_handler_of: Callable[[int], Any] = _signals.getsignal
"""12 ns. That of the module `signal` makes an enumeration of what it finds, or tries to: 1.7 us."""


def best_alarm() -> Alarm:
    """One that cuts, or where there are no signals one that does not."""
    return SignalAlarm() if threading.current_thread() is threading.main_thread() else Alarm()
