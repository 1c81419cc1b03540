"""What a service says of itself: read once from a Model, or made from an entry of another registry.

`text` is what its vector is made of: the words of its name, what it is for, and its interface. One vector a service: of the ways
that were tried (each part by itself, description and subjects alone, all of them together) the whole card found best.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal

import msgspec

from sits.resources.kinds import Model

Origin = Literal["model", "consul", "eureka"]
ServiceName = Annotated[
    str,
    msgspec.Meta(
        min_length=1,
        max_length=200,
        pattern=r"^[^\u0000-\u0020\u007f][^\u0000-\u001f\u007f]*$(?!\n)",
        description="a name on one line that does not begin with a blank",
    ),
]
"""In any script, without control characters, and not beginning with a blank."""

LONGEST = 1600
"""Characters of a card that are read: the embedder takes 512 tokens."""
MOST_PARTS = 48
"""Property names, operations and tags that count, of each."""
DEEPEST = 4
"""Levels of a JSON Schema that are looked into for names."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_BETWEEN = re.compile(r"[-_./:@\s]+")


class ServiceCard(msgspec.Struct, frozen=True):
    """One service."""

    name: str
    description: str = ""
    domains: tuple[str, ...] = ()
    """Subjects: the domains of a Model, the tags of an imported entry."""
    capabilities: frozenset[str] = frozenset()
    fields: tuple[str, ...] = ()
    """Names of properties that it takes and gives."""
    operations: tuple[str, ...] = ()
    """What its OpenAPI document says of its operations."""
    tags: tuple[str, ...] = ()
    """What is promised, as words: `p95 350 ms`, `accuracy 0.924`."""
    labels: Mapping[str, str] = {}
    origin: Origin = "model"
    address: str = ""
    """Where it answers, if that is known."""
    healthy: bool | None = None
    """What the other registry said when it was read; None for a Model, whose breaker knows."""

    @property
    def text(self) -> str:
        """All of it that tells what the service is for."""
        parts = [
            f"{spoken(self.name)}:",
            self.description,
            f"{', '.join(self.domains)}." if self.domains else "",
            ", ".join(self.operations),
            ", ".join(spoken(field) for field in self.fields),
        ]
        return " ".join(" ".join(parts).split())[:LONGEST]


def spoken(name: str) -> str:
    """The words of an identifier: `probabilityOfDefault` -> `probability of default`."""
    return " ".join(_BETWEEN.sub(" ", _CAMEL.sub(" ", name)).casefold().split())


def card_of(model: Model, capabilities: frozenset[str]) -> ServiceCard:
    """The card of a model that can do these things."""
    spec, promise = model.spec, model.spec.promise
    tags = []
    if promise.latency_p95_ms is not None:
        tags.append(f"p95 {promise.latency_p95_ms:g} ms")
    if promise.accuracy is not None:
        tags.append(f"accuracy {promise.accuracy:g}")
    named = [*_properties(spec.input_schema), *_properties(spec.output_schema)]
    return ServiceCard(
        name=model.metadata.name,
        description=" ".join((spec.description or "").split()),
        domains=_some(spec.domains),
        capabilities=capabilities,
        fields=_some(named),
        operations=_some(_operations(spec.openapi)),
        tags=tuple(tags),
        labels=dict(model.metadata.labels),
        address=spec.endpoint or "",
    )


def _some(listed: Iterable[str]) -> tuple[str, ...]:
    """Each once, in order, without blanks, and not too many."""
    return tuple(dict.fromkeys(one.strip() for one in listed if one.strip()))[:MOST_PARTS]


def _properties(schema: Any, depth: int = 0) -> Iterator[str]:
    """The names of properties in a JSON Schema, those of the outer objects first."""
    if not isinstance(schema, dict) or depth >= DEEPEST:
        return
    found = schema.get("properties")
    inner: list[Any] = [schema.get("items"), *(schema.get(key) for key in ("allOf", "anyOf", "oneOf"))]
    if isinstance(found, dict):
        yield from (str(name) for name in found)
        inner += found.values()
    for one in inner:
        for each in one if isinstance(one, list) else (one,):
            yield from _properties(each, depth + 1)


def _operations(document: Any) -> Iterator[str]:
    """What an OpenAPI document calls itself, and the summaries of its operations (their ids where there are none)."""
    if not isinstance(document, dict):
        return
    info, paths = document.get("info"), document.get("paths")
    if isinstance(info, dict) and isinstance(info.get("title"), str):
        yield info["title"]
    if not isinstance(paths, dict):
        return
    for methods in paths.values():
        for operation in methods.values() if isinstance(methods, dict) else ():
            if isinstance(operation, dict):
                said = operation.get("summary") or operation.get("operationId")
                if isinstance(said, str):
                    yield said if operation.get("summary") else spoken(said)
