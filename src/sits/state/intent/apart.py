"""Fitting in a process of its own: it needs many times the memory of the result, and gives all of it back at its end.

    python -m sits.state.intent.apart

reads a `Task` from its input and writes a `Fitted` to its output; to its error output, on a line each, how far it is (`STEP`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable

import msgspec

from sits.engines.local.aside import aside
from sits.inner.errors import Code, SitsError
from sits.routing.intent.tune import Tuning
from sits.state.intent.fits import Held, held, pack

GENTLE = 10
"""By how much requests go before it (nice)."""
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Task(msgspec.Struct, frozen=True, array_like=True):
    """What to fit; arrays have a row for each text."""

    domains: tuple[str, ...]
    least: tuple[float | None, ...]
    texts: list[str]
    labels: Held
    shared: Held
    tokens: Held
    embeddings: Held
    tuning: Tuning
    left: Held
    """The rows of what was embedded that the examples are from; goes into the result as it is."""
    kinds: bool = False
    """Whether other kinds of task are among what is of none."""
    anew: bool = False
    """Whether `tuning` was made with other embeddings: of the deep stage it says nothing here."""


STEP = "fitted"
"""How a line begins that tells how far it is."""
LINES = 40
"""Others that are kept, to say what went wrong."""
Told = Callable[[int, int], None]
"""Hears how many heads are fitted, and of how many."""


async def fit_apart(task: Task, told: Told = lambda done, of: None) -> bytes:
    """What was fitted, as `fits.unpack` reads it. Ends the process when it is cancelled.

    Raises:
        SitsError: `internal_error`: the process could not be started, or did not end well.
    """
    loop = asyncio.get_running_loop()
    fitting = _Fitting(msgspec.msgpack.encode(task), lambda done, of: _tell(loop, told, done, of))
    try:
        code, found, said = await aside(fitting.run, "intent")
    except OSError as error:
        raise SitsError(Code.INTERNAL, f"fitting could not be started: {error.strerror}") from error
    finally:
        fitting.end()
    if code != 0:
        raise SitsError(Code.INTERNAL, f"fitting failed ({code}): {said[-300:]}")
    return found


class _Fitting:
    """The process, of the thread that runs it; `end` may come from another thread at any time, also before the start."""

    def __init__(self, given: bytes, told: Told) -> None:
        self._given = given
        self._told = told
        self._process: subprocess.Popen[bytes] | None = None
        self._ended = False

    def run(self) -> tuple[int, bytes, str]:
        """Its exit code, what it writes to its output, and the last line of what it says went wrong.

        Raises:
            OSError: it cannot be started.
        """
        command = [sys.executable, "-m", "sits.state.intent.apart"]
        # The modules are found as they are here, wherever that is. One thread: several would spin where requests want the cores.
        around = os.environ | ONE_THREAD | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        process = subprocess.Popen(  # noqa: S603 - our own module
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=around
        )
        with process:
            self._process = process
            if self._ended:  # before it was there to be killed
                process.kill()
            found, said = _talk(process, self._given, self._told)
        return process.returncode, found, said

    def end(self) -> None:
        """Nothing is wanted of it any more: the thread that talks to it sees its end, and nothing is left of it."""
        self._ended = True
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()


def _talk(process: subprocess.Popen[bytes], given: bytes, told: Told) -> tuple[bytes, str]:
    """What it writes to its output, and the last line of what it says went wrong."""
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    lines: deque[str] = deque([""], LINES)
    errors = process.stderr

    def hear() -> None:
        for raw in errors:
            line = raw.decode(errors="replace").strip()
            words = line.split()
            if len(words) == 3 and words[0] == STEP and words[1].isdigit() and words[2].isdigit():
                told(int(words[1]), int(words[2]))
            elif line:
                lines.append(line)

    thread = threading.Thread(target=hear, name="fitting", daemon=True)
    thread.start()
    with contextlib.suppress(BrokenPipeError), process.stdin as stdin:  # where it has ended, its exit code says so
        stdin.write(given)
    found = process.stdout.read()
    thread.join()
    return found, lines[-1]


def _tell(loop: asyncio.AbstractEventLoop, told: Told, done: int, of: int) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has ended, and nobody wants to know
        loop.call_soon_threadsafe(told, done, of)


def fit_task(task: Task, told: Told = lambda done, of: None) -> bytes:
    """Fit, here and now."""
    from sits.routing.intent.fitting import LEAN, fit_intent, known
    from sits.state.intent.anew import tuned

    given = known(task.texts, held(task.tokens), held(task.labels), held(task.shared), held(task.embeddings))
    tuning = tuned(given, len(task.domains), task.tuning) if task.anew else task.tuning
    return pack(fit_intent(task.domains, task.least, given, tuning, LEAN if task.kinds else 0.0, told), held(task.left))


if __name__ == "__main__":
    os.nice(GENTLE)
    whole = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Task)
    sys.stdout.buffer.write(fit_task(whole, lambda done, of: print(STEP, done, of, file=sys.stderr, flush=True)))
