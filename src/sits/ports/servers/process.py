"""A server that runs beside us for a while: started, awaited, killed and started again on the same port, surely ended."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from sits.inner.errors import Code, SitsError

_STOP_SECONDS = 10.0


LOWEST = 10_000
_GIVEN_OUT = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on now, and that the kernel gives nobody who wants any (ip(7)): it is free
    still when a server is started on it a moment later."""
    try:
        above = int(_GIVEN_OUT.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        above = 32_768
    for _ in range(100 if above > LOWEST else 0):
        port = LOWEST + int.from_bytes(os.urandom(4), "big") % (above - LOWEST)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """One server. In a `with` it is running inside and gone after; `kill` and `start` may be called in between.

    `ready` is asked until it is true, at most `seconds` long; it may raise OSError for "not yet". `user` is whom it runs as, with
    that user's own group and no others.
    """

    stop_signal = signal.SIGTERM
    """What asks it to end soon, whoever is still connected."""

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
                start_new_session=True,
                **as_user(self._user),
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
        self._end(self.stop_signal)

    def pause(self) -> None:
        """Stop all of it where it stands (SIGSTOP): it keeps its connections and answers nothing."""
        os.killpg(self.pid, signal.SIGSTOP)
        _signal(_offspring(self.pid), signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        _signal(_offspring(self.pid), signal.SIGCONT)
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
        # Seen before it dies: after that nobody knows whose they were. Some are in groups of their own (those of PostgreSQL).
        offspring = _offspring(process.pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, how)
        if how is signal.SIGKILL:
            _signal(offspring, how)
        _signal(offspring, signal.SIGCONT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGCONT)
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        _signal(offspring, signal.SIGKILL)
        give_up = time.monotonic() + _STOP_SECONDS
        while any(map(_is_alive, offspring)) and time.monotonic() < give_up:
            time.sleep(0.005)
        self._process = None


def as_user(user: str | None) -> dict[str, Any]:
    """The arguments for `subprocess` to run something as `user`; none for None."""
    return {} if user is None else {"user": user, "group": pwd.getpwnam(user).pw_gid, "extra_groups": []}


_Born = tuple[int, str]
"""A process: its id and when it was started, so that a later one of the same id is not taken for it."""


def _offspring(pid: int) -> list[_Born]:
    """The processes that descend from `pid`, as /proc(5) has them."""
    children: dict[int, list[_Born]] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and (about := _about(int(folder.name))) is not None:
            _, parent, born = about
            children.setdefault(parent, []).append((int(folder.name), born))
    found = list(children.get(pid, ()))
    for child, _ in found:  # grows as we go
        found += children.get(child, ())
    return found


def _about(pid: int) -> tuple[str, int, str] | None:
    """The state, the parent and the time of birth of a process; None when there is none."""
    with contextlib.suppress(OSError):
        # The name, in brackets, may hold anything; the rest is fields 3 and on.
        fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[1]), fields[19]
    return None


def _is_alive(process: _Born) -> bool:
    about = _about(process[0])
    return about is not None and about[2] == process[1] and about[0] not in "ZX"


def _signal(processes: Sequence[_Born], how: signal.Signals) -> None:
    for process in processes:
        if _is_alive(process):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process[0], how)


def answers(port: int, question: bytes, answer: bytes, host: str = "127.0.0.1") -> Callable[[], bool]:
    """A ready check: connect to a port, send `question`, and see whether `answer` is in what comes back first."""

    def check() -> bool:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            connection.settimeout(1.0)
            if question:
                connection.sendall(question)
            return answer in connection.recv(4096)

    return check
