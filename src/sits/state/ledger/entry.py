"""What is kept of one attempt: who asked, what was tried, what came of it, what it used and cost."""

from __future__ import annotations

import math
from typing import Any

import msgspec

MOST_TOKENS = 1 << 40
MOST_COST = 1 << 53
"""Nano-dollars: nine million dollars for one attempt. Figures beyond are a server's nonsense, and would overflow the sums."""
LONGEST_TEXT = 200
"""Characters to which texts are cut when an entry would not fit a journal record; names of ours are not longer."""


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One attempt, in the order in which it is written: new fields go to the end and have a default.

    None is 'not known', which is not zero. Text fields are empty where there is nothing to say.
    """

    time: float
    """Unix seconds at which the attempt began."""
    request_id: str
    attempt: int
    """From 1; 0 for a request that was refused before any target was tried."""
    final: bool
    """Whether this is what the client got: true for exactly one entry of each request, so that requests can be counted."""
    outcome: str
    """`ok` or the error's code."""
    status: int
    """The target's HTTP status, 0 when none came; 499 when the client went away."""
    key: str
    """Name of the API key."""
    team: str
    route: str
    requested: str
    """The name that the client asked for."""
    model: str
    """Name of the Model resource that was tried."""
    provider: str
    upstream_model: str
    """The server's own id of the model."""
    operation: str
    streamed: bool = False
    input_tokens: int | None = None
    """With the cached ones."""
    output_tokens: int | None = None
    """With those of reasoning."""
    cached_tokens: int | None = None
    cache_written_tokens: int | None = None
    reasoning_tokens: int | None = None
    estimated: bool = False
    """The target did not say all of its figures; some are our own count."""
    cost: int | None = None
    """Nano-dollars (10^-9 USD)."""
    latency_ms: float = 0.0


COLUMNS: tuple[str, ...] = ("segment", "position", *(field.name for field in msgspec.structs.fields(Entry)))
"""The columns of the table: where the entry stood in the journal, which is its identity, then its fields."""
TEXTS = frozenset(
    ("segment", "request_id", "outcome", "key", "team", "route", "requested", "model", "provider", "upstream_model", "operation")
)
REALS = frozenset(("latency_ms",))
OPTIONAL = frozenset(("input_tokens", "output_tokens", "cached_tokens", "cache_written_tokens", "reasoning_tokens", "cost"))
FLAGS = frozenset(("final", "streamed", "estimated"))

Row = tuple[str | int | float | None, ...]
"""The values of `COLUMNS`, in that order. Time is in microseconds and flags are 0 and 1, so that every database says the same."""

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Entry).decode
_FIRST_TEXT = COLUMNS.index("request_id")


def pack(entry: Entry) -> bytes:
    """The entry as bytes; raises what msgspec raises for values that have no such form."""
    return _encode(entry)


def unpack(payload: bytes) -> Entry:
    """What `pack` made, also by an older version; raises `msgspec.DecodeError` for anything else."""
    return _decode(payload)


def tamed(entry: Entry) -> Entry:
    """The same entry in a form that can always be packed: texts short and valid, figures within bounds."""
    return msgspec.structs.replace(entry, **{name: _tame(value) for name, value in msgspec.structs.asdict(entry).items()})


def row_of(segment: str, position: int, entry: Entry) -> Row:
    """The entry as every table keeps it. Names and figures come from clients and servers: nothing in them may stop the drain."""
    latency = entry.latency_ms
    row: Row = (
        segment,
        position,
        round(entry.time * 1e6) if 0 <= entry.time < 1e12 else 0,
        entry.request_id,
        _figure(entry.attempt, MOST_TOKENS) or 0,
        int(entry.final),
        entry.outcome,
        _figure(entry.status, MOST_TOKENS) or 0,
        entry.key,
        entry.team,
        entry.route,
        entry.requested,
        entry.model,
        entry.provider,
        entry.upstream_model,
        entry.operation,
        int(entry.streamed),
        _figure(entry.input_tokens, MOST_TOKENS),
        _figure(entry.output_tokens, MOST_TOKENS),
        _figure(entry.cached_tokens, MOST_TOKENS),
        _figure(entry.cache_written_tokens, MOST_TOKENS),
        _figure(entry.reasoning_tokens, MOST_TOKENS),
        int(entry.estimated),
        _figure(entry.cost, MOST_COST),
        latency if math.isfinite(latency) else 0.0,
    )
    # PostgreSQL has no text with NUL in it, and JSON lets a client ask for a model of such a name.
    if any("\0" in value for value in row if type(value) is str):
        return tuple(value.replace("\0", "\ufffd") if type(value) is str else value for value in row)
    return row


def entry_of(row: Row) -> Entry:
    """The entry of a row, its time to the microsecond."""
    values = dict(zip(COLUMNS[2:], row[2:], strict=True))
    values["time"] = int(row[2] or 0) / 1e6
    for name in FLAGS:
        values[name] = bool(values[name])
    return msgspec.convert(list(values.values()), Entry)


def _figure(value: int | None, most: int) -> int | None:
    if value is None or 0 <= value <= most:
        return value
    return 0 if value < 0 else most


def _tame(value: Any) -> Any:
    if isinstance(value, str):
        return value[:LONGEST_TEXT].encode("utf-8", "replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return _figure(value, MOST_COST)
    return value
