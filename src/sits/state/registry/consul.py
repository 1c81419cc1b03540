"""Answers of a Consul agent (HTTP API v1) -> cards.

Read are `/v1/catalog/services` (names with tags), `/v1/health/service/NAME` (instances with their checks),
`/v1/catalog/service/NAME` and `/v1/agent/services`; https://developer.hashicorp.com/consul/api-docs says what is in them. Sidecar
proxies, gateways and Consul itself are no services that anybody looks for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from sits.routing.registry.card import ServiceCard
from sits.state.registry.imported import Instance, checked, document, entry, unreadable

WHOSE = "Consul"
OWN = "consul"
T = TypeVar("T")
SECURE = ("https", "tls", "secure")


class _Node(msgspec.Struct, rename="pascal"):
    address: str = ""


class _Service(msgspec.Struct, rename="pascal"):
    service: str
    kind: str = ""
    tags: list[str] | None = None
    address: str = ""
    port: int = 0
    meta: dict[str, str] | None = None


class _Check(msgspec.Struct, rename="pascal"):
    status: str


class _Healthy(msgspec.Struct, rename="pascal"):
    node: _Node
    service: _Service
    checks: list[_Check] = []


class _Listed(msgspec.Struct, rename="pascal"):
    service_name: str
    address: str = ""
    service_kind: str = ""
    service_tags: list[str] | None = None
    service_address: str = ""
    service_port: int = 0
    service_meta: dict[str, str] | None = None


class _Seen(msgspec.Struct):
    tags: dict[str, None]
    meta: dict[str, str]
    instances: list[Instance]


def cards(body: bytes) -> list[ServiceCard]:
    """The services of one answer.

    Raises:
        SitsError: `invalid_request`: it is none of the answers above; `request_too_large`.
    """
    value = document(body, WHOSE)
    if isinstance(value, list):
        return _of(_instances(value))
    if isinstance(value, dict):
        if all(isinstance(one, list) for one in value.values()):
            return _of((name, _typed(tags, list[str], name), {}, None) for name, tags in value.items())
        return _of(_one(_typed(each, _Service, id), None) for id, each in value.items())
    raise unreadable(WHOSE, "neither a list of instances nor an object of services")


_Row = tuple[str, Iterable[str], dict[str, str], Instance | None]


def _instances(value: list[Any]) -> Iterable[_Row]:
    for number, each in enumerate(value, 1):
        if isinstance(each, dict) and "ServiceName" in each:
            listed = _typed(each, _Listed, each["ServiceName"], number)
            service = _Service(
                listed.service_name,
                listed.service_kind,
                listed.service_tags,
                listed.service_address or listed.address,
                listed.service_port,
                listed.service_meta,
            )
            yield _one(service, None)
            continue
        inner = each.get("Service") if isinstance(each, dict) else None
        healthy = _typed(each, _Healthy, inner.get("Service") if isinstance(inner, dict) else None, number)
        service = healthy.service
        if not service.address:
            service.address = healthy.node.address
        # A check that warns is no reason to leave an instance out: Consul does not either.
        yield _one(service, all(check.status in ("passing", "warning") for check in healthy.checks))


def _typed(value: Any, kind: type[T], name: object, number: int = 0) -> T:
    """The value as what it should be.

    Raises:
        SitsError: `invalid_request`: it is not, and of which service it is, or the how maniest instance.
    """
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        who = repr(name[:80]) if isinstance(name, str) else f"instance {number}"
        raise unreadable(WHOSE, f"{who}: {error}") from error


def _one(service: _Service, healthy: bool | None) -> _Row:
    tags, meta = service.tags or [], service.meta or {}
    if service.kind:
        return OWN, [], {}, None
    instance = None
    if service.address and 0 < service.port < 65536:
        secure = any(tag.casefold() in SECURE for tag in tags) or meta.get("scheme") == "https"
        host = f"[{service.address}]" if ":" in service.address else service.address
        instance = Instance(f"{'https' if secure else 'http'}://{host}:{service.port}", healthy is not False)
    return service.service, tags, meta, instance


def _of(rows: Iterable[_Row]) -> list[ServiceCard]:
    """One card for all instances of a service."""
    seen: dict[str, _Seen] = {}
    for name, tags, meta, instance in rows:
        if name == OWN:
            continue
        found = seen.setdefault(name, _Seen({}, {}, []))
        found.tags.update(dict.fromkeys(tags))
        found.meta.update(meta)
        if instance is not None:
            found.instances.append(instance)
    return checked([entry(name, "consul", one.tags, one.meta, one.instances) for name, one in seen.items()], WHOSE)
