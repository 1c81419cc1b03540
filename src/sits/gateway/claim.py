"""One gateway at a time on a data folder: two would count, learn and book as one, without knowing of each other.

The claim is a lock on `run/gateway`, which the kernel lets go of when the last process that has it is gone, however it ended:
none is ever left over. Workers have it by being forked. Those of a gateway that was killed finish what they have under way and
end, and who comes next waits for them.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import re
import socket
import time
from collections.abc import Callable, Iterator

from sits.inner.errors import Code, SitsError
from sits.ports.room import told

FILE = "gateway"
_NOTE = 512
"""Bytes that are read of what the holder has written about itself."""
_HOLDER = re.compile(r"pid (?P<pid>[0-9]{1,9}) at .* on (?P<host>\S+)")
LEFT_SECONDS = 60.0
"""How long workers may take to end whose gateway is gone."""
PACE = 0.05


@contextlib.contextmanager
def claimed(data: pathlib.Path, waits: Callable[[str], None] = lambda who: None) -> Iterator[Callable[[str], None]]:
    """Have the data folder, made when missing, for this gateway and its workers. What is given takes the address, to be told to
    others that want the folder. `waits` hears, once, whose workers are waited for.

    Raises:
        SitsError: `conflict`, another gateway has it, the message says which; `state_unavailable` or `internal_error`, it cannot
            be written, or locked.
    """
    path = data / "run" / FILE
    try:
        for folder in (data, path.parent):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise told(error, path) from error
    try:
        _lock(fd, data, path, waits)

        def note(address: str) -> None:
            # A disk without room for the note has some for the lock, which is what counts.
            with contextlib.suppress(OSError):
                os.ftruncate(fd, 0)
                os.pwrite(fd, f"pid {os.getpid()} at {address} on {socket.gethostname()}".encode(), 0)

        note("no address yet")
        yield note
    finally:
        os.close(fd)


def _lock(fd: int, data: pathlib.Path, path: pathlib.Path, waits: Callable[[str], None]) -> None:
    end = 0.0
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            who = os.pread(fd, _NOTE, 0).decode("utf-8", "replace")
            if _gone(who) and (not end or time.monotonic() < end):
                if not end:
                    waits(who)
                    end = time.monotonic() + LEFT_SECONDS
                time.sleep(PACE)
                continue
            message = (
                f"the data folder {data} has a gateway already: {who or 'one that has not said which'}, or a worker that it left "
                "behind; end that one first, or give this one a folder of its own with --data"
            )
            raise SitsError(Code.CONFLICT, message) from error
        except OSError as error:
            raise told(error, path) from error


def _gone(who: str) -> bool:
    """Whether the gateway that wrote this is known to have ended: only workers of it can still have the folder."""
    found = _HOLDER.fullmatch(who)
    if found is None or found["host"] != socket.gethostname():
        return False
    try:
        os.kill(int(found["pid"]), 0)
    except ProcessLookupError:
        return True
    except OSError:  # it lives, as somebody else
        return False
    return False
