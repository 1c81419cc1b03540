"""How loaded this machine is, from the kernel's own files: processors, memory, accelerators, local models, our event loop."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from sits.engines.local import memory
from sits.engines.local.lease import living

_GROUPS = {"": ("sys/fs/cgroup", "memory.max"), "memory": ("sys/fs/cgroup/memory", "memory.limit_in_bytes")}
"""Controllers as /proc/self/cgroup names them, in version 2 and 1 -> where such groups lie, and the file of their limit."""
LAG_SECONDS = 0.05
"""How often the event loop is asked how late it is."""


class Machine:
    """Readings of now; each takes well below a millisecond. `root` is where /proc and /sys are."""

    def __init__(self, root: Path = Path("/"), run: Path | None = None) -> None:
        self._root = root
        self._run = run
        self._page = os.sysconf("SC_PAGE_SIZE")
        self._limit = self._memory_limit()
        self._cpu: tuple[int, int] | None = None
        self.local_limit: int | None = None
        """Bytes that local models may take; what there is at all when None."""

    def process_memory(self) -> float | None:
        return self._share(self._resident("self"))

    def host_memory(self) -> float | None:
        if self._limit is None:
            return None
        try:
            return 1.0 - min(memory.available(self._root), self._limit) / self._limit
        except OSError:
            return None

    def host_cpu(self) -> float | None:
        """Since the last time that this was asked; None the first time (proc_stat(5))."""
        fields = _text(self._root / "proc/stat").partition("\n")[0].split()[1:9]
        if len(fields) < 5 or not all(field.isdigit() for field in fields):
            return None
        ticks = [int(field) for field in fields]
        now = (sum(ticks), ticks[3] + ticks[4])
        before, self._cpu = self._cpu, now
        if before is None or now[0] <= before[0]:
            return None
        return 1.0 - (now[1] - before[1]) / (now[0] - before[0])

    def local_memory(self) -> float | None:
        """Of the models of all workers on the data folder; 0 when none is loaded."""
        paths = self._run.glob("*.json") if self._run is not None else ()
        taken = sum(self._resident(str(lease.pid)) or 0 for path in paths if (lease := living(path)) is not None)
        limit = self.local_limit or self._limit
        return taken / limit if limit else None

    def accelerator_memory(self) -> float | None:
        """Of the fullest accelerator whose driver writes it under /sys (docs.kernel.org/gpu/amdgpu/driver-misc.html)."""
        shares = []
        for used in self._root.glob("sys/class/drm/card*/device/mem_info_vram_used"):
            taken, total = _number(used), _number(used.with_name("mem_info_vram_total"))
            if taken is not None and total:
                shares.append(taken / total)
        return max(shares, default=None)

    def accelerator_use(self) -> float | None:
        """Of the busiest accelerator whose driver writes it under /sys."""
        found = [_number(path) for path in self._root.glob("sys/class/drm/card*/device/gpu_busy_percent")]
        return max((figure / 100 for figure in found if figure is not None), default=None)

    def _resident(self, process: str) -> int | None:
        fields = _text(self._root / "proc" / process / "statm").split()
        return int(fields[1]) * self._page if len(fields) > 1 and fields[1].isdigit() else None

    def _share(self, taken: int | None) -> float | None:
        return taken / self._limit if taken is not None and self._limit else None

    def _memory_limit(self) -> int | None:
        """Bytes that we may have at the most: what the machine has, or one of the control groups above us (cgroups(7))."""
        total = next(
            (
                int(line.split()[1]) * 1024
                for line in _text(self._root / "proc/meminfo").splitlines()
                if line.startswith("MemTotal:")
            ),
            None,
        )
        limits = [] if total is None else [total]
        for line in _text(self._root / "proc/self/cgroup").splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers not in _GROUPS:
                continue
            mount, name = _GROUPS[controllers]
            parts = [part for part in path.split("/") if part not in ("", "..")]
            for depth in range(len(parts) + 1):
                limit = _number(self._root.joinpath(mount, *parts[:depth], name))
                if limit:
                    limits.append(limit)
        return min(limits, default=None)


class Lag:
    """How late the event loop gets to what is due: the worst since the last time it was asked. Runs between `start` and
    `stop`."""

    __slots__ = ("_due", "_loop", "_timer", "_worst")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        self._worst = 0.0

    def start(self) -> None:
        if self._timer is None:
            self._worst = 0.0
            self._next()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def take(self) -> float | None:
        """Milliseconds."""
        if self._timer is None:
            return None
        worst, self._worst = max(self._worst, self._loop.time() - self._due), 0.0
        return worst * 1000

    def _next(self) -> None:
        self._due = self._loop.time() + LAG_SECONDS
        self._timer = self._loop.call_at(self._due, self._here)

    def _here(self) -> None:
        self._worst = max(self._worst, self._loop.time() - self._due)
        self._next()


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, UnicodeDecodeError):
        return ""


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdigit() else None  # "max" is no limit
