"""What a bench ran on: without it no figure means anything to the next reader."""

from __future__ import annotations

import contextlib
import datetime
import importlib.metadata
import os
import platform
from pathlib import Path

from sits import __version__


def environment(versions: dict[str, str] | None = None, *told: tuple[str, str]) -> list[tuple[str, str]]:
    """Pairs of a label and a value, in the order they are shown; `versions` are those of what was measured, `told` comes last."""
    uname = os.uname()
    rows = [
        ("Date", datetime.datetime.now(tz=datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")),
        ("CPU", cpu_model(Path("/proc/cpuinfo").read_text())),
        ("Cores", f"{len(os.sched_getaffinity(0))} usable of {os.cpu_count()}"),
        ("Memory", memory(Path("/proc/meminfo").read_text())),
        ("Kernel", f"{uname.sysname} {uname.release} {uname.machine}"),
        ("Python", f"{platform.python_implementation()} {platform.python_version()}"),
        ("SITS", __version__),
    ]
    return [*rows, *sorted((versions or {}).items()), *told]


def load_before() -> tuple[str, str]:
    """How busy the machine is. Asked before a bench begins: afterwards the load is its own."""
    return "Load of the machine before", f"{os.getloadavg()[0]:.1f} (anything above 0.5 makes times worse)"


def installed(*names: str) -> dict[str, str]:
    """The versions of those packages that are installed here."""
    versions = {}
    for name in names:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def cpu_model(cpuinfo: str) -> str:
    """The model name of the first processor in the text of /proc/cpuinfo."""
    for entry in cpuinfo.splitlines():
        label, _, value = entry.partition(":")
        if label.strip() == "model name":
            return value.strip()
    return platform.machine()


def memory(meminfo: str) -> str:
    """The total memory in the text of /proc/meminfo."""
    for entry in meminfo.splitlines():
        if entry.startswith("MemTotal:"):
            return f"{int(entry.split()[1]) / 1024 / 1024:.1f} GiB"
    return "unknown"
