"""What `POST /v1/models/register` takes: a Model as in a file, or its fields flat in snake_case."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from sits.gateway.openapi.shapes import Schema, ref, said
from sits.gateway.registration import ALSO, LOOSE, camel
from sits.resources.schema import json_schema

NESTED = {"Promise": "promise", "Cost": "cost", "Tls": "tls", "DeadlineSpec": "deadlines", "LocalSpec": "local"}
"""Nested settings that may be spelled in snake_case too."""


def schemas() -> dict[str, Schema]:
    """The Model resource with its parts, the flat form with its own, and their choice."""
    resource = _definitions()
    return {
        **resource,
        **{f"Flat{name}": _either_spelling(resource[name]) for name in NESTED},
        "FlatModel": _flat(resource),
        "ModelRegistration": {"anyOf": [ref("Model"), ref("FlatModel")]},
    }


def _definitions() -> dict[str, Schema]:
    text = json.dumps(json_schema("Model")["$defs"]).replace("#/$defs/", "#/components/schemas/")
    return cast("dict[str, Schema]", json.loads(text))


def snake(name: str) -> str:
    """`healthCheckPath` -> `health_check_path`; the way back of `camel`."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", lambda found: "_" + found[1].lower(), name)


def _either_spelling(definition: Mapping[str, Any]) -> Schema:
    properties = definition["properties"]
    snakes = {snake(name): shape for name, shape in properties.items()}
    others = {name: {"description": f"The same as `{snake(name)}`.", **_bare(shape)} for name, shape in properties.items()}
    return {**definition, "properties": {**others, **snakes}}


def _bare(shape: Mapping[str, Any]) -> Schema:
    return {key: value for key, value in shape.items() if key != "description"}


def _flat(resource: Mapping[str, Schema]) -> Schema:
    spec = _either_spelling(resource["ModelSpec"])
    properties: dict[str, Schema] = dict(spec["properties"])
    for name, field in NESTED.items():
        properties[field] = json.loads(json.dumps(properties[field]).replace(f"schemas/{name}", f"schemas/Flat{name}"))
    for other, field in ALSO.items():
        properties[other] = said(_bare(properties[field]), f"The same as `{field}`.")
    for name, holder in NESTED.items():
        for field in LOOSE.get(holder, ()):
            properties[field] = resource[name]["properties"][camel(field)]
    metadata = resource["Metadata"]["properties"]
    properties["labels"] = metadata["labels"]
    name = metadata["name"]
    properties["model_id"] = said(_bare(name), "The name of the model, unique among all names.")
    properties["name"] = said(_bare(name), "The same as `model_id`.")
    return {
        "type": "object",
        "description": "The fields of a Model, flat and in snake_case.",
        "properties": properties,
        "required": spec["required"],
        "anyOf": [{"required": ["model_id"]}, {"required": ["name"]}],
        "additionalProperties": False,
    }
