"""Whether a plain value has the shape of a type: every fault, not only the first.

msgspec stops at the first fault and words it for programmers. This walks the same type information and collects all of
them in plain words. msgspec keeps the last word: what passes here is converted by it, and a test holds the two together.
Values that are `UNREAD` have had their fault told already, and are passed over.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import msgspec
from msgspec import inspect

from sits.resources.full_width import hint_for
from sits.resources.problem import Fault, Path, did_you_mean, nearest, quoted
from sits.resources.unread import UNREAD

UNKNOWN_KEY = "unknown key"
KNOWN_HERE = "known here: "
"""Begins the hint to one that is like no other."""


def faults(value: Any, kind: type) -> list[Fault]:
    """Everything in `value` that keeps it from being a `kind`."""
    return list(_walk(value, info_of(kind), (), _Note()))


@cache
def info_of(kind: type) -> inspect.Type:
    """The type, as msgspec tells of it."""
    return inspect.type_info(kind)


class _Note(msgspec.Struct, frozen=True):
    """What `msgspec.Meta` says of a type beside its constraints."""

    meaning: str = ""
    secret: bool = False
    otherwise: str = ""
    """What to do for text in other letters than those of ASCII."""


def _walk(value: Any, info: inspect.Type, path: Path, note: _Note) -> Iterator[Fault]:
    if value is UNREAD:
        return
    if isinstance(info, inspect.Metadata):
        extra = info.extra or {}
        meaning = (info.extra_json_schema or {}).get("description", "")
        yield from _walk(value, info.type, path, _Note(meaning, bool(extra.get("secret")), extra.get("otherwise", "")))
        return
    check = _CHECKS.get(type(info))
    if check is None:
        raise TypeError(f"kinds use {info!r}, which has no check here")
    yield from check(value, info, path, note)


def _struct(value: Any, info: inspect.StructType, path: Path, note: _Note) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield _wrong_type(value, "a mapping", path, note)
        return
    known = {field.encode_name: field for field in info.fields}
    tag = {info.tag_field} if info.tag_field else set()
    for key, child in value.items():
        if key in known:
            yield from _walk(child, known[key].type, (*path, key), _Note())
        elif key not in tag and info.forbid_unknown_fields:
            yield Fault((*path, key), UNKNOWN_KEY, _key_hint(key, known), at_key=True)
    found_otherwise = meant(value, info)
    for name, field in known.items():
        if field.required and name not in value and name not in found_otherwise:
            yield Fault((*path, name), "missing", _needed(field))


def meant(value: dict[str, Any], info: inspect.StructType) -> set[str]:
    """The keys that are not there, and that an unknown one was most likely meant to be."""
    known = [field.encode_name for field in info.fields]
    strange = [key for key in value if key not in known and key != info.tag_field]
    return {found for key in strange if (found := nearest(key, known)) is not None and found not in value}


def _key_hint(key: str, known: dict[str, inspect.Field]) -> str:
    if hint := hint_for(key) or did_you_mean(key, known):
        return hint
    for name, field in known.items():
        if isinstance(field.type, inspect.StructType) and key in {inner.encode_name for inner in field.type.fields}:
            return f"it belongs under `{name}`"
    return f"{KNOWN_HERE}{', '.join(known)}"


def _needed(field: inspect.Field) -> str:
    words = type_words(field.type)
    return f"give {words}" if words else f"give `{field.encode_name}`"


def type_words(info: inspect.Type) -> str:
    """What may stand there, in words: `text`, `a list of text`, `a figure above 0`."""
    if isinstance(info, inspect.Metadata):
        return type_words(info.type)
    if isinstance(info, inspect.UnionType):
        options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
        if all(isinstance(option, inspect.LiteralType) for option in options):
            return _one_of(sorted(_literals(info)))
        return " or ".join(type_words(option) for option in options)
    if isinstance(info, inspect.LiteralType):
        return _one_of(sorted(str(value) for value in info.values))
    if isinstance(info, inspect.ListType | inspect.VarTupleType):
        return f"a list of {type_words(info.item_type)}"
    if isinstance(info, inspect.TupleType):
        return f"a list of {len(info.item_types)}: {', '.join(type_words(item) for item in info.item_types)}"
    if isinstance(info, inspect.IntType | inspect.FloatType):
        noun = "a whole number" if isinstance(info, inspect.IntType) else "a figure"
        return f"{noun} {bounds}" if (bounds := _bounds(info)) else noun
    return _TYPE_WORDS.get(type(info), "a value")


_TYPE_WORDS: dict[type, str] = {
    inspect.StrType: "text",
    inspect.BoolType: "true or false",
    inspect.DictType: "a mapping",
    inspect.StructType: "a mapping",
    inspect.NoneType: "nothing",
    inspect.AnyType: "any value",
}


def _one_of(values: list[str]) -> str:
    return values[0] if len(values) == 1 else f"one of {', '.join(values)}"


def _literals(info: inspect.Type) -> set[str]:
    if isinstance(info, inspect.LiteralType):
        return {str(value) for value in info.values}
    if isinstance(info, inspect.UnionType):
        return set().union(*(_literals(option) for option in info.types))
    return set()


def _bounds(info: inspect.IntType | inspect.FloatType) -> str:
    words = []
    if info.gt is not None:
        words.append(f"above {_figure(info.gt)}")
    if info.ge is not None:
        words.append(f"of at least {_figure(info.ge)}")
    if info.lt is not None:
        words.append(f"below {_figure(info.lt)}")
    if info.le is not None:
        words.append(f"of at most {_figure(info.le)}")
    return " and ".join(words)


def _figure(number: float) -> str:
    """As people write it: 1000000 rather than 1e+06."""
    text = f"{number:g}"
    return f"{number:.0f}" if "e+" in text and number <= 1e15 else text


def _wrong_type(value: Any, wanted: str, path: Path, note: _Note) -> Fault:
    found = _found(value) if not note.secret else _NOUNS.get(type(value), "something else")
    hint = note.meaning
    if wanted == "text" and isinstance(value, int | float) and not note.secret:
        hint = f'put it in quotes: "{str(value).lower() if isinstance(value, bool) else value}"'
    return Fault(path, f"must be {wanted}, not {found}", hint)


_NOUNS: dict[type, str] = {
    dict: "a mapping", list: "a list", str: "text", bool: "true or false", int: "a number", float: "a number",
    type(None): "nothing",
}  # fmt: skip


def _found(value: Any) -> str:
    noun = _NOUNS.get(type(value), type(value).__name__)
    return noun if isinstance(value, dict | list | None) else f"{noun} ({quoted(value)})"


def _text(value: Any, info: inspect.StrType, path: Path, note: _Note) -> Iterator[Fault]:
    if not isinstance(value, str):
        yield _wrong_type(value, "text", path, note)
        return
    wrong = list(_length(len(value), info, path, "text", "character"))
    yield from wrong
    if not wrong and info.pattern is not None and re.search(info.pattern, value) is None:
        found = "this text" if note.secret else quoted(value)
        yield Fault(path, f"{found} is not {note.meaning or 'of the right form'}", "" if value.isascii() else note.otherwise)


def _length(
    size: int,
    info: inspect.StrType | inspect.ListType | inspect.VarTupleType | inspect.DictType,
    path: Path,
    what: str,
    unit: str,
) -> Iterator[Fault]:
    """Too short or too long."""
    least, most = info.min_length, info.max_length
    if least is not None and size < least:
        yield Fault(
            path,
            f"the {what} is empty" if not size else f"the {what} is too short ({size})",
            f"give at least {_counted(least, unit)}",
        )
    elif most is not None and size > most:
        yield Fault(path, f"the {what} is too long ({size})", f"give at most {_counted(most, unit)}")


def _counted(number: int, unit: str) -> str:
    if not unit:
        return str(number)
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def _number(value: Any, info: inspect.IntType | inspect.FloatType, path: Path, note: _Note) -> Iterator[Fault]:
    whole = isinstance(info, inspect.IntType)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        yield _wrong_type(value, "a whole number" if whole else "a number", path, note)
        return
    if any(limit is not None and not holds(value, limit) for limit, holds in _limits(info)):
        yield Fault(path, f"{quoted(value)} is out of range", f"give {type_words(info)}")
    elif info.multiple_of is not None and value % info.multiple_of:
        yield Fault(path, f"{quoted(value)} is not a multiple of {info.multiple_of:g}")


def _limits(info: inspect.IntType | inspect.FloatType) -> list[tuple[float | None, Callable[[Any, Any], bool]]]:
    return [(info.gt, operator.gt), (info.ge, operator.ge), (info.lt, operator.lt), (info.le, operator.le)]


def _bool(value: Any, info: inspect.BoolType, path: Path, note: _Note) -> Iterator[Fault]:
    if not isinstance(value, bool):
        yield _wrong_type(value, "true or false", path, note)


def _none(value: Any, info: inspect.NoneType, path: Path, note: _Note) -> Iterator[Fault]:
    if value is not None:
        yield _wrong_type(value, "nothing", path, note)


def _any(value: Any, info: inspect.AnyType, path: Path, note: _Note) -> Iterator[Fault]:
    return iter(())


def _literal(value: Any, info: inspect.Type, path: Path, note: _Note) -> Iterator[Fault]:
    allowed = _literals(info)
    if isinstance(value, str) and value in allowed:
        return
    hint = did_you_mean(value, allowed) if isinstance(value, str) else ""
    listed = ", ".join(sorted(allowed))
    if len(allowed) == 1:
        yield Fault(path, f"must be {listed}, not {quoted(value)}", hint)
    else:
        yield Fault(path, f"{quoted(value)} is not one of {listed}", hint)


def _union(value: Any, info: inspect.UnionType, path: Path, note: _Note) -> Iterator[Fault]:
    options = [option for option in info.types if not isinstance(option, inspect.NoneType)]
    if value is None and len(options) < len(info.types):
        return
    if all(isinstance(option, inspect.LiteralType) for option in options):
        yield from _literal(value, inspect.UnionType(tuple(options)), path, note)
        return
    if len(options) > 1:
        # Faults of the option whose outer shape fits say more than "none of them".
        fitting = option_for(value, info)
        if fitting is None:
            yield _wrong_type(value, type_words(info), path, note)
        else:
            yield from _walk(value, fitting, path, note)
        return
    yield from _walk(value, options[0], path, note)


def option_for(value: Any, info: inspect.UnionType) -> inspect.Type | None:
    """The option of a union whose outer shape a value has."""
    for option in info.types:
        inner = option.type if isinstance(option, inspect.Metadata) else option
        if isinstance(value, _SHAPES.get(type(inner), ())) and (
            isinstance(inner, inspect.BoolType) or not isinstance(value, bool)
        ):
            return option
    return None


_SHAPES: dict[type, tuple[type, ...]] = {
    inspect.StrType: (str,), inspect.ListType: (list,), inspect.DictType: (dict,), inspect.StructType: (dict,),
    inspect.IntType: (int,), inspect.FloatType: (int, float), inspect.BoolType: (bool,), inspect.TupleType: (list,),
    inspect.LiteralType: (str,),
}  # fmt: skip


def _list(value: Any, info: inspect.ListType | inspect.VarTupleType, path: Path, note: _Note) -> Iterator[Fault]:
    if not isinstance(value, list):
        yield _wrong_type(value, "a list", path, note)
        return
    yield from _length(len(value), info, path, "list", "")
    for index, item in enumerate(value):
        yield from _walk(item, info.item_type, (*path, index), _Note())


def _tuple(value: Any, info: inspect.TupleType, path: Path, note: _Note) -> Iterator[Fault]:
    size = len(info.item_types)
    if not isinstance(value, list):
        yield _wrong_type(value, f"a list of {size}", path, note)
    elif len(value) != size:
        yield Fault(path, f"the list has {len(value)}, not {size}", f"give {type_words(info)}")
    else:
        for index, (item, kind) in enumerate(zip(value, info.item_types, strict=True)):
            yield from _walk(item, kind, (*path, index), _Note())


def _dict(value: Any, info: inspect.DictType, path: Path, note: _Note) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield _wrong_type(value, "a mapping", path, note)
        return
    yield from _length(len(value), info, path, "mapping", "")
    for key, item in value.items():
        for fault in _walk(key, info.key_type, (*path, key), _Note()):
            yield msgspec.structs.replace(fault, at_key=True)
        yield from _walk(item, info.value_type, (*path, key), _Note())


_CHECKS: dict[type, Callable[[Any, Any, Path, _Note], Iterator[Fault]]] = {
    inspect.StructType: _struct,
    inspect.StrType: _text,
    inspect.IntType: _number,
    inspect.FloatType: _number,
    inspect.BoolType: _bool,
    inspect.NoneType: _none,
    inspect.AnyType: _any,
    inspect.LiteralType: _literal,
    inspect.UnionType: _union,
    inspect.ListType: _list,
    inspect.TupleType: _tuple,
    inspect.VarTupleType: _list,
    inspect.DictType: _dict,
}
