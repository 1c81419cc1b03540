"""A resource of a plain value that has faults of shape: what can be read of it, and `UNREAD` for the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from msgspec import inspect

from sits.resources.conform import info_of, meant, option_for
from sits.resources.problem import Fault, Path
from sits.resources.unread import UNREAD


def partly(value: Any, kind: type, faults: Iterable[Fault]) -> Any:
    """`value` as a `kind`. Unknown keys are left out; `UNREAD` stands where a fault is, and where an unknown key was probably
    meant to be another."""
    return _made(value, info_of(kind), (), frozenset(fault.path for fault in faults))


def _made(value: Any, info: inspect.Type, path: Path, bad: frozenset[Path]) -> Any:
    if path in bad or value is UNREAD:
        return UNREAD
    if isinstance(info, inspect.Metadata):
        return _made(value, info.type, path, bad)
    if isinstance(info, inspect.UnionType):
        return _option(value, info, path, bad)
    if isinstance(info, inspect.StructType):
        return _struct(value, info, path, bad)
    if isinstance(info, inspect.ListType):
        return [_made(item, info.item_type, (*path, index), bad) for index, item in enumerate(value)]
    if isinstance(info, inspect.VarTupleType):
        return tuple(_made(item, info.item_type, (*path, index), bad) for index, item in enumerate(value))
    if isinstance(info, inspect.TupleType):
        pairs = enumerate(zip(value, info.item_types, strict=True))
        return tuple(_made(item, kind, (*path, index), bad) for index, (item, kind) in pairs)
    if isinstance(info, inspect.DictType):
        return {key: _made(item, info.value_type, (*path, key), bad) for key, item in value.items()}
    return float(value) if isinstance(info, inspect.FloatType) else value


def _option(value: Any, info: inspect.UnionType, path: Path, bad: frozenset[Path]) -> Any:
    if value is None:
        return None
    options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
    chosen = options[0] if len(options) == 1 else cast("inspect.Type", option_for(value, info))
    return _made(value, chosen, path, bad)


def _struct(value: dict[str, Any], info: inspect.StructType, path: Path, bad: frozenset[Path]) -> Any:
    parts: dict[str, Any] = {}
    otherwise = meant(value, info)
    for field in info.fields:
        key = field.encode_name
        if key in value:
            parts[field.name] = _made(value[key], field.type, (*path, key), bad)
        elif field.required or key in otherwise or (*path, key) in bad:
            parts[field.name] = UNREAD
    return info.cls(**parts)
