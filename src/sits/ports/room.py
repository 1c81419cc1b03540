"""Files that cannot be written: what the system said, in words that say what to do about it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from sits.inner.errors import Code, SitsError

_MIB = 1 << 20
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_CLOSED = frozenset((errno.EACCES, errno.EPERM, errno.EROFS))
_THE_OPERATORS = _FULL | _CLOSED | {errno.EIO, errno.ENOLCK, errno.EMFILE, errno.ENFILE}


def is_the_operators(error: OSError) -> bool:
    """Whether the machine, and no defect of ours, stands in the way: its disk is full, read-only or failing."""
    return error.errno in _THE_OPERATORS


def told(error: OSError, path: Path | None = None, *, wanted: int = 0) -> SitsError:
    """The error for whoever asked: `state_unavailable` where somebody has to look after the machine, `internal_error` where not.

    `path` is what was meant, else it is what the system names; `wanted` how many bytes it was to take.
    """
    place = path
    if place is None and isinstance(error.filename, (str, bytes)):
        place = Path(os.fsdecode(error.filename))
    message = f"{place}: {error.strerror or error}" if place else str(error.strerror or error)
    if hint := _hint(error, place, wanted):
        message = f"{message}; {hint}"
    return SitsError(Code.STATE_UNAVAILABLE if is_the_operators(error) else Code.INTERNAL, message)


def _hint(error: OSError, place: Path | None, wanted: int) -> str:
    if error.errno in _FULL:
        takes = f"it takes {wanted / _MIB:.1f} MiB, " if wanted else ""
        free = f"{_free(place) / _MIB:.1f} MiB are free there: " if place else ""
        return f"{takes}{free}make room, or use a folder on another disk"
    if error.errno in _CLOSED:
        return f"the folder must be one that user {os.geteuid()} may write to: mend that, or use another folder"
    if error.errno == errno.ENOLCK:
        return "its file system takes no locks, as NFS without its lock service: use a folder on a local disk"
    return ""


def _free(place: Path) -> int:
    """Bytes that are left where a file is, or would be."""
    for folder in (place, *place.parents):
        try:
            found = os.statvfs(folder)
        except OSError:
            continue
        return found.f_bavail * found.f_frsize
    return 0
