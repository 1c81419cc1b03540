"""`/v1/admin/records`: decision records, the newest ones of this machine's workers, or one by its id wherever it was made.

Whoever answered a request keeps its record. The one of an id is looked for here, at the other workers of this machine, and over
the bus at the other gateways of the cluster.

    404  nobody has the record of this id, or no longer
    503  nobody who answered has it, and somebody who may have it did not answer in time
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import msgspec

from sits.gateway.afar import MOST_BYTES, Afar, Around, Kind
from sits.gateway.pages import Answer, Pages, Visit
from sits.gateway.siblings import Siblings, Topic
from sits.inner.errors import Code, SitsError
from sits.inner.utf8 import encoded
from sits.observe.explain import explain
from sits.observe.record import Record, Ring, from_json, to_json
from sits.observe.redact import Redactor
from sits.ports.bus import Bus
from sits.state.outcomes.feedback import LONGEST_ID

MOST_RECORDS = 1000


class Found(msgspec.Struct, frozen=True):
    """What another gateway has of a request."""

    record: bytes = b""
    """As JSON, redacted; empty where there is none."""
    too_long: str = ""
    """Who has one that is too long for the bus."""


def _sound(request_id: str) -> bool:
    return 0 < len(request_id) <= LONGEST_ID and request_id.isprintable()


RECORDS: Kind[str, Found] = Kind(
    "record", "the record of a request", str, Found, _sound, lambda found: bool(found.record or found.too_long), most_answers=64
)


class RecordPages:
    """The pages, over the `ring` of this process; `around` is the cluster, where there is one."""

    def __init__(
        self, ring: Callable[[], Ring], siblings: Callable[[], Siblings], redactor: Redactor, around: Around | None
    ) -> None:
        self._ring = ring
        self._siblings = siblings
        self._redactor = redactor
        self._who = around.who if around is not None else ""
        self._others = Afar(RECORDS, around, self._for_others) if around is not None else None
        self.topics: Mapping[str, Topic] = {"record": self._own_record, "records": self._own_records}

    def add_to(self, pages: Pages) -> None:
        pages.add("GET", "/v1/admin/records", self.records, "admin")
        pages.add("GET", "/v1/admin/records/{name}", self.record, "admin")

    async def run(self, bus: Bus) -> None:
        """Ask the other gateways, and answer them, over this bus, until cancelled."""
        assert self._others is not None
        await self._others.run(bus)

    async def records(self, visit: Visit) -> Answer:
        """The newest records first, of all workers of this machine; `limit` (at most 1000) says how many."""
        limit = _limit(visit.request.query)
        others, _ = await self._siblings().ask(f"records {limit}")
        found = [record for raw in others for record in msgspec.json.decode(raw, type=list[Record])]
        found += list(self._ring())[:limit]
        found.sort(key=lambda record: -record.time)
        return Answer(self._redactor.line(encoded({"object": "list", "data": found[:limit]})))

    async def record(self, visit: Visit) -> Answer:
        """One decision record, as JSON with its tree in `explanation`."""
        record = await self._find(visit.name)
        value = {**msgspec.to_builtins(record), "explanation": explain(record)}
        return Answer(self._redactor.line(encoded(value)))

    async def _find(self, request_id: str) -> Record:
        record = self._ring().get(request_id)
        if record is not None:
            return record
        if not _sound(request_id):
            raise SitsError(Code.NOT_FOUND, f"no record {request_id[:LONGEST_ID]!r}: no request can have this id")
        here, silent = await self._siblings().ask(f"record {request_id}")
        if here:
            return from_json(here[0])
        if self._others is not None:
            heard = await self._others.ask(request_id)
            silent = heard.silent  # The workers of this machine are among them.
            for found in heard.answers:
                if found.too_long:
                    raise _there(request_id, f"is too long for the bus: ask the gateway that has it, {found.too_long}")
                if found.record:
                    return _read(request_id, found.record)
        raise self._nowhere(request_id, silent)

    def _nowhere(self, request_id: str, silent: int) -> SitsError:
        if silent:
            message = f"nobody who answered has a record {request_id!r}, but {silent} of the others did not answer in time"
            return SitsError(Code.STATE_UNAVAILABLE, message, retry_after=1)
        kept = self._ring().capacity
        return SitsError(Code.NOT_FOUND, f"no record {request_id!r}: the last {kept} of each worker are kept")

    def _for_others(self, request_id: str) -> Found:
        record = self._ring().get(request_id)
        if record is None:
            return Found()
        text = self._redactor.line(to_json(record))
        return Found(text) if len(text) <= MOST_BYTES else Found(too_long=self._who)

    def _own_record(self, request_id: str) -> bytes:
        record = self._ring().get(request_id)
        return to_json(record) if record is not None else b""

    def _own_records(self, limit: str) -> bytes:
        return encoded(list(self._ring())[: int(limit)])


def _read(request_id: str, record: bytes) -> Record:
    try:
        return from_json(record)
    except (msgspec.DecodeError, RecursionError):
        raise _there(request_id, "is of a gateway of another version: ask it there") from None


def _there(request_id: str, what: str) -> SitsError:
    return SitsError(Code.STATE_UNAVAILABLE, f"the record {request_id!r} {what}")


def _limit(query: bytes) -> int:
    for part in query.split(b"&"):
        name, _, value = part.partition(b"=")
        if name == b"limit":
            if not value.isdigit() or not 1 <= int(value[:6]) <= MOST_RECORDS:
                raise SitsError(Code.INVALID_REQUEST, f"limit is a number from 1 to {MOST_RECORDS}", param="limit")
            return int(value)
    return 100
