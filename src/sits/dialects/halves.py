"""Where a client's JSON has half of a surrogate pair, which is what JavaScript's `slice` leaves of an emoji that it cuts in two.

msgspec calls it truncated input, or a wrong escape, depending on what follows. Only a body that could not be read is looked at.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sits.inner.errors import Code, SitsError

_HALF = re.compile(
    rb"\\u(?:[dD][89aAbB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F][0-9a-fA-F]{2})"
    rb"|(?<!\\u[dD][89aAbB][0-9a-fA-F]{2}\\u)[dD][c-fC-F][0-9a-fA-F]{2})"
)
_IN_TEXT = re.compile("[\ud800-\udfff]")
_MOST = 1000
"""Places that only look like one; beyond them nobody looks on."""
_BACK = 64
"""Backslashes in a row that are counted; before more, nobody says what it is."""
_LARGEST = 64 * 1024
"""Bytes of a body that is read once more to say in which field it is."""


def half(reason: str, body: bytes) -> SitsError | None:
    """What to tell the client, if this is why `body` could not be read for `reason`."""
    if not ("truncated" in reason or "surrogate" in reason or "hex escape" in reason):
        return None
    for number, found in enumerate(_HALF.finditer(body)):
        at = found.start()
        before = body[max(0, at - _BACK) : at]
        escapes = len(before) - len(before.rstrip(b"\\"))
        if number >= _MOST or escapes == _BACK:
            return None
        if escapes % 2 == 0:
            break  # Else the backslash is itself an escaped one, and what follows is text.
    else:
        return None
    if body.find(b'"', found.end()) < 0:
        return None  # It is cut, and this may be whole where that goes on.
    return SitsError(
        Code.INVALID_REQUEST,
        f"We could not parse the JSON body of your request: half of a surrogate pair ({found[0].decode()}) at byte {at}: "
        "a text that was cut in the middle of an emoji?",
        param=_place(body),
    )


def _place(body: bytes) -> str | None:
    """The field that it is in."""
    if len(body) > _LARGEST:
        return None
    try:
        return _walk(json.loads(body), "") or None
    except (ValueError, RecursionError):
        return None


def _walk(value: Any, at: str) -> str | None:
    if isinstance(value, str):
        return at if _IN_TEXT.search(value) else None
    if isinstance(value, list):
        for number, item in enumerate(value):
            if (found := _walk(item, f"{at}[{number}]")) is not None:
                return found
    elif isinstance(value, dict):
        for name, item in value.items():
            if _IN_TEXT.search(name):
                return at
            if (found := _walk(item, f"{at}.{name}" if at else name)) is not None:
                return found
    return None
