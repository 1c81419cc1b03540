"""The wire form of CRDTs: msgpack of `[version, kind, body]`, the same bytes for the same state.

Reading trusts nothing: what is not exactly such a form, or breaks a rule of its kind, is refused with `invalid_request`. It
cannot tell a lie from the truth: whoever may write to the bus may raise any counter. Node ids stand in a table, rows point there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec

from sits.inner.errors import Code, SitsError
from sits.state.clocks.hybrid import LARGEST_COUNT as LARGEST_TICK
from sits.state.clocks.hybrid import Stamp
from sits.state.crdt.context import LARGEST_COUNT, Context, Dot, check_name
from sits.state.crdt.counters import GCounter, PNCounter
from sits.state.crdt.kernel import F, K, kernel_of
from sits.state.crdt.ormap import Fragment, Key, Kind, ORMap
from sits.state.crdt.orset import ORSet
from sits.state.crdt.register import LARGEST_CONTENT, LWWRegister
from sits.state.crdt.round import LARGEST_NOTE, Round

Crdt = GCounter | PNCounter | ORSet | LWWRegister | ORMap | Round

VERSION = 1
LARGEST_VALUE = 256 * 1024
"""Bytes to which a value may grow by local changes."""
LARGEST_WIRE = 768 * 1024
"""Bytes that are read: values that grew on both sides of a partition may be larger together than either."""

_Number = Annotated[int, msgspec.Meta(ge=1, le=LARGEST_COUNT)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_COUNT)]
_Tick = Annotated[int, msgspec.Meta(ge=0, le=LARGEST_TICK)]
_Content = Annotated[bytes, msgspec.Meta(max_length=LARGEST_CONTENT)]
_Note = Annotated[bytes, msgspec.Meta(max_length=LARGEST_NOTE)]
_WireDot = tuple[_Count, _Number]
"""The place of the node in the table, and the number."""


class _Context(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    nodes: list[str]
    seen: list[_Count]
    cloud: list[_WireDot]


class _Set(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    context: _Context
    rows: list[tuple[_Count, _Number, str]]


class _Map(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    context: _Context
    grow: list[tuple[_Count, _Number, str, _Number]]
    count: list[tuple[_Count, _Number, str, _Count, _Count]]
    set: list[tuple[_Count, _Number, str, str]]
    register: list[tuple[_Count, _Number, str, _Count, _Tick, str, _Content]]


_Counts = dict[str, _Number]


def encode(value: Crdt) -> bytes:
    """The wire form of a state or a delta."""
    number = _NUMBERS[type(value)]
    return msgspec.msgpack.encode((VERSION, number, _KINDS[number][1](value)))


def decode(wire: bytes, *, largest: int = LARGEST_WIRE) -> Crdt:
    """Read a state or a delta of at most `largest` bytes.

    Raises:
        SitsError: `invalid_request`: not such a form, of another version, of an unknown kind, too large, or against its rules.
    """
    if len(wire) > largest:
        raise _refused(f"{len(wire)} bytes, more than {largest}")
    try:
        version, number, body = _ENVELOPE.decode(wire)
        if version != VERSION:
            raise _refused(f"it is of version {version}; this SITS reads version {VERSION}")
        if number not in _KINDS:
            raise _refused(f"kind {number} is not known to this SITS")
        value: Crdt = _KINDS[number][2](body)
    except (ValueError, RecursionError) as error:
        raise _refused(str(error)) from error
    return value


def merge(one: Crdt, other: Crdt) -> Crdt:
    """The join of two values of one kind.

    Raises:
        SitsError: `invalid_request`, they are of two kinds.
    """
    if type(one) is not type(other):
        raise SitsError(Code.INVALID_REQUEST, f"a {type(one).__name__} and a {type(other).__name__} have no join")
    joined: Crdt = one.merge(other)  # type: ignore[arg-type]
    return joined


def kind_of(kind: type[object]) -> int:
    """The number of a kind on the wire."""
    return _NUMBERS[kind]


def latest_stamp(value: Crdt) -> Stamp | None:
    """The latest hybrid stamp in a value, None when it has none."""
    if isinstance(value, LWWRegister):
        return value.stamp
    return max(value.stamps(), default=None) if isinstance(value, ORMap) else None


def _refused(why: str) -> SitsError:
    return SitsError(Code.INVALID_REQUEST, f"not a replicated value that can be used: {why}")


def _counts_out(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items()))


def _counts_in(counts: _Counts) -> dict[str, int]:
    for node in counts:
        check_name("node", node)
    return counts


def _pn_in(body: msgspec.Raw) -> PNCounter:
    up, down = _PN.decode(body)
    return PNCounter(_counts_in(up), _counts_in(down))


def _register_out(value: LWWRegister) -> tuple[Any, ...] | None:
    stamp = value.stamp
    return None if stamp is None else (stamp.wall, stamp.count, stamp.node, value.content)


def _register_in(body: msgspec.Raw) -> LWWRegister:
    parts = _REGISTER.decode(body)
    if parts is None:
        return LWWRegister()
    wall, count, node, content = parts
    check_name("node", node)
    return LWWRegister(content, Stamp(wall, count, node))


def _round_out(value: Round) -> tuple[int, dict[str, bytes]]:
    return value.number, dict(sorted(value.facts.items()))


def _round_in(body: msgspec.Raw) -> Round:
    number, facts = _ROUND.decode(body)
    if facts and not number:
        raise ValueError("facts before the first round")
    for name in facts:
        check_name("fact", name)
    return Round(number, facts)


def _context_out(context: Context) -> tuple[_Context, dict[str, int]]:
    nodes = sorted(context.seen.keys() | {node for node, _ in context.cloud})
    place = {node: index for index, node in enumerate(nodes)}
    seen = [context.seen.get(node, 0) for node in nodes]
    return _Context(nodes, seen, [(place[node], number) for node, number in sorted(context.cloud)]), place


def _context_in(wire: _Context) -> Context:
    if len(wire.nodes) != len(wire.seen) or len(set(wire.nodes)) != len(wire.nodes):
        raise ValueError("the table of nodes and what was seen of them do not match")
    for node in wire.nodes:
        check_name("node", node)
    seen = {node: count for node, count in zip(wire.nodes, wire.seen, strict=True) if count}
    return Context(seen).merge(Context(cloud=frozenset(_dot(wire, index, number) for index, number in wire.cloud)))


def _dot(wire: _Context, index: int, number: int) -> Dot:
    if index >= len(wire.nodes):
        raise ValueError(f"there is no node {index} in the table")
    return wire.nodes[index], number


def _row_in(rows: dict[Dot, tuple[K, F]], context: Context, dot: Dot, key: K, fragment: F) -> None:
    if dot in rows:
        raise ValueError("two rows have one dot")
    if dot not in context:
        raise ValueError("a row's dot is not in the context")
    rows[dot] = (key, fragment)


def _set_out(value: ORSet) -> _Set:
    context, place = _context_out(value.kernel.context)
    return _Set(context, sorted((place[node], number, key) for (node, number), (key, _) in value.kernel.rows.items()))


def _set_in(body: msgspec.Raw) -> ORSet:
    wire = _SET.decode(body)
    context = _context_in(wire.context)
    rows: dict[Dot, tuple[str, None]] = {}
    for index, number, element in wire.rows:
        check_name("element", element)
        _row_in(rows, context, _dot(wire.context, index, number), element, None)
    return ORSet(kernel_of(rows, context))


def _map_out(value: ORMap) -> _Map:
    context, place = _context_out(value.kernel.context)
    wire = _Map(context, [], [], [], [])
    for (node, number), ((kind, name), fragment) in sorted(value.kernel.rows.items(), key=lambda item: item[0]):
        head = (place[node], number, name)
        if isinstance(fragment, int):
            wire.grow.append((*head, fragment))
        elif isinstance(fragment, str):
            wire.set.append((*head, fragment))
        elif isinstance(fragment[0], Stamp):
            stamp = fragment[0]
            wire.register.append((*head, stamp.wall, stamp.count, stamp.node, fragment[1]))
        else:
            assert kind is Kind.COUNT
            wire.count.append((*head, *fragment))
    return wire


def _map_in(body: msgspec.Raw) -> ORMap:
    wire = _MAP.decode(body)
    context = _context_in(wire.context)
    rows: dict[Dot, tuple[Key, Fragment]] = {}

    def row(index: int, number: int, kind: Kind, name: str, fragment: Fragment) -> None:
        check_name("key", name)
        _row_in(rows, context, _dot(wire.context, index, number), (kind, name), fragment)

    for index, number, name, total in wire.grow:
        row(index, number, Kind.GROW, name, total)
    for index, number, name, up, down in wire.count:
        row(index, number, Kind.COUNT, name, (up, down))
    for index, number, name, element in wire.set:
        check_name("element", element)
        row(index, number, Kind.SET, name, element)
    for index, number, name, wall, tick, node, content in wire.register:
        check_name("node", node)
        row(index, number, Kind.REGISTER, name, (Stamp(wall, tick, node), content))
    return ORMap(kernel_of(rows, context))


_ENVELOPE = msgspec.msgpack.Decoder(tuple[int, int, msgspec.Raw])
_COUNTS = msgspec.msgpack.Decoder(_Counts)
_PN = msgspec.msgpack.Decoder(tuple[_Counts, _Counts])
_REGISTER = msgspec.msgpack.Decoder(tuple[_Count, _Tick, str, _Content] | None)
_SET = msgspec.msgpack.Decoder(_Set)
_MAP = msgspec.msgpack.Decoder(_Map)
_ROUND = msgspec.msgpack.Decoder(tuple[_Count, dict[str, _Note]])

_KINDS: dict[int, tuple[type[Crdt], Callable[[Any], Any], Callable[[msgspec.Raw], Crdt]]] = {
    1: (GCounter, lambda value: _counts_out(value.counts), lambda body: GCounter(_counts_in(_COUNTS.decode(body)))),
    2: (PNCounter, lambda value: (_counts_out(value.up), _counts_out(value.down)), _pn_in),
    3: (ORSet, _set_out, _set_in),
    4: (LWWRegister, _register_out, _register_in),
    5: (ORMap, _map_out, _map_in),
    6: (Round, _round_out, _round_in),
}
_NUMBERS: dict[type[object], int] = {kind: number for number, (kind, _, _) in _KINDS.items()}
