"""What names and sizes a bus takes; every adapter asks here before it asks its server."""

from __future__ import annotations

import re

from sits.inner.errors import Code, SitsError
from sits.ports.bus.base import LARGEST_PAYLOAD, LONGEST_ID, LONGEST_SUBJECT

_WORDS = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*")
_VISIBLE = re.compile(r"[\x21-\x7e]*")
_NAMESPACE = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")


def check_name(what: str, name: str) -> None:
    """Raise `invalid_request` unless `name` is words joined by dots, short enough. `what` is what to call it: subject, key."""
    if len(name) > LONGEST_SUBJECT or _WORDS.fullmatch(name) is None:
        raise SitsError(
            Code.INVALID_REQUEST,
            f"{what} {name[:80]!r}: wanted words of a-z A-Z 0-9 _ - joined by dots, at most {LONGEST_SUBJECT} bytes",
            param=what,
        )


def check_prefix(prefix: str) -> None:
    """Raise `invalid_request` unless `prefix` is empty or could be a key."""
    if prefix:
        check_name("prefix", prefix)


def check_payload(what: str, payload: bytes) -> None:
    """Raise `request_too_large` when `payload` is larger than every bus takes."""
    if len(payload) > LARGEST_PAYLOAD:
        raise SitsError(Code.TOO_LARGE, f"{what} of {len(payload)} bytes: at most {LARGEST_PAYLOAD} fit", param=what)


def check_id(id: str) -> None:
    """Raise `invalid_request` unless `id` is short visible ASCII."""
    if len(id) > LONGEST_ID or _VISIBLE.fullmatch(id) is None:
        raise SitsError(Code.INVALID_REQUEST, f"id {id[:80]!r}: wanted at most {LONGEST_ID} visible ASCII characters", param="id")


def check_namespace(namespace: str) -> None:
    """Raise `invalid_request` unless `namespace` can begin the names of streams, buckets and topics."""
    if _NAMESPACE.fullmatch(namespace) is None:
        raise SitsError(
            Code.INVALID_REQUEST, f"namespace {namespace[:80]!r}: wanted a-z 0-9 -, at most 40 characters", param="namespace"
        )


def covers(prefix: str, key: str) -> bool:
    """Whether a watch of `prefix` shows `key`."""
    return not prefix or key == prefix or key.startswith(prefix + ".")
