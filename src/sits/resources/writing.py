"""Resources to YAML text that reads back as the same resources."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import DoubleQuotedScalarString

from sits.resources.kinds import Resource
from sits.resources.plain import plain
from sits.resources.yaml_text import reads_back


def to_yaml(resources: Iterable[Resource]) -> str:
    """One document for each resource."""
    yaml = YAML()
    yaml.width = 120
    yaml.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    yaml.dump_all([_safe(plain(resource)) for resource in resources], stream)
    return stream.getvalue()


def _safe(value: Any) -> Any:
    """Text that a plain scalar would not give back is put in double quotes."""
    if isinstance(value, dict):
        return {_safe(key): _safe(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_safe(item) for item in value]
    if isinstance(value, str) and not reads_back(value):
        return DoubleQuotedScalarString(value)
    return value
