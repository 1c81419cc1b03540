"""What every store takes: asked here before an adapter asks its server, so that all refuse alike."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sits.inner.errors import Code, SitsError
from sits.ports.store.base import LARGEST_TOTAL, LARGEST_VALUE, LONGEST_KEY, MOST_KEYS, Add, Change, Put


def encoded(key: str, what: str = "key") -> bytes:
    """The UTF-8 bytes of a key.

    Raises:
        SitsError: `invalid_request`, it is empty, too long, or cannot be kept as text.
    """
    if not key:
        raise _wrong(f"a {what} is empty", what)
    return _text(key, what)


def encoded_keys(keys: Sequence[str]) -> list[bytes]:
    """The UTF-8 bytes of keys to read; the same one may be asked for twice."""
    _few(keys)
    return [encoded(key) for key in keys]


def bounds(prefix: str, after: str) -> tuple[bytes, bytes]:
    """The range of a scan, `start <= key < end`: one bound at each side, so that an index finds both."""
    first, beyond = _text(prefix, "prefix"), _text(after, "after")
    # The next key after `beyond` is the one with a NUL more. No byte of UTF-8 is 0xFF, so the last one can be counted up.
    start = max(first, beyond + b"\0") if beyond else first
    return start, first[:-1] + bytes((first[-1] + 1,)) if first else b"\xff"


def check_limit(limit: int) -> int:
    """How many entries a page may have.

    Raises:
        SitsError: `invalid_request`, it is below 1.
    """
    if limit < 1:
        raise _wrong(f"limit {limit}: wanted 1 or more", "limit")
    return min(limit, MOST_KEYS)


def check_changes(changes: Sequence[Change]) -> list[bytes]:
    """The keys of a commit as bytes.

    Raises:
        SitsError: `invalid_request`, it cannot be kept; `param` is the key at fault.
    """
    _few(changes)
    for change in changes:
        if isinstance(change, Put):
            if len(change.value) > LARGEST_VALUE:
                raise _wrong(f"a value of {len(change.value)} bytes: at most {LARGEST_VALUE} fit", change.key)
            _lasting(change.ttl, change.key)
    return _each_once(change.key for change in changes)


def check_adds(adds: Sequence[Add]) -> list[bytes]:
    """The keys of additions as bytes.

    Raises:
        SitsError: `invalid_request`, they cannot be counted; `param` is the key at fault.
    """
    _few(adds)
    for add in adds:
        if abs(add.amount) > LARGEST_TOTAL:
            raise _wrong(f"an amount of {add.amount}: at most {LARGEST_TOTAL} can be counted", add.key)
        _lasting(add.ttl, add.key)
    return _each_once(add.key for add in adds)


def ceiling(add: Add) -> int:
    """What the sum may not pass."""
    return LARGEST_TOTAL if add.cap is None else max(-1, min(add.cap, LARGEST_TOTAL))


def conflict(key: str, wanted: int, found: int) -> SitsError:
    """What `commit` raises for an `expect` that did not hold."""
    there = f"version {found}" if found else "nothing"
    asked = f"version {wanted}" if wanted else "nothing"
    return SitsError(Code.CONFLICT, f"{key[:80]!r} has {there}, not {asked}", param=key)


def _each_once(keys: Iterable[str]) -> list[bytes]:
    seen: dict[bytes, None] = {}
    for key in keys:
        name = encoded(key)
        if name in seen:
            raise _wrong(f"{key[:80]!r} is named twice", key)
        seen[name] = None
    return list(seen)


def _few(named: Sequence[object]) -> None:
    if len(named) > MOST_KEYS:
        raise _wrong(f"{len(named)} keys in one call: at most {MOST_KEYS}", "keys")


def _lasting(ttl: float | None, key: str) -> None:
    if ttl is not None and not (ttl > 0 and math.isfinite(ttl)):
        raise _wrong(f"a ttl of {ttl} s: wanted more than 0, or None for ever", key)


def _text(text: str, what: str) -> bytes:
    if "\0" in text:
        raise _wrong(f"a {what} holds a NUL", what)
    try:
        data = text.encode()
    except UnicodeEncodeError as exc:
        raise _wrong(f"a {what} is no Unicode text: {exc.reason}", what) from exc
    if len(data) > LONGEST_KEY:
        raise _wrong(f"a {what} of {len(data)} bytes: at most {LONGEST_KEY} fit", what)
    return data


def _wrong(message: str, param: str) -> SitsError:
    return SitsError(Code.INVALID_REQUEST, message, param=param)
