"""Hostile bytes made from honest ones: real requests, mutated. Everything follows from one random generator, so that a case
can be made again from its number.

    Mutator(random.Random("7"), SEEDS).case()
"""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

HUGE = (b"0", b"-1", b"1e999", b"18446744073709551616", b"9" * 400, b"1" + b"0" * 5000, b"0x7fffffff", b"NaN", b"1.5", b"-0")
"""What a number may turn into."""
SNIPPETS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\x00",
    b"\x00" * 64,
    b" ",
    b"\t",
    b":",
    b";",
    b",",
    b'"',
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"{",
    b"}",
    b"[" * 2000,
    b"]",
    b'{"a":' * 2000,
    b"null",
    b"true",
    b"%00",
    b"%2e%2e/",
    b"../",
    b"?",
    b"#",
    b"\xff\xfe",
    b"\xc0\x80",
    b"\xed\xa0\x80",
    "你好".encode(),
    "😀".encode(),
    b"A" * 5000,
    b"data: [DONE]\n\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x16\x03\x01",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
)
FIELDS = (
    b"Content-Length: 0",
    b"Content-Length: 5",
    b"Content-Length: +5",
    b"Content-Length: 99999999999",
    b"Content-Length: " + b"9" * 30,
    b"Content-Length : 5",
    b"Content-Length: 5, 5",
    b"Content-Length: 0x5",
    b"Content-Length:",
    b"Content-Length: " + b"0" * 5000 + b"5",
    b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: xchunked",
    b"Transfer-Encoding : chunked",
    b"Transfer-Encoding:\x0bchunked",
    b"Transfer-Encoding: chunked, identity",
    b"Transfer-Encoding: gzip, chunked",
    b"Transfer-Encoding:",
    b"X: a\r\n Transfer-Encoding: chunked",
    b"Connection: close",
    b"Connection: keep-alive",
    b"Connection: Upgrade\r\nUpgrade: h2c",
    b"Connection: Upgrade\r\nUpgrade: websocket",
    b"Connection: Content-Length",
    b"Expect: 100-continue",
    b"Expect: 500",
    b"Host: evil",
    b"Host: ",
    b"Host: a b",
    b"Host: \xff",
    b"Content-Encoding: gzip",
    b"Content-Type: multipart/form-data",
    b"Content-Type: \xff",
    b"Authorization: Bearer \xff\xfe",
    b"Authorization: Basic x",
    b"Authorization: " + b"A" * 9000,
    b"X-Api-Key: ",
    b"X-Request-Id: a\tb",
    b"X-Request-Id: " + b"x" * 200,
    b"traceparent: 00-00000000000000000000000000000000-0000000000000000-00",
    b"traceparent: ff-\xff",
    b"tracestate: ===,,,=",
    b"anthropic-version: \xff",
    b"anthropic-beta: " + b"a," * 200,
    b"idempotency-key: \x80",
    b"x-sits-fallback: off",
    b"Accept: application/openmetrics-text;q=x",
    b"Accept: \xff",
    b"Cookie: " + b"a=b; " * 50,
    b"Trailer: Content-Length",
    b"TE: trailers",
    b"X-HTTP-Method-Override: DELETE",
    b"X-Original-URL: /v1/admin/status",
    b"Range: bytes=0-",
    b"A: b\r\nA: c\r\nA: d",
    b"\x00: x",
    b": x",
    b"x",
)
METHODS = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"CONNECT", b"BREW", b"get", b"")
TARGETS = (
    b"*",
    b"/",
    b"//",
    b"/v1",
    b"/v1/models/",
    b"/v1/models/%ff",
    b"/v1/models/..%2f",
    b"/v1/admin/records/%00",
    b"/v1/admin/records?limit=-1",
    b"/v1/admin/records?limit=999999999999",
    b"/v1/admin/records?limit=%C2%B2",
    b"/v1/admin/status?x=" + b"a" * 3000,
    b"/metrics",
    b"/healthz",
    b"http://x/v1/models",
    b"http://x",
    b"/v1/chat/completions?a=b",
    b"/v1/chat/completions/",
    b"/" + b"a" * 9000,
    b"/\xff",
    b"/v1/models#x",
)
VERSIONS = (b"HTTP/1.0", b"HTTP/1.1", b"HTTP/1.2", b"HTTP/2.0", b"HTTP/0.9", b"HTTP/11", b"http/1.1", b"")


VALUES: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 0.5, 1e308, 2**63, "", " ", "a", "你好", "\ud83d\ude00", "\x00", "\u202e", "a" * 5000,
    [], {}, [None], [[]], {"": None}, {"type": "text"}, {"type": "text", "text": "你好"}, [{"role": "user", "content": "hi"}],
)  # fmt: skip
"""What a place in a body may turn into: valid JSON, of the right type or not."""


def request(method: str, path: str, body: Any = None, *fields: str) -> bytes:
    """A request as an SDK sends it."""
    data = b"" if body is None else json.dumps(body, ensure_ascii=False).encode()
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1:8080", "User-Agent: hostile/1", "Accept: application/json", *fields]
    if body is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"]
    return "\r\n".join([*lines, "", ""]).encode() + data


def chunked(method: str, path: str, body: Any, size: int = 50) -> bytes:
    """The same, in chunks."""
    data = json.dumps(body, ensure_ascii=False).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
    pieces = [data[i : i + size] for i in range(0, len(data), size)]
    return head.encode() + b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a body: what holds it, and its key or index."""
    if isinstance(value, dict | list):
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            yield value, key
            yield from _places(one)


class Mutator:
    """Makes cases of seeds."""

    def __init__(self, chance: random.Random, seeds: Sequence[bytes]) -> None:
        self._chance = chance
        self._seeds = seeds
        self._anywhere = (self._flip, self._byte, self._delete, self._duplicate, self._insert, self._number, self._number)
        self._operations: tuple[Callable[[bytes], bytes], ...] = (
            self._flip,
            self._delete,
            self._duplicate,
            self._splice,
            self._truncate,
            self._insert,
            self._insert,
            self._number,
            self._number,
            self._field,
            self._field,
            self._field,
            self._method,
            self._target,
            self._version,
            self._byte,
            self._swap_lines,
            self._ends,
        )

    def case(self) -> bytes:
        """One hostile input: one seed, or several in a row, mutated up to five times; or only the body of one, by its bytes
        or by its values."""
        chance = self._chance
        kind = chance.random()
        if kind < 0.35:
            return self._by_value(chance.choice(self._seeds))
        if kind < 0.6:
            head, mark, body = chance.choice(self._seeds).partition(b"\r\n\r\n")
            for _ in range(chance.randint(1, 3)):
                body = chance.choice(self._anywhere)(body)
            return self._framed(head + mark + body)
        wire = b"".join(chance.choice(self._seeds) for _ in range(1 if chance.random() < 0.8 else chance.randint(2, 4)))
        for _ in range(chance.randint(1, 5)):
            wire = chance.choice(self._operations)(wire)
        return self._framed(wire) if chance.random() < 0.5 else wire

    def _by_value(self, wire: bytes) -> bytes:
        """Valid JSON still, with one or two of its values others, gone or twice: what a wrong client sends."""
        head, mark, body = wire.partition(b"\r\n\r\n")
        if not body.startswith(b"{"):  # no body, or one in chunks
            return self._field(wire)
        value = json.loads(body)
        for _ in range(self._chance.randint(1, 2)):
            self._change(value)
        return self._framed(head + mark + json.dumps(value, ensure_ascii=self._chance.random() < 0.5).encode("utf-8", "replace"))

    def _change(self, value: Any) -> None:
        """One place of an object or array, in place."""
        places = list(_places(value))
        if not places:
            return
        holder, key = self._chance.choice(places)
        way = self._chance.randrange(6)
        if way == 0:
            del holder[key]
        elif way == 1 and isinstance(holder, list):
            holder.extend(copy.deepcopy(holder[key]) for _ in range(self._chance.choice((1, 3, 300))))
        elif way == 1:
            holder[self._chance.choice(("x", "", "你好", "stream", "n", "tools", "stop"))] = copy.deepcopy(holder[key])
        else:
            holder[key] = copy.deepcopy(self._chance.choice(VALUES))  # a later change must not reach the others

    def _framed(self, wire: bytes) -> bytes:
        """With a Content-Length that fits, so that what is wrong with the body is met at all."""
        head, mark, body = wire.partition(b"\r\n\r\n")
        return re.sub(rb"(?<=\r\nContent-Length: )[^\r]*", b"%d" % len(body), head, count=1) + mark + body

    def cut(self, wire: bytes) -> list[bytes]:
        """The pieces in which it is sent."""
        if self._chance.random() < 0.7:
            return [wire]
        edges = sorted(self._at(wire) for _ in range(self._chance.randint(1, 4)))
        return [wire[a:b] for a, b in zip([0, *edges], [*edges, len(wire)], strict=True)]

    def _at(self, wire: bytes) -> int:
        return self._chance.randint(0, len(wire))

    def _span(self, wire: bytes) -> tuple[int, int]:
        start = self._at(wire)
        return start, min(len(wire), start + self._chance.choice((1, 2, 5, 20, 200)))

    def _flip(self, wire: bytes) -> bytes:
        if not wire:
            return wire
        out = bytearray(wire)
        for _ in range(self._chance.choice((1, 1, 3, 30))):
            out[self._chance.randrange(len(out))] ^= 1 << self._chance.randrange(8)
        return bytes(out)

    def _byte(self, wire: bytes) -> bytes:
        at = self._at(wire)
        return wire[:at] + bytes([self._chance.randrange(256)]) + wire[at + 1 :]

    def _delete(self, wire: bytes) -> bytes:
        start, end = self._span(wire)
        return wire[:start] + wire[end:]

    def _duplicate(self, wire: bytes) -> bytes:
        start, end = self._span(wire)
        return wire[:end] + wire[start:end] * self._chance.choice((1, 1, 2, 50)) + wire[end:]

    def _splice(self, wire: bytes) -> bytes:
        other = self._chance.choice(self._seeds)
        return wire[: self._at(wire)] + other[self._at(other) :]

    def _truncate(self, wire: bytes) -> bytes:
        return wire[: self._at(wire)]

    def _insert(self, wire: bytes) -> bytes:
        at = self._at(wire)
        return wire[:at] + self._chance.choice(SNIPPETS) + wire[at:]

    def _number(self, wire: bytes) -> bytes:
        found = list(re.finditer(rb"-?\d+(?:\.\d+)?", wire))
        if not found:
            return wire
        one = self._chance.choice(found)
        return wire[: one.start()] + self._chance.choice(HUGE) + wire[one.end() :]

    def _field(self, wire: bytes) -> bytes:
        lines = [one.end() for one in re.finditer(rb"\r\n", wire.partition(b"\r\n\r\n")[0] + b"\r\n")]
        at = self._chance.choice(lines)
        return wire[:at] + self._chance.choice(FIELDS) + b"\r\n" + wire[at:]

    def _method(self, wire: bytes) -> bytes:
        return re.sub(rb"^[^ ]*", lambda _: self._chance.choice(METHODS), wire, count=1)

    def _target(self, wire: bytes) -> bytes:
        return re.sub(rb"^([^ ]*) [^ ]*", lambda one: one[1] + b" " + self._chance.choice(TARGETS), wire, count=1)

    def _version(self, wire: bytes) -> bytes:
        return re.sub(rb"HTTP/\d\.\d", lambda _: self._chance.choice(VERSIONS), wire, count=1)

    def _swap_lines(self, wire: bytes) -> bytes:
        lines = wire.split(b"\r\n")
        a, b = self._chance.randrange(len(lines)), self._chance.randrange(len(lines))
        lines[a], lines[b] = lines[b], lines[a]
        return b"\r\n".join(lines)

    def _ends(self, wire: bytes) -> bytes:
        return wire.replace(b"\r\n", self._chance.choice((b"\n", b"\r", b"\r\r\n", b"\n\n")), self._chance.choice((1, 2, -1)))
