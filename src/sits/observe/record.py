"""The decision record: what was asked, who was considered, who was tried, what came of it, and when.

Every exchange leaves one; the last few thousand stay in a ring and can be explained by id. The same object is what the
access log writes, so the hot path fills it once. It holds names, numbers and codes, never content.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

import msgspec

from sits.inner.event import Usage
from sits.inner.utf8 import encoded
from sits.observe.anatomy import Anatomy
from sits.routing.rule_watch import Clause
from sits.routing.scheduling.away import Away


class Attempt(msgspec.Struct, gc=False):
    """One try on one target; times are milliseconds since it was handed to its engine, None for what did not happen."""

    target: str
    outcome: str = ""
    """`ok`, or the code of the failure."""
    status: int = 0
    """The target's own HTTP status; 0 when none came."""
    connect_ms: float | None = None
    headers_ms: float | None = None
    first_ms: float | None = None
    total_ms: float | None = None
    reused: bool = False
    """Carried by a pooled connection."""
    pieces: int = 0
    """Stream events, or pieces of the body, that arrived."""
    why: str = ""
    """The message of the failure, or why this target was chosen."""
    kind: str = "first"
    """Why it was asked: first, next, again, larger, hedge, continuation."""


class Scored(msgspec.Struct, frozen=True, gc=False):
    """What one score gave each of those who took part, 0 to 100."""

    name: str
    weight: float
    given: tuple[float, ...]


class Draw(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A choice among several, complete enough to be made again; lists are in the order of `weights`."""

    weights: tuple[tuple[str, float], ...]
    """Who took part, with the weights of the route."""
    number: float
    """The random number in [0, 1), or the place on the ring."""
    chosen: str
    policy: str = "weighted"
    seen: tuple[float, ...] = ()
    """What the policy saw of each: costs, of which the least is taken, or shares by which one is drawn."""
    scores: tuple[Scored, ...] = ()
    totals: tuple[float, ...] = ()
    """The sum of the scores by weight, of each."""
    leaning: str = ""
    """Why only some of them were looked at for the first place."""
    explored: bool = False
    """The first was drawn alike from all, to learn."""
    explore: float = 0.0
    """The share of requests that are."""
    size: float = 0.0
    """Bytes of the prompt, where the policy went by that and somebody had read some of it before."""
    warm: tuple[float, ...] = ()
    """How many of these each had read."""
    by: str = ""
    """What the place on the ring is made from: session, key, header, model, prefix; `chance` where the request says nothing."""


class Wish(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What was understood of a request, where its route looks at that."""

    domain: str = ""
    confidence: float | None = None
    stage: str = ""
    """Who said so: quick, deep, recent, header."""
    complexity: float | None = None
    tier: str = ""
    tokens: int = 0
    exact: bool = False
    """Whether the tokens were counted by the model's own tokenizer."""
    region: str = ""
    adapter: str = ""
    qps: float = 0.0
    arm: str = ""
    """What was drawn to be learned from: a tier, or a backend; empty where the route does not learn, or nothing was drawn."""
    chance: float = 0.0
    """With which it was."""
    chances: tuple[tuple[str, float], ...] = ()
    """Of each that could have been, it among them; the sum is 1."""
    best: str = ""
    """The one that was thought best."""
    load: float | None = None
    """The share of the route's room in use, as it was reckoned with then."""


class Passed(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A rule that the request was one of, and that did not count: what did not hold of its targets. One for each clause."""

    rule: str
    clause: Clause
    """A key of `while`; `again`: it holds again, and only so many requests try it until they have come back well."""
    measured: float = 0.0
    """Milliseconds, or a share; of `again`, how many of those that try have come back."""
    limit: float = 0.0
    """What it must be below, or above; of `again`, how many try."""
    seen: int = 0
    """Answers, or loads of adapters, that were measured."""


class PieceRead(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One ask for notes of a piece of a prompt. It has a record of its own."""

    number: int
    """Of the piece, from 1. A piece may be asked for again, of somebody else."""
    request_id: str
    target: str = ""
    """Who was asked last; empty where nobody was."""
    outcome: str = "ok"
    """Or the code of the error."""
    input: int | None = None
    """Tokens of the whole ask: the piece, the request, and the notes so far."""
    output: int | None = None
    """Tokens of the notes, which are carried on to the next piece."""
    estimated: bool = False
    """Nobody said those tokens."""
    ms: float = 0.0
    failed: tuple[str, ...] = ()
    """Who was asked before, and failed."""
    refused: bool = False
    """The answer had no notes in it."""


class Split(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """A prompt that was read in pieces. All figures are tokens."""

    because: Literal["stage", "oversize"]
    """Its route does that with prompts so long, or with those that fit nobody."""
    window: int
    """Prompt and answer of one ask."""
    headroom: int
    """What was left of it for the answer."""
    notes: int
    """The most that notes may have, which are carried from piece to piece."""
    size: int = 0
    """The most that a piece may have; 0 where it was not worked out."""
    pieces: tuple[int, ...] = ()
    """What each has. The last one is asked for with the answer itself, by the attempts of this record."""
    asked: tuple[PieceRead, ...] = ()


class Record(msgspec.Struct, gc=False, omit_defaults=True):
    """One exchange. `gc=False` is safe: it and what it holds never point back to it."""

    request_id: str
    time: float
    """Unix seconds at which the request arrived."""
    operation: str
    trace_id: str = ""
    span_id: str = ""
    parent_id: str | None = None
    requested: str = ""
    """The model name that the client asked for."""
    key: str | None = None
    """Name of the API key; None when none was asked for."""
    route: str = ""
    served: str = ""
    """The id that the server which answered knows the model by: header `x-sits-served`."""
    target: str = ""
    """The Model resource that answered: header `x-sits-target`."""
    stream: bool = False
    attempts: list[Attempt] = []
    filtered: list[tuple[str, str]] = []
    """(target, why it was not considered)."""
    draw: Draw | None = None
    rule: str = ""
    """The rule of the route whose backends these were; empty where none counted."""
    wish: Wish | None = None
    version: int = 0
    snapshot: str = ""
    """Hash of the configuration that the exchange was pinned to."""
    usage: Usage | None = None
    finish: str | None = None
    status: int = 0
    """The HTTP status sent; 499 when the client went away first."""
    code: str = ""
    """The error code sent; empty on success."""
    anatomy: Anatomy | None = None
    skipped: int = 0
    """Stream events that could not be read and were left out."""
    bytes_in: int = 0
    bytes_out: int = 0
    rung: str = ""
    """The rung of the route's ladder that answered: cache or template; empty where a model did."""
    rung_age: int | None = None
    """Seconds since a kept answer was made."""
    rung_because: str = ""
    """The code of the error that the client would have got."""
    colour: str = ""
    """Of the traffic; empty where nothing was said."""
    experiment: str = ""
    priority: int | None = None
    """Class of service, 0 to 2, where requests are admitted by class."""
    queued_ms: float = 0.0
    """Milliseconds that it waited for its turn."""
    cache: str = ""
    """What the route's cache had to do with it: hit, stale, semantic, semantic-stale, flight, miss, bypass, renewal; empty where
    there is none."""
    passed: tuple[Passed, ...] = ()
    """Rules that were passed over, because what they want of their targets did not hold."""
    away: tuple[Away, ...] = ()
    """Filters and scores of the route that said nothing: they were not there, fenced off, or in trouble."""
    waived: tuple[str, ...] = ()
    """Filters that are not strict, would have left nobody, and did not count."""
    split: Split | None = None
    """How its prompt was read in pieces, where it was too long for one ask."""
    behind: str = ""
    """What it is, where no client waits for it: renewal, shadow, later, probe, piece, judge; empty where one does."""


_DECODER = msgspec.json.Decoder(Record)


def to_json(record: Record) -> bytes:
    """The record as JSON, before redaction: pass it through `Redactor.line` where it leaves."""
    return encoded(record)


def from_json(raw: bytes) -> Record:
    """What `to_json` wrote; raises `msgspec.DecodeError` for anything else."""
    return _DECODER.decode(raw)


class Ring:
    """The last `capacity` records, found by request id in O(1). Storing costs 0.13 us."""

    __slots__ = ("_index", "_next", "_slots")

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError("a ring holds at least one record")
        self._slots: list[Record | None] = [None] * capacity
        self._index: dict[str, Record] = {}
        self._next = 0

    @property
    def capacity(self) -> int:
        return len(self._slots)

    def __len__(self) -> int:
        return len(self._slots) if self._slots[self._next] is not None else self._next

    def __iter__(self) -> Iterator[Record]:
        """Newest first."""
        size = len(self._slots)
        for back in range(1, len(self) + 1):
            record = self._slots[(self._next - back) % size]
            assert record is not None
            yield record

    def put(self, record: Record) -> None:
        """Keep a record in place of the oldest. Of two with the same id (clients choose ids) the later one is found."""
        at = self._next
        old = self._slots[at]
        if old is not None and self._index.get(old.request_id) is old:
            del self._index[old.request_id]
        self._slots[at] = record
        self._index[record.request_id] = record
        at += 1
        self._next = at if at < len(self._slots) else 0

    def get(self, request_id: str) -> Record | None:
        return self._index.get(request_id)
