"""Cutting a call that sleeps or spins: SIGALRM, whose handler raises into the call.

A timer armed and disarmed for each call costs two system calls. This one is left to run out: a call notes until when it may go
on, and the handler looks whether anybody is still in a call that should be over. So it goes off once in the time of the limit
while plugins are called at all, and not once when they are not.

The handler raises only while `call` is on the stack, so that nothing is ever raised into anybody but the plugin; and again every
10 ms, for a plugin may catch what was raised and go on. What no signal can end: C code that does not return to the interpreter,
and a loop that catches every BaseException again.
"""

from __future__ import annotations

import atexit
import math
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from sits.routing.plugins.limits import Alarm, Cut

AGAIN = 0.01
"""Seconds until it is raised once more."""


class SignalAlarm(Alarm):
    """For the main thread of a process that uses SIGALRM for nothing else. `close` gives the signal back."""

    cuts = True

    def __init__(self) -> None:
        """
        Raises:
            RuntimeError: not in the main thread, where Python runs handlers of signals.
        """
        if threading.current_thread() is not threading.main_thread():
            raise RuntimeError("signals are handled in the main thread only")
        self._until: float = 0.0
        """When the call that is running must be over; 0 between calls."""
        self._goes_off: float = math.inf
        """When the timer does; infinite when it does not run."""
        self._before = signal.signal(signal.SIGALRM, self._rang)
        # An interpreter that ends takes its handlers away: the timer would end the process then.
        atexit.register(self.close)

    def call(self, seconds: float, function: Callable[..., Any], *args: Any) -> Any:
        if self._until:
            return function(*args)  # a call within a call: that one's limit holds
        until = self._until = time.perf_counter() + seconds
        try:
            if self._goes_off > until:
                self._arm(until, seconds)
            return function(*args)
        finally:
            self._until = 0.0

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

    def _rang(self, _: int, frame: FrameType | None) -> None:
        if self._goes_off == -math.inf:
            return
        self._goes_off = math.inf
        until = self._until
        if not until:
            return
        now = time.perf_counter()
        if now < until:
            self._arm(until, max(until - now, 1e-4))
            return
        self._arm(now + AGAIN, AGAIN)
        while frame is not None:
            if frame.f_code is _CALL:
                raise Cut
            frame = frame.f_back


_CALL = SignalAlarm.call.__code__


def best_alarm() -> Alarm:
    """One that cuts, or where there are no signals one that does not."""
    return SignalAlarm() if threading.current_thread() is threading.main_thread() else Alarm()
