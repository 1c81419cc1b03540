"""Workers that ended though nobody had asked the gateway to: a line in the log and a counter, by the parent, who has no loop.

A worker that is killed can say nothing itself. The parent's counter lies in the folder `run` with the figures of the workers, so
whoever of them answers `/metrics` counts it in, and it goes on whatever becomes of them.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import select
import signal
import sys
import time
from collections.abc import Callable

import msgspec

from sits.gateway.crew import Figures
from sits.observe.metrics import Dump, SeriesDump
from sits.observe.stamp import rfc3339

DEATHS = "sits_worker_deaths_total"


class Death(msgspec.Struct, frozen=True):
    """How a worker ended: `code` as `os.waitstatus_to_exitcode` gives it, seconds that it lived, and until it is started again;
    None when it is not."""

    worker: int
    pid: int
    code: int
    lived: float
    pause: float | None

    @property
    def cut(self) -> bool:
        """Whether it died with what it had under way; it ends well when somebody sends it alone the signal to."""
        return self.code != 0

    def __str__(self) -> str:
        again = "" if self.pause is None else f"; it is started again {f'in {self.pause:.1f} s' if self.pause else 'now'}"
        lost = "answers that it had under way are cut" if self.cut else "answers that it had under way were finished"
        return f"worker {self.worker} (pid {self.pid}) {_how(self.code)} after {self.lived:.1f} s; {lost}{again}"


class Deaths:
    """Of one gateway. `write` takes whole lines; `figures` are those of the parent."""

    def __init__(self, workers: int, figures: Figures, write: Callable[[bytes], None], wall: Callable[[], float]) -> None:
        self._counts = [0] * workers
        self._figures = figures
        self._write = write
        self._wall = wall
        self._keep()

    def __call__(self, death: Death) -> None:
        """Say it, and count it where answers were cut."""
        level = "error" if death.cut else "warning"
        line = {"ts": rfc3339(self._wall()), "level": level, "logger": "sits.gateway", "msg": str(death)}
        self._write(msgspec.json.encode(line) + b"\n")
        if death.cut:
            self._counts[death.worker] += 1
            self._keep()

    def _keep(self) -> None:
        series = [SeriesDump((str(worker),), count) for worker, count in enumerate(self._counts)]
        self._figures.keep(msgspec.msgpack.encode(Dump({DEATHS: series}, self._figures.name)))


def watched(data: pathlib.Path, gateway: int, workers: int) -> Deaths:
    """Those of this gateway, told on stderr."""
    with contextlib.suppress(OSError):  # The workers say what is wrong with their folder, and end.
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Deaths(workers, Figures(data / "run", gateway, "crew"), to_stderr, time.time)


def to_stderr(line: bytes) -> None:
    """A line that is lost where nobody reads it: workers are started again, whoever is stuck. A pipe that can be written to has
    room for 4 KiB."""
    try:
        out = sys.stderr.fileno()
        if select.select([], [out], [], 0)[1]:
            os.write(out, line)
    except (OSError, ValueError):
        return  # stderr is closed, or gone.


def _how(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = " (by hand, or by a kernel that was out of memory: it says so in its own log)" if -code == signal.SIGKILL else ""
    return f"was killed by {name}{hint}"
