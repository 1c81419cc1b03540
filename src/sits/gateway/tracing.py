"""Recording traffic for `sits replay`: which requests, what of them, and when. Off unless Settings say `trace`.

    wanted   before the decision: whether this request is one of the sample
    taken    before the decision, after the facts: the states of everybody who could be chosen
    put      when all is over: with what came of it

`wanted` costs 0.3 us where a share is recorded; only what is recorded pays for `taken` (2 us for three targets, 0.4 us for each
more) and `put` (0.2 us). The rest is done by a thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from zlib import crc32

from sits.dialects.peek import answer_limit
from sits.inner.stuck import Stuck
from sits.observe.record import Record
from sits.observe.redact import Redactor
from sits.observe.trace_file import TraceFile
from sits.observe.trace_sample import Sample, headers_looked_at, kept_of
from sits.resources.tracing import TraceSpec
from sits.resources.vocabulary import LONGEST_NAMED
from sits.routing.beginnings import Reading
from sits.routing.plan import NOBODY, Choice
from sits.routing.scheduling.base import Facts

if TYPE_CHECKING:
    import asyncio

    from sits.gateway.exchange import Exchange

_ALL = 1 << 32


class Tracing:
    """Who records the traffic of one process. One object for a `TraceSpec`; another spec takes another object, and may go on with
    the same file."""

    __slots__ = ("_below", "_bodies", "_headers", "_looked_at", "file", "spec")

    def __init__(self, spec: TraceSpec, data: Path, redactor: Redactor, file: TraceFile | None = None) -> None:
        """`file` is one that is gone on with; a new one without."""
        self.spec = spec
        self.file = file if file is not None else TraceFile(folder_of(spec, data), redactor)
        self.file.go_by(spec.share, spec.megabytes * 1024 * 1024, spec.keep, spec.body_bytes, bodies=spec.bodies == "redacted")
        self._below: int = bound_of(spec.share)
        self._bodies: bool = spec.bodies == "redacted"
        self._headers: Iterable[str] = tuple(spec.headers)
        # Weak keys would be dearer, and a table lives as long as its choices: the last few are enough.
        self._looked_at: dict[int, tuple[Choice, tuple[bytes, ...]]] = {}

    def start(self) -> None:
        """Begin to write, from a thread. Call it after any fork."""
        self.file.start()

    def stop(self) -> None:
        """Write what is left, and end the thread."""
        self.file.stop()

    def wanted(self, request_id: str) -> bool:
        """Whether this request is one of the sample; the same on every gateway."""
        return self._below >= _ALL or spread(request_id) < self._below

    def taken(
        self,
        x: Exchange,
        choice: Choice,
        needs: frozenset[str],
        out: frozenset[str],
        draw: float,
        now: float,
        reading: Reading | None = None,
    ) -> Sample:
        """What is known just before the decision. `needs` has the capability of the endpoint in it; `draw` and `now` are those
        that are about to be used; of a request whose facts are gathered, they are those of the facts."""
        facts = x.facts
        known = facts is not None
        if facts is None:
            facts = Facts(x.operation, needs, x.request.headers, x.request.body)
            facts.draw, facts.now, facts.reading = draw, now, reading
            facts.priority = x.priority
            facts.colour = "" if x.tint.plain else x.tint.colour
            if x.key is not None:
                facts.key, facts.team = x.key.name, x.key.team
            facts.session = x.request.headers.get(b"x-sits-session", b"")
            facts.region = x.request.headers.get(b"x-sits-region", b"").decode("utf-8", "replace")[:LONGEST_NAMED]
            facts.adapter = x.request.headers.get(b"x-sits-adapter", b"").decode("utf-8", "replace")[:LONGEST_NAMED]
        if not facts.wanted_output:
            # Nobody looks at it here; under another configuration somebody may.
            facts.wanted_output = answer_limit(x.request.body, x.operation)
        kept, cut = kept_of(x.request.headers, self._of(choice))
        sample = Sample(choice, facts, x.table.snapshot, kept, out or NOBODY, known=known, learned=x.learned, cut=cut)
        if self._bodies and len(x.request.body) <= self.spec.body_bytes:
            sample.body = x.request.body
        return sample

    def put(self, sample: Sample, record: Record, dollars: float | None = None) -> None:
        """All is over."""
        sample.dollars = dollars
        self.file.put(sample, record)

    def feedback(self, request_id: str, score: float, key: str | None) -> None:
        """Somebody said how an answer to a key was, 0 to 1."""
        if self.wanted(request_id):
            self.file.feedback(request_id, score, key)

    def _of(self, choice: Choice) -> tuple[bytes, ...]:
        found = self._looked_at.get(id(choice))
        if found is not None and found[0] is choice:
            return found[1]
        if len(self._looked_at) >= MOST_CHOICES:
            self._looked_at.clear()
        names = headers_looked_at(choice.route, self._headers)
        self._looked_at[id(choice)] = (choice, names)
        return names


class Recorder:
    """Has traffic recorded as the configuration in force says. A file is gone on with whatever changes, recording being switched
    off meanwhile included, unless folder or bodies are others: many files would push out what is in the old ones."""

    __slots__ = ("_data", "_dropped", "_file", "_kind", "_leaving", "_loop", "_redactor", "tracing")

    def __init__(self, data: Path, redactor: Redactor, loop: asyncio.AbstractEventLoop) -> None:
        self._data = data
        self._redactor = redactor
        self._loop = loop
        self._dropped: int = 0
        """By those that have ended."""
        self._leaving: list[TraceFile] = []
        self._file: TraceFile | None = None
        """The last one, which rests while nothing is recorded."""
        self._kind: tuple[Path, str] | None = None
        """Its folder, and whether there are bodies in it."""
        self.tracing: Tracing | None = None

    @property
    def dropped(self) -> int:
        """Requests that were to be recorded since the start of this process and are not."""
        return self._dropped + sum(file.missing for file in self._files())

    @property
    def stuck(self) -> Stuck | None:
        """Why what is to be recorded is not written."""
        return next((file.stuck for file in self._files() if file.stuck is not None), None)

    def _files(self) -> list[TraceFile]:
        return [*self._leaving, self._file] if self._file is not None else self._leaving

    def take(self, spec: TraceSpec | None) -> Tracing | None:
        """Go by this from now on; what is to be asked of each request, None where nothing is recorded."""
        old = self.tracing
        if (old.spec if old is not None else None) == spec:
            return old
        if spec is None:
            assert self._file is not None
            self.tracing, self._file.bodies = None, False  # What waits to be written has none any more either.
            self._loop.run_in_executor(None, self._file.stopping())
            return None
        kind = (folder_of(spec, self._data), spec.bodies)
        if kind != self._kind:
            self._leave(spec)
        self.tracing = Tracing(spec, self._data, self._redactor, self._file)
        self._file, self._kind = self.tracing.file, kind
        self.tracing.start()
        return self.tracing

    def _leave(self, spec: TraceSpec) -> None:
        """Another file than the last one is to be written."""
        old, self._file = self._file, None
        if old is not None:
            old.bodies = old.bodies and spec.bodies != "none"
            self._leaving.append(old)
            self._loop.run_in_executor(None, old.stopping()).add_done_callback(partial(self._left, old))

    def _left(self, old: TraceFile, _: object) -> None:
        """It has written what it could."""
        self._leaving.remove(old)
        self._dropped += old.missing

    def stop(self) -> None:
        """Write what is left, once no request can end any more."""
        if self.tracing is not None:
            self.tracing.stop()
            self.tracing = None


MOST_CHOICES = 4096


def folder_of(spec: TraceSpec, data: Path) -> Path:
    """Where the files are."""
    return Path(spec.folder) if spec.folder is not None else data / "trace"


def bound_of(share: float) -> int:
    """Below it lie so many of the numbers that `spread` gives."""
    return _ALL if share >= 1.0 else max(1, round(share * _ALL))


def spread(request_id: str) -> int:
    """A number of 32 bits, even over ids of any kind: a checksum, mixed by the last steps of MurmurHash3."""
    mixed = crc32(request_id.encode("utf-8", "surrogatepass"))
    mixed = ((mixed ^ (mixed >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    mixed = ((mixed ^ (mixed >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    return mixed ^ (mixed >> 16)
