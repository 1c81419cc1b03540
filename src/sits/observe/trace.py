"""Trace context (W3C Trace Context, level 1 and the random flag of level 2) and request ids.

An exchange has one span of ours between the client's and the target's: the inbound `traceparent` gives trace and parent,
the outbound one carries our span id. Randomness and time are passed in: `bits` is `random.Random().getrandbits` of a
generator made in this process (after any fork), 60 ns where `os.urandom` takes a system call.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec

Bits = Callable[[int], int]

_TRACEPARENT = re.compile(rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_NO_TRACE = b"0" * 32
_NO_SPAN = b"0" * 16
_KNOWN_FLAGS = 0x03
"""Sampled and random; section 3.2.2.5 wants every other bit to be sent as zero."""

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
# Section 3.3.1.3: a simple key, or tenant@system; a value of printable ASCII without comma and equals sign.
_KEY = rb"(?:[a-z][a-z0-9_\-*/]{0,255}|[a-z0-9][a-z0-9_\-*/]{0,240}@[a-z][a-z0-9_\-*/]{0,13})"
_MEMBER = re.compile(rb"(" + _KEY + rb")=([\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e])")


class Trace(msgspec.Struct, frozen=True, gc=False):
    """Our span of a trace; ids are lower-case hex."""

    trace_id: str
    span_id: str
    parent_id: str | None = None
    """The caller's span; None when the trace starts here."""
    flags: int = 1
    state: bytes | None = None
    """The caller's `tracestate`, passed on as it came when it is well formed."""

    @property
    def sampled(self) -> bool:
        return bool(self.flags & 1)

    def traceparent(self) -> bytes:
        """The outbound `traceparent`: same trace, our span as the parent, version 00 whatever came in."""
        return b"00-%b-%b-%02x" % (self.trace_id.encode(), self.span_id.encode(), self.flags)


def trace(traceparent: bytes | None, tracestate: bytes | None, bits: Bits, *, sample: bool = True) -> Trace:
    """Continue the caller's trace, or start one (marked sampled if `sample`) when there is none or its header is not valid."""
    span_id = f"{bits(64) or 1:016x}"
    if traceparent is not None:
        found = _TRACEPARENT.fullmatch(traceparent)
        if found is not None:
            version, trace_id, parent, flags, more = found.groups()
            if version != b"ff" and trace_id != _NO_TRACE and parent != _NO_SPAN and (more is None or version != b"00"):
                return Trace(
                    trace_id.decode(),
                    span_id,
                    parent.decode(),
                    int(flags, 16) & _KNOWN_FLAGS if version == b"00" else int(flags, 16) & 1,
                    None if tracestate is None else clean_state(tracestate),
                )
    return Trace(f"{bits(128) or 1:032x}", span_id, None, 1 if sample else 0)


def clean_state(tracestate: bytes) -> bytes | None:
    """The header with its empty members left out, or None when it is not well formed (the trace goes on without it)."""
    members = [member for part in tracestate.split(b",") if (member := part.strip(b" \t"))]
    if not members or len(members) > 32:
        return None
    keys = set()
    for member in members:
        found = _MEMBER.fullmatch(member)
        if found is None or found[1] in keys:
            return None
        keys.add(found[1])
    return b",".join(members)


def request_id(given: bytes | None, now: float, bits: Bits) -> str:
    """The client's own id when it is 1 to 128 visible ASCII characters, else a new one: a UUIDv7 in 32 hex digits, so ids sort
    by time. `now` is in unix seconds."""
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given.decode("ascii")
    random = bits(74)
    # RFC 9562 5.7: 48 bits of milliseconds, version 7, 12 random bits, variant 10, 62 random bits.
    return f"{int(now * 1000) & 0xFFFFFFFFFFFF:012x}7{random >> 62:03x}{0x8000000000000000 | random & 0x3FFFFFFFFFFFFFFF:016x}"
