"""Where keys have their place, in all kinds: for the hint to one that was written elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

from msgspec import inspect, structs

from sits.resources.conform import KNOWN_HERE, UNKNOWN_KEY, info_of
from sits.resources.kinds import KINDS
from sits.resources.problem import Fault

MOST = 2
"""Places that are told; a key of more is no hint."""


def placed(fault: Fault, kind: type) -> Fault:
    """The fault; of a key that nobody knows there, with the place where one of its name is known."""
    key = fault.path[-1] if fault.path else None
    if fault.message != UNKNOWN_KEY or not fault.hint.startswith(KNOWN_HERE) or not isinstance(key, str):
        return fault
    found = _places().get(key, {})
    own = [place for place, kinds in found.items() if kind.__name__ in kinds]
    if 0 < len(own) <= MOST:
        return structs.replace(fault, hint=f"it belongs at {' or '.join(f'`{place}`' for place in own)}")
    if not own and 0 < len(found) <= MOST:
        words = [f"`{place}` of {' and '.join(kinds)}" for place, kinds in found.items()]
        return structs.replace(fault, hint=f"there is {' and '.join(words)}; {fault.hint}")
    return fault


@cache
def _places() -> Mapping[str, Mapping[str, tuple[str, ...]]]:
    """Key -> place -> the kinds that have it there."""
    found: dict[str, dict[str, tuple[str, ...]]] = {}
    for name, kind in KINDS.items():
        for place in dict.fromkeys(_under(info_of(kind), (), ())):
            by_place = found.setdefault(place[-1].removesuffix("[]"), {})
            where = ".".join(place).removesuffix("[]")
            by_place[where] = (*by_place.get(where, ()), name)
    return found


def _under(info: inspect.Type, path: tuple[str, ...], above: tuple[type, ...]) -> Iterator[tuple[str, ...]]:
    """The paths of all keys."""
    if isinstance(info, inspect.Metadata):
        yield from _under(info.type, path, above)
    elif isinstance(info, inspect.UnionType):
        for option in info.types:
            yield from _under(option, path, above)
    elif isinstance(info, inspect.ListType | inspect.VarTupleType) and path:
        yield from _under(info.item_type, (*path[:-1], f"{path[-1]}[]"), above)
    elif isinstance(info, inspect.DictType):
        yield from _under(info.value_type, (*path, "NAME"), above)
    elif isinstance(info, inspect.StructType) and info.cls not in above:
        for field in info.fields:
            here = (*path, field.encode_name)
            yield here
            yield from _under(field.type, here, (*above, info.cls))
