"""Answers of a Eureka server -> cards: `/eureka/apps` and `/eureka/apps/NAME`, as JSON or XML.

The forms are those of https://github.com/Netflix/eureka/wiki/Eureka-REST-operations. Servers of different age write one instance
as an object or as a list of one, and ports as `{"$": 8080, "@enabled": "true"}`; both are read.
"""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

from sits.routing.registry.card import ServiceCard
from sits.state.registry.imported import Instance, checked, document, entry, unreadable

WHOSE = "Eureka"
UP = "UP"


def cards(body: bytes) -> list[ServiceCard]:
    """The applications of one answer.

    Raises:
        SitsError: `invalid_request`: it is no such answer; `request_too_large`.
    """
    value = _from_xml(body) if body.lstrip().startswith(b"<") else document(body, WHOSE)
    if not isinstance(value, dict):
        raise unreadable(WHOSE, "it is no object")
    if "applications" in value:
        held = value["applications"]
        listed = _many(held.get("application") if isinstance(held, dict) else None)
    elif "application" in value:
        listed = _many(value["application"])
    else:
        raise unreadable(WHOSE, "neither `applications` nor `application` is in it")
    return checked([_application(one, number) for number, one in enumerate(listed, 1)], WHOSE)


def _application(value: Any, number: int) -> ServiceCard:
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        raise unreadable(WHOSE, f"application {number} has no name")
    name, instances, meta, tags = value["name"], [], {}, []
    for each in _many(value.get("instance")):
        if not isinstance(each, dict):
            raise unreadable(WHOSE, f"an instance of {name} is no object")
        status = each.get("status")
        if not isinstance(status, str):
            raise unreadable(WHOSE, f"an instance of {name} has no status")
        found = each.get("metadata")
        if isinstance(found, dict):
            meta.update({key: value for key, value in found.items() if isinstance(value, str) and not key.startswith("@")})
        address = _address(each)
        if address:
            instances.append(Instance(address, status == UP))
        vip = each.get("vipAddress")
        if isinstance(vip, str) and vip.casefold() != name.casefold():
            tags.append(vip)
    return entry(name, "eureka", tags, meta, instances)


def _address(instance: dict[str, Any]) -> str:
    """Where an instance answers: its secure port if that is enabled, else the other one."""
    host = instance.get("hostName") or instance.get("ipAddr")
    if not isinstance(host, str) or not host:
        return ""
    for key, scheme in (("securePort", "https"), ("port", "http")):
        port, enabled = _port(instance.get(key))
        if enabled and 0 < port < 65536:
            return f"{scheme}://{host}:{port}"
    return ""


def _port(value: Any) -> tuple[int, bool]:
    enabled: Any = "true"
    if isinstance(value, dict):
        value, enabled = value.get("$"), value.get("@enabled", "true")
    try:
        return int(value), str(enabled).casefold() == "true"
    except (TypeError, ValueError, OverflowError):  # Infinity, which Python's JSON knows, is no whole number.
        return 0, False


def _many(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _from_xml(body: bytes) -> dict[str, Any]:
    """The XML answer in the form of the JSON one."""
    # No answer of Eureka has a document type; with one could come entities that grow without end.
    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise unreadable(WHOSE, "it has a document type")
    try:
        root = ET.fromstring(body)  # noqa: S314 - without a document type there are no entities to expand
    except ET.ParseError as error:
        raise unreadable(WHOSE, f"it is not XML: {error}") from error
    if root.tag not in ("applications", "application"):
        raise unreadable(WHOSE, f"its root is <{root.tag[:80]}>")
    try:
        return {root.tag: _value(root)}
    except RecursionError as error:
        raise unreadable(WHOSE, "it is nested too deeply") from error


def _value(element: ET.Element) -> Any:
    if element.tag in ("port", "securePort"):
        return {"$": element.text, "@enabled": element.get("enabled", "true")}
    if not len(element):
        return {} if element.tag in ("metadata", "applications", "application") else (element.text or "").strip()
    found: dict[str, Any] = {}
    for child in element:
        if child.tag in ("application", "instance"):
            found.setdefault(child.tag, []).append(_value(child))
        else:
            found[child.tag] = _value(child)
    return found
