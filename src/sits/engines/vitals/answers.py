"""The answer of a Prometheus server to an instant query (prometheus.io/docs/prometheus/latest/querying/api). Pure."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from sits.inner.errors import Code, SitsError


class _Result(msgspec.Struct):
    status: str
    data: dict[str, Any] = {}
    error: str = ""


def query_values(body: bytes) -> tuple[float, ...]:
    """All values that are numbers, in order: a sick target may be any of several series. None at all is no data.

    Raises:
        SitsError: `upstream_error`, the query was refused; `upstream_broken`, this is no such answer.
    """
    try:
        result = msgspec.json.decode(body, type=_Result)
        if result.status != "success":
            raise SitsError(Code.UPSTREAM_ERROR, f"the query was refused: {result.error[:300]}")
        found, kind = result.data["result"], result.data["resultType"]
        pairs = [found] if kind == "scalar" else [series["value"] for series in found]
        values = [float(pair[1]) for pair in pairs]
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise SitsError(Code.UPSTREAM_BROKEN, "this is no answer to an instant query with numbers") from error
    return tuple(value for value in values if not math.isnan(value))
