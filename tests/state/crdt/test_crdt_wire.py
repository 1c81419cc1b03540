"""What comes off the wire is a value or is refused with a reason; it never crashes and never grows without bound."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from crdt_worlds import World, worlds
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.state.crdt import GCounter, ORMap, ORSet, decode, encode
from sits.state.crdt.wire import LARGEST_WIRE


def packed(*parts: Any) -> bytes:
    return msgspec.msgpack.encode(parts)


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        pytest.param(b"", "truncated", id="nothing"),
        pytest.param(packed(2, 1, {}), "it is of version 2; this SITS reads version 1", id="a later version"),
        pytest.param(packed(1, 99, {}), "kind 99 is not known to this SITS", id="an unknown kind"),
        pytest.param(packed(1, 1, {"a": 0}), ">= 1", id="a count of zero"),
        pytest.param(packed(1, 1, {"a": 2**63}), "<= 9223372036854775807", id="a count too high"),
        pytest.param(packed(1, 1, {"": 1}), "node has 0 bytes", id="a node without a name"),
        pytest.param(packed(1, 1, {"a" * 201: 1}), "node has 201 bytes", id="a node's name too long"),
        pytest.param(packed(1, 2, [{}]), "length 2", id="half a PN-counter"),
        pytest.param(packed(1, 3, [[["a"], [], []], []]), "table of nodes", id="a table that does not match"),
        pytest.param(packed(1, 3, [[["a", "a"], [1, 2], []], []]), "table of nodes", id="a node twice in the table"),
        pytest.param(packed(1, 3, [[["a"], [1], []], [[1, 1, "x"]]]), "no node 1", id="a row of no node"),
        pytest.param(packed(1, 3, [[["a"], [1], [[7, 1]]], []]), "no node 7", id="a cloud of no node"),
        pytest.param(packed(1, 3, [[["a"], [1], []], [[0, 2, "x"]]]), "not in the context", id="a row that was never seen"),
        pytest.param(packed(1, 3, [[["a"], [1], []], [[0, 1, "x"], [0, 1, "y"]]]), "one dot", id="two rows of one dot"),
        pytest.param(packed(1, 3, [[["a"], [1], []], [[0, 1, ""]]]), "element has 0 bytes", id="an empty element"),
        pytest.param(packed(1, 3, [[["a"], [1], []], [], 7]), "length 2", id="more than there should be"),
        pytest.param(packed(1, 4, [1, 0, "a"]), "length 4", id="a register without content"),
        pytest.param(packed(1, 4, [1, -1, "a", b""]), ">= 0", id="a stamp below zero"),
        pytest.param(packed(1, 4, [1, 0, "a", b"x" * 65_537]), "<= 65536", id="too much for a register"),
        pytest.param(
            packed(1, 5, [[["a"], [1], []], [[0, 1, "k", 1]], [], [[0, 1, "k", "x"]], []]), "one dot", id="a dot of two keys"
        ),
        pytest.param(packed(1, 5, [[["a"], [1], []], [[0, 1, "", 1]], [], [], []]), "key has 0 bytes", id="an empty key"),
        pytest.param(b"\x93\x01\x03" + b"\x91" * 100_000, "recursion", id="nested without end"),
        pytest.param(b"\x93\x01\x01\x81\xa2\xff\xfe\x01", "UTF-8", id="no UTF-8"),
        pytest.param(b"x" * (LARGEST_WIRE + 1), "more than 786432", id="too large"),
        pytest.param(b"\x93\x01\x01\xdf\xff\xff\xff\xff", "truncated", id="a claim of four billion entries"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_reason(wire: bytes, said: str) -> None:
    with pytest.raises(SitsError, match=said) as refused:
        decode(wire)
    assert refused.value.code is Code.INVALID_REQUEST


@settings(max_examples=100)
@given(
    st.one_of(
        st.binary(max_size=80),
        st.tuples(st.integers(1, 5), st.binary(max_size=60)).map(lambda p: b"\x93\x01" + bytes([p[0]]) + p[1]),
    )
)
def test_garbage_is_a_value_or_refused(wire: bytes) -> None:
    value_or_refusal(wire)


@settings(max_examples=100)
@given(worlds(), st.data())
def test_a_damaged_value_is_a_value_or_refused(world: World, data: st.DataObject) -> None:
    wire = bytearray(encode(data.draw(st.sampled_from(world.pool))))
    for _ in range(data.draw(st.integers(1, 3))):
        wire[data.draw(st.integers(0, len(wire) - 1))] = data.draw(st.integers(0, 255))
    value_or_refusal(bytes(wire))


def value_or_refusal(wire: bytes) -> None:
    try:
        value = decode(wire)
    except SitsError as error:
        refusal = error.code
    else:
        refusal = Code.INVALID_REQUEST
        assert decode(encode(value)) == value
    assert refusal is Code.INVALID_REQUEST


def test_a_damaged_context_that_covers_all_numbers_costs_no_time() -> None:
    """A context can claim 2**63 dots in nine bytes; nothing may walk through them."""
    liar = decode(packed(1, 3, [[["a"], [2**63 - 1], []], []]))
    held = ORSet().merge(ORSet().add("x", "a"))
    assert isinstance(liar, ORSet)
    assert held.merge(liar).elements == set()


@pytest.mark.parametrize(
    ("value", "most"),
    [
        pytest.param(GCounter({f"gw-{n}~6f2c9a": 10**6 for n in range(3)}), 60, id="a counter of three nodes"),
        pytest.param(ORSet().add("session-1", "gw-1~6f2c9a"), 40, id="a set of one"),
        pytest.param(ORMap().increment("requests", "gw-1~6f2c9a"), 45, id="a map of one counter"),
    ],
)
def test_small_values_are_small_on_the_wire(value: Any, most: int) -> None:
    assert len(encode(value)) <= most
