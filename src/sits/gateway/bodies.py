"""Bodies of admin pages: typed, or refused with every field that is wrong and what may stand there."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from sits.dialects.halves import half
from sits.dialects.intake import explain
from sits.inner.errors import Code, SitsError
from sits.resources.conform import faults
from sits.resources.problem import Fault, shown

T = TypeVar("T")
MOST = 10
"""Faults that are told."""
LARGEST = 64 * 1024
"""Bytes of a body that is looked through for all of them, while others wait: 0.34 s for 770 kB. Of a larger one one is told."""


def body_of(body: bytes, kind: type[T]) -> T:
    """The JSON body of a page as a `kind`.

    Raises:
        SitsError: `invalid_request`, and `param` is the first field at fault.
    """
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _refused(body, kind, error) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise half(str(error), body) or SitsError(Code.INVALID_REQUEST, f"the body is not JSON: {error}") from error


def _refused(body: bytes, kind: type[Any], error: msgspec.ValidationError) -> SitsError:
    if len(body) > LARGEST:
        return explain(error)
    try:
        found = faults(msgspec.json.decode(body), kind)
    except (msgspec.DecodeError, ValueError, RecursionError):
        return explain(error)  # What is beyond the fault cannot be read at all.
    told = "; ".join(_said(fault) for fault in found[:MOST])
    more = f"; and {len(found) - MOST} more" if len(found) > MOST else ""
    param = shown(found[0].path) if found else ""
    return SitsError(Code.INVALID_REQUEST, f"the body cannot be used: {told or error}{more}", param=param or None)


def _said(fault: Fault) -> str:
    text = f"{shown(fault.path)}: {fault.message}" if fault.path else fault.message
    return f"{text}, {fault.hint}" if fault.hint else text
