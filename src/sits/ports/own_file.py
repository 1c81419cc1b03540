"""A file that only its owner may read, made before a library opens it."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def own_file(path: Path) -> None:
    """Create what is missing for the owner alone. A folder that was there keeps its mode; the file never stays readable.

    A file that is there is not opened: when a process closes a file anywhere, POSIX has it lose all its locks on it, SQLite's
    among them, and then another process that closes the database takes the write-ahead log away under us, committed
    transactions and all (sqlite.org/howtocorrupt.html, 2.2).

    Raises:
        OSError: it cannot be made.
    """
    if not path.parent.exists():
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    if path.stat().st_mode & 0o077:
        path.chmod(0o600)
