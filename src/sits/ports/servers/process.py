"""A server that runs beside us for a while: started, awaited, killed and started again on the same port, surely ended."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType

from sits.inner.errors import Code, SitsError

_STOP_SECONDS = 10.0


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class ServerProcess:
    """One server. In a `with` it is running inside and gone after; `kill` and `start` may be called in between.

    `ready` is asked until it is true, at most `seconds` long; it may raise OSError for "not yet".
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        ready: Callable[[], bool],
        *,
        log: Path,
        seconds: float = 30.0,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self._command = list(command)
        self._ready = ready
        self._seconds = seconds
        self._env = {**os.environ, **(env or {})}
        self._user = user
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None, "not started"
        return self._process.pid

    def start(self) -> None:
        """Start it and wait until it is ready.

        Raises:
            SitsError: `state_unavailable`, it ended or was not ready in time; the message has the end of its log.
        """
        with self.log.open("ab") as out:
            # A session of its own: the whole group is ended, also what the server started itself.
            self._process = subprocess.Popen(  # noqa: S603 - the commands are ours
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._env,
                user=self._user,
                start_new_session=True,
            )
        give_up = time.monotonic() + self._seconds
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > give_up:
                end = self.log.read_text(errors="replace")[-2000:]
                self.kill()
                raise SitsError(Code.STATE_UNAVAILABLE, f"{self.name} did not start: {end}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it as a crash would: SIGKILL to all of it. Safe to repeat."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Ask it to end, kill it when it stays. Safe to repeat."""
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stop it where it stands (SIGSTOP): it keeps its connections and answers nothing."""
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        os.killpg(self.pid, signal.SIGCONT)

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _is_ready(self) -> bool:
        with contextlib.suppress(OSError):
            return self._ready()
        return False

    def _end(self, how: signal.Signals) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
            os.killpg(process.pid, how)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        self._process = None


def answers(port: int, question: bytes, answer: bytes) -> Callable[[], bool]:
    """A ready check: connect to a loopback port, send `question`, and see whether `answer` is in what comes back first."""

    def check() -> bool:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as connection:
            connection.settimeout(1.0)
            if question:
                connection.sendall(question)
            return answer in connection.recv(4096)

    return check
