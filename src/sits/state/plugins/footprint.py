"""What this process holds, by means that take microseconds: memory of Python and of the C library, threads, files, tasks."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Sized

from sits.routing.plugins.limits import Footprint

BLOCK = 64
"""Bytes that a small object of Python takes, about: those are counted, not measured."""
_OF_THREAD: int | None = getattr(resource, "RUSAGE_THREAD", None)
_PAGE = os.sysconf("SC_PAGE_SIZE")
_NAMES = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Heap(ctypes.Structure):
    """`struct mallinfo2`, mallinfo(3)."""

    _fields_ = [(name, ctypes.c_size_t) for name in _NAMES]


class ProcessFootprint(Footprint):
    """Of this process. Other threads blur it: what is to be seen must be seen several times.

    Not seen is a single empty list, dict, tuple or float that is kept, which Python may have had in stock.
    """

    def __init__(self) -> None:
        self._heap = _heap_reader()
        self._tasks = _tasks()
        self._collects = False

    def memory(self) -> int:
        return self._heap() + sys.getallocatedblocks() * BLOCK

    def others(self) -> tuple[int, int, int]:
        return threading.active_count(), _files(), len(self._tasks)

    def turns(self) -> tuple[float, int]:
        return turns()

    def hold(self, clean: bool) -> None:
        self._collects = gc.isenabled()
        gc.disable()
        if clean:
            gc.collect(0)

    def collect(self) -> None:
        gc.collect(0)

    def free(self) -> None:
        if self._collects:
            gc.enable()


def turns() -> tuple[float, int]:
    """Seconds for which this thread had a processor, and how often one was taken from it (getrusage(2); where that cannot be
    told of a thread, never). Some 2 us."""
    taken = resource.getrusage(_OF_THREAD).ru_nivcsw if _OF_THREAD is not None else 0
    return time.thread_time(), taken


def _heap_reader() -> Callable[[], int]:
    """Bytes handed out by malloc (glibc 2.33); elsewhere the pages in use, which tell less."""
    try:
        mallinfo2 = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        return _pages
    mallinfo2.restype, mallinfo2.argtypes = _Heap, []

    def heap() -> int:
        found = mallinfo2()
        return int(found.uordblks + found.hblkhd)

    return heap


def _pages() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * _PAGE
    except OSError:
        return 0


def _files() -> int:
    try:
        return len(os.listdir("/proc/self/fd"))
    except OSError:
        return 0


def _tasks() -> Sized:
    """All tasks, without walking through them; asyncio has no word for how many there are, and its names for the set change."""
    for name in ("_scheduled_tasks", "_all_tasks"):
        found = getattr(asyncio.tasks, name, None)
        if isinstance(found, Sized):
            return found
    return ()
