"""The answer of a Prometheus server to an instant query (prometheus.io/docs/prometheus/latest/querying/api). Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from sits.inner.errors import Code, SitsError


class _Result(msgspec.Struct):
    status: str
    data: dict[str, Any] = {}
    error: str = ""


class Series(msgspec.Struct, frozen=True):
    """A value of an answer, and whose it is."""

    value: float
    labels: Mapping[str, str] = {}


def query_values(body: bytes) -> tuple[float, ...]:
    """All values that are numbers, in order.

    Raises:
        SitsError: as `query_series`.
    """
    return tuple(series.value for series in query_series(body))


def query_series(body: bytes) -> tuple[Series, ...]:
    """All series whose values are numbers, in order: a sick target may be any of them. None at all is no data.

    Raises:
        SitsError: `upstream_error`, the query was refused; `upstream_broken`, this is no such answer.
    """
    try:
        result = msgspec.json.decode(body, type=_Result)
        if result.status != "success":
            raise SitsError(Code.UPSTREAM_ERROR, f"the query was refused: {result.error[:300]}")
        found, kind = result.data["result"], result.data["resultType"]
        rows = [{"value": found}] if kind == "scalar" else found
        series = [Series(float(row["value"][1]), _labels(row.get("metric"))) for row in rows]
    except (msgspec.MsgspecError, LookupError, TypeError, AttributeError, ValueError, OverflowError, RecursionError) as error:
        raise SitsError(Code.UPSTREAM_BROKEN, "this is no answer to an instant query with numbers") from error
    return tuple(one for one in series if not math.isnan(one.value))


def _labels(found: Any) -> dict[str, str]:
    """They are for people: what is none is left out."""
    return {name: text for name, text in found.items() if isinstance(text, str)} if isinstance(found, dict) else {}
