"""A process that a bench starts, pinned to a core, and surely ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from sits.bench import BenchError

_STOP_SECONDS = 15.0


class Child:
    """A started process. Use it in a `with`: on the way out it is told to end, waited for, and killed if it stays."""

    def __init__(self, name: str, command: Sequence[str], *, core: int, log: Path, env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.log = log
        self.started = time.monotonic()
        # Bytecode must be written and kept, or a Python peer compiles itself anew at each start; and nobody gets our packages.
        ours = ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")
        full = {key: value for key, value in os.environ.items() if key not in ours} | dict(env or {})
        with log.open("wb") as out:
            # Pinned before exec: Rust and Go size their thread pools by the cores they see at their start.
            self._process = subprocess.Popen(  # noqa: S603 - the commands are ours
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=full,
                start_new_session=True,
                preexec_fn=lambda: os.sched_setaffinity(0, {core}),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def await_ready(self, check: Callable[[], bool], *, seconds: float, every: float = 0.01) -> float:
        """Seconds from the start of the process until `check` is true.

        Raises:
            BenchError: it ended, or was not ready in time; the message has the end of its log.
        """
        while not check():
            if not self.alive:
                raise BenchError(f"{self.name} ended with code {self._process.returncode} before it was ready:\n{self.tail()}")
            if time.monotonic() - self.started > seconds:
                raise BenchError(f"{self.name} was not ready after {seconds:.0f} s:\n{self.tail()}")
            time.sleep(every)
        return time.monotonic() - self.started

    def tail(self) -> str:
        """The last lines that it wrote."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-15:])

    def stop(self) -> None:
        """End it and everything that it started. Safe to repeat."""
        if not self.alive:
            self._signal_group(signal.SIGKILL)
            return
        self._process.terminate()
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._signal_group(signal.SIGKILL)

    def _signal_group(self, number: int) -> None:
        try:
            os.killpg(self.pid, number)
        except (ProcessLookupError, PermissionError):
            return

    def __enter__(self) -> Child:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def answers(url: str) -> Callable[[], bool]:
    """A check that `url` answers 200."""

    def check() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2.0) as response:  # noqa: S310 - always http to loopback
                return bool(response.status == 200)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False

    return check
