"""What is kept of one attempt: who asked, what was tried, what came of it, what it used and cost."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

MOST_TOKENS = 1 << 40
MOST_COST = 1 << 44
"""Nano-dollars: 17,592 dollars for one attempt. Figures beyond are a server's nonsense, and would overflow the sums."""
BEYOND = 1e12
"""Times and latencies are below this, or they are none: the year 33658, and 31 years."""
LONGEST_TEXT = 200
"""Characters to which texts are cut when an entry would not fit a journal record; names of ours are not longer."""


class Names(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What many attempts have in common.

    It stands first in a record: those with the same names begin with the same bytes, and the drain knows them by these.
    """

    outcome: str
    """`ok` or the error's code."""
    status: int
    """The target's HTTP status, 0 when none came; 499 when the client went away."""
    attempt: int
    """From 1; 0 for a request that was refused before any target was tried."""
    final: bool
    """Whether this is what the client got: true for exactly one entry of each request, so that requests can be counted."""
    streamed: bool
    estimated: bool
    """The target did not say all of its figures; some are our own count."""
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


class Entry(Names, frozen=True, array_like=True, gc=False):
    """One attempt, in the order in which it is written: new fields go to the end and have a default.

    None is 'not known', which is not zero. Text fields are empty where there is nothing to say.
    """

    time: float
    """Unix seconds at which the attempt began. Its first byte in a record ends the names."""
    request_id: str
    latency_ms: float = 0.0
    input_tokens: int | None = None
    """With the cached ones."""
    output_tokens: int | None = None
    """With those of reasoning."""
    cached_tokens: int | None = None
    cache_written_tokens: int | None = None
    reasoning_tokens: int | None = None
    cost: int | None = None
    """Nano-dollars (10^-9 USD)."""


_Moment = Annotated[float, msgspec.Meta(ge=0, lt=BEYOND)]
_Tokens = Annotated[int, msgspec.Meta(ge=0, le=MOST_TOKENS)]
_Cost = Annotated[int, msgspec.Meta(ge=0, le=MOST_COST)]


class Use(msgspec.Struct, array_like=True, gc=False):
    """The rest of an entry, with the number of its names in a list of them. Decoding refuses what no table could keep."""

    names: int
    time: _Moment
    request_id: str
    latency_ms: _Moment = 0.0
    input_tokens: _Tokens | None = None
    output_tokens: _Tokens | None = None
    cached_tokens: _Tokens | None = None
    cache_written_tokens: _Tokens | None = None
    reasoning_tokens: _Tokens | None = None
    cost: _Cost | None = None


COLUMNS: tuple[str, ...] = (
    "segment",
    "position",
    "time",
    "request_id",
    "attempt",
    "final",
    "outcome",
    "status",
    "key",
    "team",
    "route",
    "requested",
    "model",
    "provider",
    "upstream_model",
    "operation",
    "streamed",
    "estimated",
    "latency_ms",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "cache_written_tokens",
    "reasoning_tokens",
    "cost",
)
"""The values of a row: which record of which file of the journal it was, which is its identity, then the entry's fields."""
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
_NAMES = len(Names.__struct_fields__)
_LIMITS = {**dict.fromkeys(OPTIONAL | {"attempt", "status"}, MOST_TOKENS), "cost": MOST_COST}


def pack(entry: Entry) -> bytes:
    """The entry as bytes; raises what msgspec raises for values that have no such form."""
    return _encode(entry)


def unpack(payload: bytes) -> Entry:
    """What `pack` made, also by an older version; raises `msgspec.DecodeError` for anything else."""
    return _decode(payload)


def tamed(entry: Entry) -> Entry:
    """The same entry in a form that can always be packed: texts short and valid, figures within bounds."""
    return msgspec.structs.replace(entry, **{name: _tame(value) for name, value in msgspec.structs.asdict(entry).items()})


def cleaned(entry: Entry) -> Entry:
    """The same entry in a form that every table can keep.

    Names and figures come from clients and servers: nothing in them may stop the drain. PostgreSQL has no text with NUL in it,
    and JSON lets a client ask for a model of such a name.
    """
    fields = msgspec.structs.asdict(entry)
    changed = {name: clean for name, value in fields.items() if (clean := _clean(name, value)) is not value}
    return msgspec.structs.replace(entry, **changed) if changed else entry


def clean_names(names: Names) -> Names:
    """The same names in a form that every table can keep."""
    fields = msgspec.structs.asdict(names)
    changed = {name: clean for name, value in fields.items() if (clean := _clean(name, value)) is not value}
    return msgspec.structs.replace(names, **changed) if changed else names


def parted(entry: Entry) -> tuple[Names, Use]:
    """A clean entry as its names and the rest, which has number 0."""
    values = msgspec.structs.astuple(entry)
    return Names(*values[:_NAMES]), Use(0, *values[_NAMES:])


def row_of(segment: str, position: int, entry: Entry) -> Row:
    """The entry as every table keeps it."""
    return row_from(segment, position, *parted(cleaned(entry)))


def row_from(segment: str, position: int, names: Names, use: Use) -> Row:
    """The row of an entry whose names and use are clean."""
    return (segment, position, *_told(use), *_said(names), *_used(use))


def rows_of(segment: str, first: int, names: list[Names], uses: list[Use]) -> list[Row]:
    """The rows of successive records of a segment."""
    told = [_said(one) for one in names]
    return [(segment, first + at, *_told(use), *told[use.names], *_used(use)) for at, use in enumerate(uses)]


def micros(seconds: float) -> int:
    """A moment as rows have it."""
    return round(seconds * 1e6)


def entry_of(row: Row) -> Entry:
    """The entry of a row, its time to the microsecond."""
    values = dict(zip(COLUMNS[2:], row[2:], strict=True))
    values["time"] = int(row[2] or 0) / 1e6
    for name in FLAGS:
        values[name] = bool(values[name])
    return msgspec.convert([values[name] for name in Entry.__struct_fields__], Entry)


def _said(names: Names) -> Row:
    """The part of a row that names make: from `attempt` to `estimated`."""
    return (
        names.attempt,
        int(names.final),
        names.outcome,
        names.status,
        names.key,
        names.team,
        names.route,
        names.requested,
        names.model,
        names.provider,
        names.upstream_model,
        names.operation,
        int(names.streamed),
        int(names.estimated),
    )


def _used(use: Use) -> Row:
    """The end of a row: from `latency_ms` on."""
    return (
        use.latency_ms,
        use.input_tokens,
        use.output_tokens,
        use.cached_tokens,
        use.cache_written_tokens,
        use.reasoning_tokens,
        use.cost,
    )


def _told(use: Use) -> Row:
    text = use.request_id
    return (micros(use.time), text.replace("\0", "\ufffd") if "\0" in text else text)


def _clean(name: str, value: Any) -> Any:
    if isinstance(value, str):
        return value.replace("\0", "\ufffd")
    if isinstance(value, float):
        return value if 0 <= value < BEYOND else 0.0
    most = _LIMITS.get(name)
    return value if most is None or value is None else min(max(value, 0), most)


def _tame(value: Any) -> Any:
    if isinstance(value, str):
        return value[:LONGEST_TEXT].encode("utf-8", "replace").decode()
    if isinstance(value, int) and not isinstance(value, bool):
        return min(max(value, 0), MOST_COST)
    return value
