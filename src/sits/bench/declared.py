"""What a bench declares to the gateways that it starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec


def resource(kind: str, name: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "sits/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}


def settings(**spec: Any) -> dict[str, Any]:
    return {"apiVersion": "sits/v1", "kind": "Settings", "spec": spec}


def declare(config: Path, name: str, resources: Mapping[str, Any] | Sequence[Mapping[str, Any]]) -> None:
    """Write them into the folder as one file, put there in one move: a gateway that watches sees all of it or nothing."""
    draft = config / f".{name}.json"
    draft.write_bytes(msgspec.json.encode(resources))
    draft.replace(config / f"{name}.json")
