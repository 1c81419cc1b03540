"""`/v1/registry`: which services there are, which of them does what is meant, and what other registries know."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import parse_qsl

import msgspec

from sits.gateway.bodies import body_of
from sits.gateway.pages import Answer, Pages, Visit, json_answer
from sits.gateway.registry import MOST_TOP, ServiceRegistry
from sits.gateway.registry_answer import lacking_words
from sits.inner.errors import Code, SitsError
from sits.routing.registry import ServiceCard, ServiceName
from sits.state.registry.imported import MOST_ENTRIES

MOST_DIGITS = 9
PAGE = 100
LARGEST_PAGE = 1000


class FindQuery(msgspec.Struct, forbid_unknown_fields=True):
    """What is looked for."""

    query: Annotated[str, msgspec.Meta(min_length=1, max_length=20_000)]
    top_k: Annotated[int, msgspec.Meta(ge=1, le=MOST_TOP)] = 5
    capabilities: list[str] = []
    labels: dict[str, str] = {}


ELSEWHERE = "what services mean cannot be asked for at the moment; names and words were looked for"
"""What is told of that to those who may not know the addresses of models."""


class Entry(msgspec.Struct, forbid_unknown_fields=True):
    """A service that another registry knows."""

    name: ServiceName
    description: str = ""
    domains: tuple[str, ...] = ()
    capabilities: list[str] = []
    fields: tuple[str, ...] = ()
    operations: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    labels: dict[str, str] = {}
    address: str = ""
    healthy: bool | None = None


class Import(msgspec.Struct, forbid_unknown_fields=True):
    """What another registry has: all of it, in place of what it had."""

    origin: Literal["consul", "eureka"]
    entries: Annotated[list[Entry], msgspec.Meta(max_length=MOST_ENTRIES)]
    allow_removal: bool = False
    """Whether more than half of what came from there before may go."""


class RegistryPages:
    """The pages that `sitsctl find` and `sits registry` ask."""

    def __init__(self, registry: ServiceRegistry) -> None:
        self._registry = registry

    def add_to(self, pages: Pages) -> None:
        pages.add("GET", "/v1/registry", self.all)
        pages.add("GET", "/v1/registry/find", self.find_get)
        pages.add("POST", "/v1/registry/find", self.find)
        pages.add("PUT", "/v1/registry/entries", self.take, "admin")

    async def all(self, visit: Visit) -> Answer:
        """GET /v1/registry?limit=&after=: the services in the order of their names, a page of them."""
        said = _query(visit)
        limit = _number(said, "limit", PAGE, LARGEST_PAGE)
        after = said.get("after", "")
        key = visit.key
        await self._registry.fresh()
        rows = [
            row
            for row in self._registry.services()
            if row.name > after and (row.origin != "model" or key is None or key.allows(row.name))
        ]
        page = rows[:limit]
        more = len(rows) > limit
        return json_answer({"object": "list", "data": page, "has_more": more, "next": page[-1].name if more else None})

    async def find_get(self, visit: Visit) -> Answer:
        """GET /v1/registry/find?q=&top=&capability=&label=NAME=VALUE; the last two may be repeated."""
        pairs = parse_qsl(visit.request.query.decode("utf-8", "replace"), keep_blank_values=True)
        labels = {}
        for value in (value for name, value in pairs if name == "label"):
            name, equals, meant = value.partition("=")
            if not equals or not name:
                raise SitsError(Code.INVALID_REQUEST, f"label {value[:80]!r}: wanted NAME=VALUE", param="label")
            labels[name] = meant
        said = dict(pairs)
        return await self._found(
            visit,
            FindQuery(
                said.get("q", ""),
                _number(said, "top", 5, MOST_TOP),
                [value for name, value in pairs if name == "capability"],
                labels,
            ),
        )

    async def find(self, visit: Visit) -> Answer:
        """POST /v1/registry/find."""
        return await self._found(visit, body_of(visit.request.body, FindQuery))

    async def take(self, visit: Visit) -> Answer:
        """PUT /v1/registry/entries: what another registry has, in place of what it had."""
        said = _import_of(visit.request.body)
        cards = []
        for one in said.entries:
            fields = {**msgspec.structs.asdict(one), "capabilities": frozenset(one.capabilities)}
            cards.append(ServiceCard(origin=said.origin, **fields))
        gone = await self._registry.take_entries(said.origin, cards, allow_removal=said.allow_removal)
        return json_answer({"origin": said.origin, "entries": len(said.entries), "removed": gone})

    async def _found(self, visit: Visit, said: FindQuery) -> Answer:
        key = visit.key
        answered = await self._registry.find_by_intent(
            said.query,
            said.top_k,
            capabilities=said.capabilities,
            labels=said.labels,
            allows=(lambda name: True) if key is None else key.allows,
        )
        left_out = answered.left_out or None
        if left_out is not None and key is not None and not key.admin:
            left_out = lacking_words(answered.lacking, answered.among) if answered.lacking else ELSEWHERE
        return json_answer({"object": "list", "data": answered.data, "left_out": left_out})


def _import_of(body: bytes) -> Import:
    """The body; where an entry is at fault, the error names it. Raises as `body_of` does."""
    try:
        return body_of(body, Import)
    except SitsError as error:
        named = _at_fault(body)
        if named is None:
            raise
        raise SitsError(error.code, f"{error.message} (entry {named})", param=error.param) from error


def _at_fault(body: bytes) -> str | None:
    """The first entry that cannot be one: its number and its name."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    listed = value.get("entries") if isinstance(value, dict) else None
    for number, one in enumerate(listed if isinstance(listed, list) else (), 1):
        try:
            msgspec.convert(one, Entry)
        except msgspec.ValidationError:
            return f"{number}, {str(one.get('name'))[:80]!r}" if isinstance(one, dict) else str(number)
    return None


def _query(visit: Visit) -> dict[str, str]:
    return dict(parse_qsl(visit.request.query.decode("utf-8", "replace"), keep_blank_values=True))


def _number(said: dict[str, str], name: str, usual: int, most: int) -> int:
    value = said.get(name)
    if value is None:
        return usual
    if not value.isascii() or not value.isdigit() or len(value) > MOST_DIGITS or not 1 <= int(value) <= most:
        raise SitsError(Code.INVALID_REQUEST, f"{name}={value[:20]}: wanted a number from 1 to {most}", param=name)
    return int(value)
