"""Figures in a file: whole, and such as can be read by. What is none is refused rather than filled up with what was never set."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from sits.inner.errors import Code, SitsError
from sits.resources.problem import quoted
from sits.routing.intent.tune import Tuning
from sits.routing.intent.verdict import Scale

T = TypeVar("T", bound=Tuning)
_NUMBERS = ("safe", "safe_none", "quick_penalty", "deep_penalty")


def decode(raw: bytes, path: Path, kind: type[T]) -> T:
    """The figures in a file's bytes.

    Raises:
        SitsError: `invalid_request`: they are none; the message says what is wrong with them.
    """
    try:
        found = msgspec.json.decode(raw)
    except RecursionError as error:
        raise _none(path, str(error)) from error
    except msgspec.DecodeError as error:
        raise _none(path, "it is no JSON") from error
    faults = list(_faults(found)) if isinstance(found, dict) else [f"{quoted(found, 40)} is no object"]
    if faults:
        raise _none(path, ", ".join(faults))
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise _none(path, str(error)) from error


def _none(path: Path, why: str) -> SitsError:
    return SitsError(Code.INVALID_REQUEST, f"{path}: it is no tuning: {why}; `sits intent tune --out` and `--use` write one")


def _faults(found: dict[str, Any]) -> Iterator[str]:
    missing = [name for name in Tuning.__struct_fields__ if name not in found]
    if missing:
        yield f"{', '.join(f'`{name}`' for name in missing)} {'is' if len(missing) == 1 else 'are'} missing"
    for name in _NUMBERS:
        if name in found and not _number(found[name], 0.0):
            yield f"`{name}` is {quoted(found[name], 40)}, and must be a number above 0"
    for name in ("quick", "deep"):
        scale = found.get(name, {})
        if not isinstance(scale, dict):
            yield f"`{name}` is {quoted(scale, 40)}, and must be an object"
            continue
        if name in found and "temperature" not in scale:
            yield f"`{name}.temperature` is missing"
        for key in Scale.__struct_fields__:
            above, which = (0.0, " above 0") if key == "temperature" else (-math.inf, "")
            if key in scale and not _number(scale[key], above):
                yield f"`{name}.{key}` is {quoted(scale[key], 40)}, and must be a number{which}"


def _number(value: object, above: float) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > above
