"""Several workers on one port: forked before any loop or thread, each with its own socket, kept alive by the parent.

The parent also waits for the processes of local models that a worker left behind by dying: a container's first process mostly
waits for nobody, and they would stay as zombies.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable

from sits.gateway.deaths import Death

ENDS = (signal.SIGTERM, signal.SIGINT)
RESTART_SECONDS = 1.0
"""The least time between two starts of one worker: a worker that dies at once must not spin."""
MOST_SECONDS = 16.0
"""And the most: twice as long each time that it dies before it has lived as long as this."""

REAP_SECONDS = 5.0
"""How long, after the last worker, what the workers left behind may take to end."""
REAP_PACE = 0.01
SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER` of prctl(2): orphans below this process become its children."""
PARENT_DEATH = 1
"""`PR_SET_PDEATHSIG` of prctl(2): a signal for when the parent has ended."""


class Workers:
    """Starts `count` workers by `work(index)`, which runs in the child and returns its exit code; keeps them alive. `died` hears
    of each that ended before it was to."""

    def __init__(self, count: int, work: Callable[[int], int], died: Callable[[Death], None]) -> None:
        self._count = count
        self._work = work
        self._died = died
        self._pids: dict[int, int] = {}
        self._started: dict[int, float] = {}
        self._short: dict[int, int] = {}
        """How often in a row it has died soon."""
        self._restarted: set[int] = set()
        self._stopping = False

    def run(self) -> int:
        """Until a signal ends them all; the exit code: 0 when they ended well, or the code of a first start that failed."""
        for number in ENDS:
            signal.signal(number, self._on_signal)
        _adopt_orphans()
        for index in range(self._count):
            self._start(index)
        worst = 0
        while self._pids:
            try:
                pid, status = os.wait()
            except ChildProcessError:
                break
            if pid not in self._pids:
                continue
            index = self._pids.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            lived = max(0.0, time.monotonic() - self._started[index])
            if self._stopping:
                # One that had only just been started dies of our signal: that is an end as good as any.
                if code != 0 and -code not in ENDS:
                    self._died(Death(index, pid, code, lived, None))
                    worst = worst or code
            elif code == 2 and index not in self._restarted:
                # It cannot start: the same configuration will not start elsewhere either.
                worst = code
                self._stop(signal.SIGTERM)
            else:
                # One that worked before is tried again and again: the files may be wrong just now, and the others serve.
                self._restarted.add(index)
                pause = self._pause(index, lived)
                self._died(Death(index, pid, code, lived, pause))
                if not self._stopping:
                    self._start(index, pause)
        _reap_orphans()
        return worst

    def _pause(self, index: int, lived: float) -> float:
        """How long it is to wait now that it has died."""
        short = self._short[index] = self._short.get(index, 0) + 1 if lived < MOST_SECONDS else 0
        return pause_of(short, lived)

    def _start(self, index: int, pause: float = 0.0) -> None:
        self._started[index] = time.monotonic() + pause
        # A signal between the fork and the note of it would miss the child, or run our handler in it.
        signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            for number in ENDS:
                signal.signal(number, signal.SIG_DFL)
            _end_with(parent)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
            time.sleep(pause)  # Here, for the parent has others to look after; a signal ends it.
            os._exit(self._work(index))
        self._pids[pid] = index
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)
        if self._stopping:  # The signal came just before: it has told the others only.
            os.kill(pid, signal.SIGTERM)

    def _on_signal(self, number: int, frame: object) -> None:
        self._stop(number)

    def _stop(self, number: int) -> None:
        self._stopping = True
        for pid in self._pids:
            os.kill(pid, number)


def pause_of(short: int, lived: float) -> float:
    """Seconds to wait for a worker that has died soon `short` times in a row, and lived so long the last time."""
    between = min(MOST_SECONDS, RESTART_SECONDS * 2.0 ** min(short - 1, 10)) if short else RESTART_SECONDS
    return max(0.0, between - max(0.0, lived))


def _end_with(parent: int) -> None:
    """Have the kernel tell this worker to end when its parent was killed: nobody would look after it, nor end it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PARENT_DEATH, int(signal.SIGTERM), 0, 0, 0)
        if os.getppid() != parent:  # before it was asked to
            os.kill(os.getpid(), signal.SIGTERM)


def _adopt_orphans() -> None:
    """Have the kernel make this process the parent of what a worker leaves behind; other systems have no such thing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def _reap_orphans() -> None:
    """Wait for what was left behind: it ends by itself, with the pipe that its worker held."""
    end = time.monotonic() + REAP_SECONDS
    while time.monotonic() < end:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            time.sleep(REAP_PACE)
