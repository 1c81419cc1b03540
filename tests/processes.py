"""Processes that tests start and look at."""

from __future__ import annotations

import contextlib
from pathlib import Path


def children() -> dict[int, str]:
    """The processes that this one has started and that live, with their command lines. Threads and processes may end while they
    are looked at."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for pid in (thread / "children").read_text().split():
                with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                    found[int(pid)] = Path(f"/proc/{pid}/cmdline").read_text()
    return found
