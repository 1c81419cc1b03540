"""From the parts of an address to a runner: what may stand in it, and which package it needs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from urllib.parse import SplitResult

from sits.inner.errors import Code, SitsError
from sits.ports.flows.base import Flows

_LEASE = 10.0


async def memory(
    parts: SplitResult,
    options: dict[str, str],
    data: Path,
    wall: Callable[[], float],
    timeout: float,  # noqa: ASYNC109
) -> Flows:
    from sits.ports.flows.memory import MemoryFlows

    _only(parts, options, ())
    return MemoryFlows(now=wall())


async def embedded(
    parts: SplitResult,
    options: dict[str, str],
    data: Path,
    wall: Callable[[], float],
    timeout: float,  # noqa: ASYNC109
) -> Flows:
    from sits.ports.flows.embedded import EmbeddedFlows
    from sits.ports.store import open_store

    _only(parts, options, ("lease",))
    lease = _seconds(options, "lease", _LEASE)
    store = await open_store("sqlite", data, wall=wall, timeout=timeout)
    return EmbeddedFlows(store, wall=wall, lease=lease, tick=min(0.1, lease / 10), timeout=timeout)


async def temporal(
    parts: SplitResult,
    options: dict[str, str],
    data: Path,
    wall: Callable[[], float],
    timeout: float,  # noqa: ASYNC109
) -> Flows:
    try:
        from sits.ports.flows.temporal import TemporalFlows
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "temporalio":
            raise
        raise SitsError(Code.UNSUPPORTED, "flows on Temporal need a package: pip install 'sits[distributed]'") from error

    _only(parts, options, ("lease", "queue"))
    try:
        target = f"{parts.hostname}:{parts.port}" if parts.hostname and parts.port else ""
    except ValueError:
        target = ""
    namespace = parts.path.strip("/")
    if not target or not namespace or "/" in namespace or parts.username or parts.password:
        shown = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
        raise _wrong(f"{shown!r} is not an address like temporal://127.0.0.1:7233/default")
    return TemporalFlows(
        target,
        namespace,
        queue=options.get("queue") or "sits",
        lease=_seconds(options, "lease", _LEASE),
        timeout=timeout,
    )


def _only(parts: SplitResult, options: dict[str, str], known: tuple[str, ...]) -> None:
    unknown = sorted(set(options) - set(known))
    if unknown:
        raise _wrong(f"{unknown[0]!r} is not an option of this address; there are: {', '.join(known) or 'none'}")
    if parts.scheme != "temporal" and (parts.netloc or parts.scheme or parts.fragment):
        raise _wrong(f"{parts.scheme or parts.path!r} takes no host")


def _seconds(options: dict[str, str], name: str, default: float) -> float:
    try:
        seconds = float(options.get(name, default))
    except ValueError:
        seconds = 0.0
    if not 0.1 <= seconds <= 3600.0:
        raise _wrong(f"{name}={options[name]!r} is not a number of seconds from 0.1 to 3600")
    return seconds


def _wrong(message: str) -> SitsError:
    return SitsError(Code.INVALID_REQUEST, f"flows: {message}", param="flows")
