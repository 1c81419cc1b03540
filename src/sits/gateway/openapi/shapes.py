"""The pieces that schemas are put together from; JSON Schema 2020-12, as OpenAPI 3.1 has it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

Schema = dict[str, Any]

STRING: Schema = {"type": "string"}
FILLED: Schema = {"type": "string", "minLength": 1}
NUMBER: Schema = {"type": "number"}
INTEGER: Schema = {"type": "integer"}
COUNT: Schema = {"type": "integer", "minimum": 0}
BOOLEAN: Schema = {"type": "boolean"}
OBJECT: Schema = {"type": "object"}
NULL: Schema = {"type": "null"}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def const(value: str) -> Schema:
    return {"type": "string", "const": value}


def one_of(values: Iterable[str]) -> Schema:
    return {"type": "string", "enum": list(values)}


def other_than(values: Iterable[str]) -> Schema:
    return {"type": "string", "not": {"enum": list(values)}}


def listed(items: Schema, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least} if least else {"type": "array", "items": items}


def either(*options: Schema) -> Schema:
    return {"anyOf": list(options)}


def nullable(schema: Schema) -> Schema:
    return either(schema, NULL)


def record(properties: Mapping[str, Schema], required: Sequence[str] | None = None, **more: Any) -> Schema:
    """An object; every property is required unless `required` says which are. Further properties pass."""
    needed = list(properties) if required is None else list(required)
    return {"type": "object", "properties": dict(properties), **({"required": needed} if needed else {}), **more}


def said(schema: Schema, description: str) -> Schema:
    return {**schema, "description": description}


def form(struct: type[msgspec.Struct], **instead: Schema) -> Schema:
    """The schema of what a Struct takes, in one piece; `instead` refines single properties.

    The forms that the gateway reads with are the source, so that the document cannot ask for anything else.
    """
    (top,), components = msgspec.json.schema_components([struct], ref_template="{name}")
    found: Schema = _inline(top, components)
    unknown = instead.keys() - found["properties"].keys()
    assert not unknown, f"{struct.__name__} has no {unknown}"
    return {**found, "properties": {**found["properties"], **instead}}


def _inline(value: Any, components: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_inline(item, components) for item in value]
    if not isinstance(value, dict):
        return value
    if "$ref" in value:
        return _inline(components[value["$ref"]], components)
    return {
        key: {name: _inline(item, components) for name, item in held.items()}
        if key == "properties"
        else _inline(held, components)
        for key, held in value.items()
        if key not in ("title", "default", "description")
    }
