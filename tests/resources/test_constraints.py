"""Every constraint of every field, broken on purpose: told in our own words, at the line and column of the value itself."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import inspect

from sits.resources.conform import faults, info_of
from sits.resources.experiments import CONFIGS
from sits.resources.json_text import read_json
from sits.resources.kinds import KINDS
from sits.resources.problem import Path, shown
from sits.resources.reading import read_text
from sits.resources.vocabulary import Spec
from sits.routing.scheduling import settings as scheduling

EXAMPLES = ("a", "env:A", "a" * 64, "http://h", "/a", "2 + 2")
"""One of them has the form that a pattern asks for."""
LIBRARY = re.compile(r"`\$|Expected `|\$\.|matching regex|Invalid enum|Object (?:missing|contains)|\(\?!")


class Inner(msgspec.Struct, forbid_unknown_fields=True, rename="camel"):
    needed_here: int


class Everything(msgspec.Struct, forbid_unknown_fields=True, tag_field="kind", tag="Everything"):
    """A field for each kind of constraint that msgspec has."""

    least: Annotated[str, msgspec.Meta(min_length=2)] = "ab"
    most: Annotated[str, msgspec.Meta(max_length=2)] = "ab"
    form: Annotated[str, msgspec.Meta(pattern="^a+$", description="only the letter a")] = "a"
    above: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    from_: Annotated[int, msgspec.Meta(ge=2)] = msgspec.field(default=2, name="from")
    below: Annotated[float, msgspec.Meta(lt=1)] = 0.0
    upto: Annotated[float, msgspec.Meta(le=1_000_000)] = 1.0
    between: Annotated[float, msgspec.Meta(gt=1, le=10)] = 2.0
    even: Annotated[int, msgspec.Meta(multiple_of=2)] = 2
    choice: Literal["first", "total"] = "first"
    either: int | str = 1
    items: Annotated[list[int], msgspec.Meta(min_length=1, max_length=2)] = msgspec.field(default_factory=lambda: [1])
    pair: tuple[int, int] = (1, 2)
    several: tuple[int, ...] = ()
    named: dict[Annotated[str, msgspec.Meta(pattern="^[a-z]+$", description="lower case ASCII letters")], int] = {}
    few: Annotated[dict[str, int], msgspec.Meta(max_length=1)] = {}
    inner: Inner | None = None
    on: bool = True
    text: str = ""
    secret: Annotated[str, msgspec.Meta(pattern="^env:", description="env:NAME", extra={"secret": True})] = "env:A"


SAID = {
    "text too short": ({"least": "a"}, "least: the text is too short (1); give at least 2 characters"),
    "text empty": ({"least": ""}, "least: the text is empty; give at least 2 characters"),
    "text too long": ({"most": "abc"}, "most: the text is too long (3); give at most 2 characters"),
    "pattern": ({"form": "b"}, 'form: "b" is not only the letter a; '),
    "above": ({"above": 0}, "above: 0 is out of range; give a figure above 0"),
    "at least": ({"from": 1}, "from: 1 is out of range; give a whole number of at least 2"),
    "below": ({"below": 1}, "below: 1 is out of range; give a figure below 1"),
    "at most": ({"upto": 1e7}, "upto: 10000000.0 is out of range; give a figure of at most 1000000"),
    "between": ({"between": 1}, "between: 1 is out of range; give a figure above 1 and of at most 10"),
    "multiple": ({"even": 3}, "even: 3 is not a multiple of 2; "),
    "choice": ({"choice": "frist"}, 'choice: "frist" is not one of first, total; did you mean "first"?'),
    "one of several types": ({"either": []}, "either: must be a whole number or text, not a list; "),
    "list empty": ({"items": []}, "items: the list is empty; give at least 1"),
    "list too long": ({"items": [1, 2, 3]}, "items: the list is too long (3); give at most 2"),
    "an item": ({"items": ["x"]}, 'items[0]: must be a whole number, not text ("x"); '),
    "pair": ({"pair": [1]}, "pair: the list has 1, not 2; give a list of 2: a whole number, a whole number"),
    "one of any number": ({"several": [1, "x"]}, 'several[1]: must be a whole number, not text ("x"); '),
    "key of a mapping": ({"named": {"法律": 1}}, 'named.法律: "法律" is not lower case ASCII letters; '),
    "mapping too large": ({"few": {"a": 1, "b": 2}}, "few: the mapping is too long (2); give at most 1"),
    "missing": ({"inner": {}}, "inner.neededHere: missing; give a whole number"),
    "unknown": ({"inner": {"neededHere": 1, "more": 2}}, "inner.more: unknown key; known here: neededHere"),
    "unknown and missing are one": ({"inner": {"needed_here": 1}}, 'inner.needed_here: unknown key; did you mean "neededHere"?'),
    "not a mapping": ({"inner": 3}, "inner: must be a mapping, not a number (3); "),
    "not true or false": ({"on": "yes"}, 'on: must be true or false, not text ("yes"); '),
    "not text": ({"text": 7}, 'text: must be text, not a number (7); put it in quotes: "7"'),
    "a secret": ({"secret": "hunter2"}, "secret: this text is not env:NAME; "),
}  # fmt: skip


@pytest.mark.parametrize(("value", "said"), SAID.values(), ids=SAID)
def test_every_constraint_is_told_in_our_own_words(value: dict[str, Any], said: str) -> None:
    (fault,) = faults({"kind": "Everything", **value}, Everything)
    assert f"{shown(fault.path)}: {fault.message}; {fault.hint}" == said
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"kind": "Everything", **value}, Everything)


def least(info: inspect.Type) -> Any:
    """The smallest value of a type."""
    if isinstance(info, inspect.Metadata):
        return least(info.type)
    if isinstance(info, inspect.UnionType):
        return None if any(isinstance(one, inspect.NoneType) for one in info.types) else least(info.types[0])
    if isinstance(info, inspect.StructType):
        made = {field.encode_name: least(field.type) for field in info.fields if field.required}
        return made | ({info.tag_field: info.tag} if info.tag_field else {})
    if isinstance(info, inspect.ListType):
        return [least(info.item_type) for _ in range(info.min_length or 0)]
    if isinstance(info, inspect.StrType):
        fitting = (text for text in EXAMPLES if info.pattern is None or re.search(info.pattern, text))
        return next(text for text in fitting if len(text) >= (info.min_length or 0))
    if isinstance(info, inspect.LiteralType):
        return info.values[0]
    if isinstance(info, inspect.IntType | inspect.FloatType):
        return next(n for n in (0, 1, 0.7, 2, 16, 100, 200) if not faults_of(n, info))
    return {inspect.BoolType: True, inspect.DictType: {}, inspect.AnyType: 1}[type(info)]


def faults_of(number: float, info: inspect.IntType | inspect.FloatType) -> bool:
    if isinstance(info, inspect.IntType) and not isinstance(number, int):
        return True
    return (
        (info.gt is not None and number <= info.gt)
        or (info.ge is not None and number < info.ge)
        or (info.lt is not None and number >= info.lt)
        or (info.le is not None and number > info.le)
    )


def broken(info: inspect.Type) -> Iterator[tuple[Path, Any]]:
    """Values that are no such thing, and where in them that is seen; for each constraint one."""
    if isinstance(info, inspect.Metadata):
        yield from broken(info.type)
    elif isinstance(info, inspect.UnionType):
        options = [one for one in info.types if not isinstance(one, inspect.NoneType)]
        for option in options:
            # What breaks one option may be another.
            yield from ((path, value) for path, value in broken(option) if len(options) == 1 or path)
    elif isinstance(info, inspect.StructType):
        yield (), 7
        for field in info.fields:
            for path, value in broken(field.type):
                yield (field.encode_name, *path), least(info) | {field.encode_name: value}
    elif isinstance(info, inspect.ListType | inspect.VarTupleType):
        yield (), 7
        yield from (((0, *path), [value]) for path, value in broken(info.item_type))
        yield from (((), size * [least(info.item_type)]) for size in beyond(info))
    elif isinstance(info, inspect.TupleType):
        yield (), [1]
    elif isinstance(info, inspect.DictType):
        yield (), 7
        yield from ((("k", *path), {"k": value}) for path, value in broken(info.value_type))
        yield from (((key,), {key: least(info.value_type)}) for _, key in broken(info.key_type) if isinstance(key, str))
    elif isinstance(info, inspect.LiteralType):
        yield (), "nothing of the kind"
    elif isinstance(info, inspect.StrType):
        yield (), 7
        yield from (((), "a" * size) for size in beyond(info))
        if info.pattern is not None:
            yield from (((), text) for text in ("", " ", "法律", "a\n") if not re.search(info.pattern, text))
    elif isinstance(info, inspect.IntType | inspect.FloatType):
        yield (), "many"
        ends = [(info.gt, 0), (info.ge, -1), (info.lt, 0), (info.le, 1)]
        yield from (((), end + step) for end, step in ends if end is not None)
    elif isinstance(info, inspect.BoolType):
        yield (), "yes"


def beyond(info: Any) -> Iterator[int]:
    if info.min_length:
        yield info.min_length - 1
    if info.max_length is not None:
        yield info.max_length + 1


@pytest.mark.parametrize("kind", KINDS)
def test_every_broken_field_of_a_kind_is_told_at_its_own_place(kind: str) -> None:
    tried = 0
    for path, value in broken(info_of(KINDS[kind])):
        if not path:
            continue
        text = json.dumps(value, indent=1, ensure_ascii=False)
        (document,) = read_json(text)
        places = {document.marks.get(path), document.keys.get(path)} - {None}
        problems = read_text(text, "x.json").problems
        told = [f"{problem.message}; {problem.hint}" for problem in problems if (problem.line, problem.column) in places]
        assert told, (path, [str(problem) for problem in problems])
        assert not any(LIBRARY.search(one) for one in (str(problem) for problem in problems)), problems
        tried += 1
    assert tried > 15


SETTINGS = [one for one in vars(scheduling).values() if isinstance(one, type) and issubclass(one, Spec)]


@pytest.mark.parametrize("kind", [*SETTINGS, *CONFIGS.values()], ids=lambda kind: kind.__name__)
def test_every_broken_setting_is_told_where_it_is(kind: type[msgspec.Struct]) -> None:
    for path, value in broken(info_of(kind)):
        found = faults(value, kind)
        assert any(fault.path == path for fault in found), (path, value, found)
        assert not any(LIBRARY.search(f"{fault.message} {fault.hint}") for fault in found), found


def patterns(info: inspect.Type, description: str = "") -> Iterator[tuple[str, str]]:
    """Every pattern in a type, and what it is said to be."""
    if isinstance(info, inspect.Metadata):
        yield from patterns(info.type, (info.extra_json_schema or {}).get("description", ""))
    elif isinstance(info, inspect.StrType) and info.pattern is not None:
        yield info.pattern, description
    for part in ("item_type", "key_type", "value_type"):
        if hasattr(info, part):
            yield from patterns(getattr(info, part))
    for part in getattr(info, "types", ()):
        yield from patterns(part)
    for field in getattr(info, "fields", ()):
        yield from patterns(field.type)


@pytest.mark.parametrize("kind", [*KINDS.values(), *SETTINGS, *CONFIGS.values()], ids=lambda kind: kind.__name__)
def test_every_pattern_says_in_words_what_is_allowed(kind: type) -> None:
    assert [pattern for pattern, words in patterns(info_of(kind)) if not words] == []
