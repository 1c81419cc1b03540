"""Resources as plain mappings: what is equal looks equal."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
from msgspec.structs import FieldInfo

from sits.resources.kinds import Resource
from sits.resources.vocabulary import API_VERSION


def plain(resource: Resource) -> dict[str, Any]:
    """The resource as people would write it, in that order; what equals its default is left out.

    msgspec's own `omit_defaults` compares objects by identity, so `cost: {}` would differ from no `cost`.
    """
    fields = _fields(resource)
    fields.pop("apiVersion", None)
    head = {"apiVersion": API_VERSION, "kind": type(resource).__name__}
    return head | fields | {"spec": fields.get("spec", {})}


def _fields(struct: msgspec.Struct) -> dict[str, Any]:
    made = {}
    for field in _declared(type(struct)):
        value = getattr(struct, field.name)
        default = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
        if field.required or value != default:
            made[field.encode_name] = _value(value)
    return made


@cache
def _declared(kind: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    return msgspec.structs.fields(kind)


def _value(value: Any) -> Any:
    if isinstance(value, msgspec.Struct):
        return _fields(value)
    if isinstance(value, list):
        return [_value(item) for item in value]
    return value
