"""Giving back pages that hold nothing but zeros. Imported only by the host.

A fresh context of llama.cpp is memory that was filled with zeros and not used yet: 45 MiB for 4 x 512 tokens of SmolLM2, 360 for
4 x 4096. A private page of zeros that is given back (madvise, MADV_DONTNEED) reads as zeros when it is used next, so that nothing
that owns it can tell, whatever it is, and no layout of llama.cpp's has to be known. 4 x 4096 tokens: 403 MiB before, 40 after, in
0.15 s.

Only a write between the look and the call would be lost. So nobody may be using the memory meanwhile: the server has no address
that anybody knows yet, and Python itself must not have its objects in anonymous maps. `[heap]` is left alone, where malloc puts
those of the main thread, and the host runs with PYTHONMALLOC=malloc. Stacks of threads are left alone too: a thread may wake at
any moment, and go deeper than it ever was.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from sits.engines.local.memory import MIB

_STEP = 64 * 1024
"""Looked at at once; a multiple of every page size of Linux but those of huge pages."""
_LEAST = MIB
"""Shorter runs of zeros are left where they are."""
_STACK = 64 * MIB
"""What follows a guard page and has no more than this is the stack of a thread."""
_MADV_DONTNEED = 4


def give_zeros_back() -> int:
    """Give the long runs of zeros among this process' private memory back; how many bytes they had, resident or not.

    Raises:
        OSError: the kernel refused.
    """
    if os.environ.get("PYTHONMALLOC") != "malloc":
        raise OSError("Python's objects may lie among what is given back: run with PYTHONMALLOC=malloc")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    given = 0
    # Files have names in any encoding; of odd characters only line ends are written as `\012`.
    for first, last in list(_anonymous(Path("/proc/self/maps").read_bytes().split(b"\n"))):
        for begin, end in _zeros(libc, first, last):
            if libc.madvise(begin, end - begin, _MADV_DONTNEED) != 0:
                raise OSError(ctypes.get_errno(), "madvise")
            given += end - begin
    return given


def trim() -> None:
    """Have malloc give back what it keeps for later, where the C library can."""
    found = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if found is not None:
        found(0)


def _anonymous(lines: list[bytes]) -> Iterator[tuple[int, int]]:
    """Where private memory without a name lies that may be written and is no stack: `START-END rw-p OFFSET DEV INODE`."""
    guard = 0
    for line in lines:
        fields = line.split()
        if len(fields) < 5:
            continue  # behind the last line end
        first, last = (int(part, 16) for part in fields[0].split(b"-"))
        if len(fields) == 5 and fields[1] == b"rw-p" and fields[4] == b"0":
            stack = first == guard and last - first <= _STACK
            if last - first >= _LEAST and not stack:
                yield first, last
        guard = last if fields[1].startswith(b"---") else 0


def _zeros(libc: ctypes.CDLL, first: int, last: int) -> Iterator[tuple[int, int]]:
    """The long runs of zeros between two addresses."""
    begin = first
    for at in range(first, last, _STEP):
        count = min(_STEP, last - at)
        # All are equal to the one before them, and the first is zero.
        if ctypes.c_char.from_address(at).value == b"\0" and libc.memcmp(at, at + 1, count - 1) == 0:
            continue
        if at - begin >= _LEAST:
            yield begin, at
        begin = at + count
    if last - begin >= _LEAST:
        yield begin, last
