"""Where in a trace the configuration is that cannot be used, and what of it is at fault."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from sits.observe.trace_row import LONGEST, Head, TraceError, files_of
from sits.resources.problem import ConfigError
from sits.resources.reading import read_value
from sits.resources.snapshot import compile

_DECODER = msgspec.json.Decoder(Head)


def unusable(path: Path, head: Head, error: Exception) -> TraceError:
    """`error`, which came of the configuration in `head`, with its file, its line, and the resources that are at fault."""
    place = _where(path, head.snapshot)
    if faults := _faults(head, place):
        return TraceError("\n".join(["the configuration in the trace cannot be used:", *(f"  {fault}" for fault in faults)]))
    return TraceError(f"{place}: {error}")


def _where(path: Path, snapshot: str) -> str:
    """The first head of a configuration, as `file:line`."""
    wanted = snapshot.encode()
    for file in files_of(path):
        with file.open("rb") as stream:
            for number, raw in enumerate(iter(lambda: stream.readline(LONGEST), b""), 1):
                if wanted in raw and _snapshot(raw) == snapshot:
                    return f"{file}:{number}"
    return str(path)


def _snapshot(raw: bytes) -> str:
    try:
        return _DECODER.decode(raw).snapshot
    except msgspec.DecodeError:
        return ""


def _faults(head: Head, place: str) -> list[str]:
    """What is wrong with it, each with the resource; none where it can be compiled."""
    declared, found = [], []
    for one in head.resources:
        try:
            declared.append(read_value(one, f"{place}, {_called(one)}:"))
        except ConfigError as error:
            found += [str(problem) for problem in error.problems]
    if not found:
        try:
            compile(declared, 1)
        except ConfigError as error:
            found += [str(problem) for problem in error.problems]
    return found


def _called(one: dict[str, Any]) -> str:
    """Kind and name of a resource, as far as it says."""
    metadata = one.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return " ".join(str(part)[:80] for part in (one.get("kind", "a resource"), name) if part is not None)
