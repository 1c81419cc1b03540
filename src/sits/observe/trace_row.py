"""Recorded traffic: what requests looked like when they were decided on, complete enough to decide on them again, and what came
of them.

JSON lines. A `head` says what the configuration was; a `row` is a request, and belongs to the head with the hash of its record; a
`feedback` says later how an answer was; a `gap` says how many rows are missing here. A line that cannot be read is reported and
passed over, a last one that was cut off (the disk was full, the gateway was killed) too. No line holds a credential, and none
what was said, unless bodies were asked for.

Traces come from elsewhere, and disks damage them: what is read is checked as far as whoever replays it relies on it. Numbers are
such as a gateway writes, lists that belong together are of one length; a line where they are not is one that cannot be read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec.structs import fields

from sits import __version__
from sits.inner.utf8 import encoded
from sits.observe.record import Record, Scored
from sits.resources.checks import is_reference
from sits.resources.kinds import Model, ModelSpec, Resource, Settings
from sits.resources.plain import plain
from sits.resources.problem import ConfigError
from sits.resources.reading import read_value
from sits.resources.snapshot import Snapshot, compile
from sits.routing.policies.snapshot import FIRST, NUMBERS

_NO_COST = next(field.default for field in fields(ModelSpec) if field.name == "cost")

FORMAT = "sits-trace"
VERSION = 1
LONGEST = 32 * 1024 * 1024
"""Bytes of a line that is read; beyond, something else was taken for a trace."""
MASKED = "[redacted]"
FAR = 1e15
"""No number of a trace is larger that is not a cost: not the time in microseconds, not the bytes of a year."""
AHEAD = 3600.0
"""Seconds of the gateway's clock by which a target was heard of after the choice that looked at it, at the most."""
_EXACT = 2**50

Figure = Annotated[float, msgspec.Meta(ge=-FAR, le=FAR)]
Count = Annotated[int, msgspec.Meta(ge=0, le=_EXACT)]
Whole = Annotated[int, msgspec.Meta(ge=-_EXACT, le=_EXACT)]
Chance = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
State = Annotated[tuple[Figure, ...], msgspec.Meta(min_length=FIRST)]


class TraceError(Exception):
    """It cannot be read as recorded traffic at all; the message says why."""


class Head(msgspec.Struct, frozen=True, tag="head", tag_field="line", omit_defaults=True):
    """What all rows have in common that were decided on by the same configuration."""

    snapshot: str
    """Its hash."""
    resources: list[dict[str, Any]]
    """What of it choices depend on, as it would be written in a file; secrets are references, as there."""
    format: str = ""
    version: int = 0
    time: Figure = 0.0
    """Unix seconds."""
    gateway: str = ""
    """The version of SITS."""
    share: Annotated[float, msgspec.Meta(gt=0.0, le=1.0)] = 1.0
    """Of the requests, so many are here."""
    numbers: tuple[str, ...] = ()
    """The names of the numbers in `Row.states`."""


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """A request as it was seen when its target was chosen."""

    operation: str
    draw: Annotated[float, msgspec.Meta(ge=0.0, lt=1.0)]
    """The random number, as it was drawn."""
    now: Figure
    """Seconds of the gateway's monotonic clock: those of `Row.states` too."""
    needs: tuple[str, ...] = ()
    """Capabilities that it cannot do without, that of its endpoint among them."""
    known: bool = False
    """Its route looked at more than these: what follows has been gathered."""
    key: str = ""
    team: str = ""
    priority: Whole = 1
    colour: str = ""
    session: str = ""
    """Of what the client calls its session, a keyed hash."""
    beginning: str = ""
    """Of how the body begins, a keyed hash."""
    region: str = ""
    adapter: str = ""
    domain: str = ""
    confidence: Figure = 0.0
    stage: str = ""
    complexity: Figure = -1.0
    tier: str = ""
    favoured: str = ""
    tokens: Count = 0
    exact: bool = False
    wanted_output: Count = 0
    qps: Figure = 0.0
    place: Annotated[float, msgspec.Meta(le=1.0)] = -1.0
    """On the ring, where policy `hash` chose; below 0 where it did not."""
    size: Count = 0
    """Bytes of the body; 0 in traces that did not say."""
    warm: dict[str, Figure] = {}
    """How many of them each target had read before, of those that had read any, where the route went by that."""
    headers: dict[str, str] = {}
    """Those that the route looks at."""
    cut: tuple[str, ...] = ()
    """Of these, the ones of which only the beginning is here: they are longer, or go on with what is no text."""
    dimensions: Whole = -1
    """What an embedding request asks for, 0 where it does not say; below 0 in traces that did not look."""


class Weighing(msgspec.Struct, frozen=True, omit_defaults=True):
    """What filters and scores said of all candidates."""

    candidates: tuple[str, ...]
    """In the order of what the scores gave."""
    parts: tuple[Scored, ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()
    """(candidate, the filter that left it out)."""
    waived: tuple[str, ...] = ()
    """Filters that would have left nobody, and were passed over."""
    plugins: dict[str, bool] = {}
    """Filters that do not come with SITS, and whether they are strict."""
    rule: str = ""
    """Whose backends these are, where nobody may answer: else the record says that."""


class Row(msgspec.Struct, frozen=True, tag="row", tag_field="line", omit_defaults=True):
    """A request."""

    record: Record
    asked: Asked
    order: tuple[str, ...] = ()
    """Whom to ask, as it was decided; empty where nobody could be."""
    states: dict[str, State] = {}
    """What policies look at, of everybody who could have been chosen."""
    out: tuple[str, ...] = ()
    """Who was left alone because of a breaker."""
    failing: tuple[str, ...] = ()
    """Rules of the route that did not count because their targets were not as they must be."""
    learned: dict[str, Chance] = {}
    """Where the tier or the favoured backend was drawn, to learn which is best: the chances of each."""
    weighing: Weighing | None = None
    """Of the backends; None where the route has no filters, or one of them refused the request."""
    dollars: Figure | None = None
    """What it cost; None where nobody knows."""
    body: str | None = None
    sieve: Weighing | None = None
    """What filters said of everybody, to find out who may be asked after the backends; None where nobody was to be, and in traces
    that did not say."""

    @property
    def first(self) -> str:
        """Who was to be asked first; empty where nobody could be."""
        return self.order[0] if self.order else ""


class Feedback(msgspec.Struct, frozen=True, tag="feedback", tag_field="line"):
    """How an answer was, said later; the last word counts."""

    request_id: str
    score: Figure
    """0 to 1."""
    time: Figure
    key: str | None = None
    """Whose request it is: keys may use the same ids. Not in older traces."""


class Gap(msgspec.Struct, frozen=True, tag="gap", tag_field="line"):
    """So many rows could not be written here."""

    missing: Count
    time: Figure


class Bad(msgspec.Struct, frozen=True):
    """A line that could not be read."""

    file: str
    number: int
    why: str
    cut: bool = False
    """The last line of its file, which has no end."""


Line = Head | Row | Feedback | Gap


class Outcome(msgspec.Struct, frozen=True):
    """What came of a request."""

    ok: bool
    code: str = ""
    """Of the error."""
    latency_ms: float | None = None
    """From its arrival to the last byte."""
    first_ms: float | None = None
    """To the first content, from when its target was asked."""
    input: int | None = None
    output: int | None = None
    dollars: float | None = None
    asked: str = ""
    """Who was asked first in truth: a switch or a full route may have put others in the place of who was chosen."""


def outcome(row: Row) -> Outcome:
    """What the row says of it."""
    record = row.record
    usage, parts, attempts = record.usage, record.anatomy, record.attempts
    last = attempts[-1] if attempts else None
    return Outcome(
        record.status == 200 and not record.code and not record.rung,
        record.code,
        parts.total * 1e3 if parts is not None else None,
        last.first_ms if last is not None else None,
        usage.input if usage is not None else None,
        usage.output if usage is not None else None,
        row.dollars,
        attempts[0].target if attempts else "",
    )


def head_of(snapshot: Snapshot, time: float, share: float = 1.0) -> Head:
    """The head of what this configuration decides, as it was written: where it lay is nobody's business who replays it. Keys are
    left out, and what a model's headers say unless it is a reference."""
    kept: list[Resource] = [_public(one) for one in snapshot.written if isinstance(one, Model)]
    kept += [*snapshot.routes.values(), *snapshot.domains.values()]
    kept.append(next((Settings(one.spec) for one in snapshot.written if isinstance(one, Settings)), Settings(snapshot.settings)))
    resources = [_priced(one, plain(one)) for one in kept]
    return Head(snapshot.hash, resources, FORMAT, VERSION, time, __version__, share, NUMBERS)


def _priced(one: Resource, written: dict[str, Any]) -> dict[str, Any]:
    """With the price of a model that is said to cost nothing: left out, it would be one of which no price is declared."""
    if isinstance(one, Model) and declared(one) and "cost" not in written["spec"]:
        return {**written, "spec": {**written["spec"], "cost": {"inputPerMillion": 0.0}}}
    return written


def declared(model: Model) -> bool:
    """Whether it says what it costs, be it nothing: a default is the very same object wherever nothing is said."""
    return model.spec.cost is not _NO_COST


def snapshot_of(head: Head) -> Snapshot:
    """The configuration again, as far as choices depend on it.

    Raises:
        TraceError: it cannot be used by this version.
    """
    try:
        return compile([read_value(one, "(trace)") for one in head.resources], 1)
    except ConfigError as error:
        raise TraceError(f"the configuration in the trace cannot be used: {error}") from error


def _public(model: Model) -> Model:
    spec = model.spec
    headers = {name: value if is_reference(value) else MASKED for name, value in spec.headers.items()}
    return msgspec.structs.replace(
        model, spec=msgspec.structs.replace(spec, headers=headers, input_schema=None, output_schema=None, openapi=None)
    )


_DECODER = msgspec.json.Decoder(Line)


def encode(line: Line) -> bytes:
    """One line without its end, before redaction."""
    return encoded(line)


def files_of(path: Path) -> list[Path]:
    """The files of a trace, oldest first: itself, or those in a folder.

    Raises:
        TraceError: there is none.
    """
    if not path.is_dir():
        if not path.exists():
            raise TraceError(f"{path} is not there")
        return [path]
    found = sorted(path.glob("*.jsonl"))
    if not found:
        raise TraceError(f"there is no *.jsonl in {path}")
    return found


def read(path: Path) -> Iterator[Line | Bad]:
    """Every line, one after the other: the file may be larger than memory.

    Raises:
        TraceError: it is no trace, or one of another version.
    """
    for file in files_of(path):
        yield from _read_file(file)


def _read_file(file: Path) -> Iterator[Line | Bad]:
    try:
        with file.open("rb") as stream:
            for number, raw in enumerate(iter(lambda: stream.readline(LONGEST), b""), 1):
                if (number == 1 or raw.startswith(_HEAD)) and not _cut(raw):
                    _known(raw, file, number)
                yield _line(raw, str(file), number)
    except OSError as error:
        raise TraceError(f"{file} cannot be read: {os.strerror(error.errno or 0)}") from error


class _Mark(msgspec.Struct):
    line: str
    format: str = ""
    version: int = 0


_HEAD = b'{"line":"head"'
_MARK = msgspec.json.Decoder(_Mark)


def _cut(raw: bytes) -> bool:
    """Whether it is the beginning of a head, which the disk took no more of: a bad line as others are."""
    return not raw.endswith(b"\n") and raw[: len(_HEAD)] == _HEAD[: len(raw)]


def _known(raw: bytes, file: Path, number: int) -> None:
    try:
        mark = _MARK.decode(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise TraceError(f"{file} is no trace: its line {number} is no head ({error})") from error
    if mark.line != "head" or mark.format != FORMAT:
        raise TraceError(f"{file} is no trace: its line {number} is no head")
    if mark.version != VERSION:
        raise TraceError(f"{file} is a trace of version {mark.version}; this SITS reads version {VERSION}")


def _line(raw: bytes, file: str, number: int) -> Line | Bad:
    try:
        line = _DECODER.decode(raw)
        wrong = _wrong(line) if isinstance(line, Row) else ""
    except (msgspec.DecodeError, RecursionError) as error:
        wrong = str(error)
    if not wrong:
        return line
    whole = raw.endswith(b"\n")
    return Bad(file, number, wrong if whole else "it has no end", not whole)


def _wrong(row: Row) -> str:
    """What of a row no gateway has written, beside what its types say; empty where nothing is."""
    record, now = row.record, row.asked.now
    figures: list[float | None] = [record.time, record.bytes_in]
    if record.usage is not None:
        figures += [record.usage.input, record.usage.output, record.usage.cached, record.usage.reasoning]
        figures.append(record.usage.cache_written)
    if record.anatomy is not None:
        figures.append(record.anatomy.total)
    figures += [one.first_ms for one in record.attempts]
    if any(one is not None and not 0.0 <= one <= FAR for one in figures):
        return f"a number of its record is not from 0 to {FAR:g}"
    for name, state in row.states.items():
        if state[_HEARD] > now + AHEAD or state[_NOTED] > now + AHEAD or state[_ROOM] <= 0.0:
            return f"the state of {name[:80]!r} cannot have been that when it was chosen from"
    for weighing in (row.weighing, row.sieve):
        if weighing is not None and any(len(part.given) != len(weighing.candidates) for part in weighing.parts):
            return "a score gave more or fewer numbers than there are candidates"
    return ""


_HEARD, _NOTED, _ROOM = (NUMBERS.index(name) for name in ("heard", "noted", "room"))
