"""W3C trace context and request ids."""

from __future__ import annotations

import random
import uuid

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.observe.trace import Trace, clean_state, request_id, trace

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"


def bits() -> random.Random:
    return random.Random(7)


def through(header: bytes | None, state: bytes | None = None) -> Trace:
    return trace(header, state, bits().getrandbits)


VALID = {
    "sampled": (f"00-{TRACE}-{PARENT}-01", 1),
    "not sampled": (f"00-{TRACE}-{PARENT}-00", 0),
    "random flag kept": (f"00-{TRACE}-{PARENT}-03", 3),
    "unknown flags dropped": (f"00-{TRACE}-{PARENT}-fd", 1),
    "future version": (f"cc-{TRACE}-{PARENT}-01", 1),
    "future version with more": (f"cc-{TRACE}-{PARENT}-01-what-the-future-holds", 1),
    "future version, only sampled is known": (f"01-{TRACE}-{PARENT}-03", 1),
}


@pytest.mark.parametrize(("header", "flags"), VALID.values(), ids=VALID.keys())
def test_a_valid_traceparent_is_continued_with_our_span(header: str, flags: int) -> None:
    span = f"{bits().getrandbits(64):016x}"
    found = through(header.encode())
    assert found == Trace(TRACE, span, PARENT, flags, None)
    assert found.traceparent() == f"00-{TRACE}-{span}-{flags:02x}".encode()
    assert found.sampled is bool(flags & 1)


INVALID = {
    "empty": "",
    "version ff": f"ff-{TRACE}-{PARENT}-01",
    "version one digit": f"0-{TRACE}-{PARENT}-01",
    "version not hex": f".0-{TRACE}-{PARENT}-01",
    "version 00 with more": f"00-{TRACE}-{PARENT}-01-more",
    "version 00 with a trailing dash": f"00-{TRACE}-{PARENT}-01-",
    "future version with more but no dash": f"cc-{TRACE}-{PARENT}-01.more",
    "trace all zero": f"00-{'0' * 32}-{PARENT}-01",
    "parent all zero": f"00-{TRACE}-{'0' * 16}-01",
    "upper-case trace": f"00-{TRACE.upper()}-{PARENT}-01",
    "upper-case parent": f"00-{TRACE}-{PARENT.upper()}-01",
    "upper-case flags": f"00-{TRACE}-{PARENT}-0A",
    "trace too short": f"00-{TRACE[1:]}-{PARENT}-01",
    "trace too long": f"00-{TRACE}0-{PARENT}-01",
    "parent too short": f"00-{TRACE}-{PARENT[1:]}-01",
    "parent too long": f"00-{TRACE}-{PARENT}0-01",
    "flags too long": f"00-{TRACE}-{PARENT}-001",
    "flags missing": f"00-{TRACE}-{PARENT}",
    "illegal character": f"00-{TRACE[1:]}.-{PARENT}-01",
    "two headers joined": f"00-{TRACE}-{PARENT}-01, 00-{TRACE}-{PARENT}-01",
    "trailing newline": f"00-{TRACE}-{PARENT}-01\n",
}


@pytest.mark.parametrize("header", INVALID.values(), ids=INVALID.keys())
def test_an_invalid_traceparent_starts_a_new_trace_and_drops_the_state(header: str) -> None:
    found = through(header.encode(), b"foo=1")
    source = bits()
    span, fresh = source.getrandbits(64), source.getrandbits(128)
    assert found == Trace(f"{fresh:032x}", f"{span:016x}", None, 1, None)


def test_ids_are_never_all_zero_and_sampling_is_the_callers_choice() -> None:
    assert trace(None, None, lambda size: 0, sample=False) == Trace(f"{1:032x}", f"{1:016x}", None, 0, None)


@settings(max_examples=100)
@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.integers(0, 3))
def test_what_we_send_is_what_we_would_accept(trace_id: int, span: int, flags: int) -> None:
    sent = Trace(f"{trace_id:032x}", f"{span:016x}", None, flags).traceparent()
    back = through(sent)
    assert (back.trace_id, back.parent_id, back.flags) == (f"{trace_id:032x}", f"{span:016x}", flags)


STATES = {
    "one": (b"foo=1", b"foo=1"),
    "several, spaces around": (b"foo=1 , \tbar=2", b"foo=1,bar=2"),
    "empty members": (b"foo=1,,bar=2,", b"foo=1,bar=2"),
    "tenant": (b"1a@vendor=x y", b"1a@vendor=x y"),
    "every key character": (b"a0_-*/=!", b"a0_-*/=!"),
    "32 members": (b",".join(b"k%d=v" % n for n in range(32)), b",".join(b"k%d=v" % n for n in range(32))),
    "33 members": (b",".join(b"k%d=v" % n for n in range(33)), None),
    "key of 256": (b"a" * 256 + b"=1", b"a" * 256 + b"=1"),
    "key of 257": (b"a" * 257 + b"=1", None),
    "system of 14": (b"t@" + b"v" * 14 + b"=1", b"t@" + b"v" * 14 + b"=1"),
    "system of 15": (b"t@" + b"v" * 15 + b"=1", None),
    "value of 256": (b"a=" + b"v" * 256, b"a=" + b"v" * 256),
    "value of 257": (b"a=" + b"v" * 257, None),
    "duplicate keys": (b"foo=1,foo=2", None),
    "upper-case key": (b"Foo=1", None),
    "simple key that begins with a digit": (b"1foo=1", None),
    "no value": (b"foo=", None),
    "no equals sign": (b"foo", None),
    "two equals signs": (b"foo=1=2", None),
    "not ASCII": ("foo=人".encode(), None),
    "nothing": (b" , ", None),
}


@pytest.mark.parametrize(("given", "kept"), STATES.values(), ids=STATES.keys())
def test_tracestate_is_passed_on_when_well_formed(given: bytes, kept: bytes | None) -> None:
    assert clean_state(given) == kept
    assert through(f"00-{TRACE}-{PARENT}-01".encode(), given).state == kept


GIVEN = {
    "plain": (b"req-1", True),
    "128 characters": (b"x" * 128, True),
    "129 characters": (b"x" * 129, False),
    "empty": (b"", False),
    "space": (b"a b", False),
    "newline at the end": (b"abc\n", False),
    "control": (b"a\x1bb", False),
    "Chinese": ("请求".encode(), False),
}


@pytest.mark.parametrize(("header", "kept"), GIVEN.values(), ids=GIVEN.keys())
def test_a_clients_request_id_is_kept_only_when_safe(header: bytes, kept: bool) -> None:
    made = request_id(header, 1.0, bits().getrandbits)
    assert (made == header.decode()) is kept


@settings(max_examples=100)
@given(st.floats(0, 2**40), st.integers(0, 2**74 - 1))
def test_a_new_request_id_is_a_uuid_version_7_of_that_millisecond(now: float, chance: int) -> None:
    made = request_id(None, now, lambda size: chance)
    parsed = uuid.UUID(made)
    assert (made, parsed.version, parsed.variant) == (parsed.hex, 7, uuid.RFC_4122)
    assert parsed.int >> 80 == int(now * 1000) & (2**48 - 1)


def test_new_request_ids_sort_by_time() -> None:
    source = bits()
    made = [request_id(None, 1_700_000_000 + n / 1000, source.getrandbits) for n in range(1000)]
    assert made == sorted(made)
