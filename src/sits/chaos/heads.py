"""Heads of HTTP/1.1 messages, read no further than a proxy of faults needs: where one ends, and what is in it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping

LONGEST_HEAD = 64 * 1024
"""Bytes; what is longer is passed on as it is."""
_END = b"\r\n\r\n"


def end_of_head(data: bytes | bytearray) -> int:
    """Where the head at the front of `data` ends; -1 while it is not all there, 0 when this is no head or too long a one."""
    found = data.find(_END)
    if 0 <= found <= LONGEST_HEAD:
        return found + len(_END)
    return -1 if len(data) <= LONGEST_HEAD and found < 0 else 0


def interim(head: bytes) -> bool:
    """Whether it is the head of a 1xx answer, after which the real one follows."""
    return head[:5] == b"HTTP/" and head[9:10] == b"1"


def without(head: bytes, names: Collection[str]) -> bytes:
    """The head without the fields of these names (lower case); folded lines go with the field that they belong to."""
    first, *lines = head.removesuffix(_END).split(b"\r\n")
    kept, dropping = [first], False
    for line in lines:
        if line[:1] not in (b" ", b"\t"):
            dropping = line.partition(b":")[0].strip().lower().decode("latin-1") in names
        if not dropping:
            kept.append(line)
    return b"\r\n".join(kept) + _END


def body_length(head: bytes) -> int | None:
    """Bytes of the body that follows a request's head; None when only its chunks tell."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        name, value = name.strip().lower(), value.strip()
        if name == b"content-length" and value.isdigit():
            return int(value)
        if name == b"transfer-encoding":
            return None
    return 0


def answer(status: int, body: bytes, fields: Mapping[str, str], *, close: bool) -> bytes:
    """A whole answer."""
    named = {"content-type": "application/json", **{name.lower(): value for name, value in fields.items()}}
    named["content-length"] = str(len(body))
    if close:
        named["connection"] = "close"
    lines = [f"HTTP/1.1 {status} Fault", *(f"{name}: {value}" for name, value in named.items())]
    return "\r\n".join(lines).encode("latin-1") + _END + body
