"""Fields as servers can filter them exactly.

Servers differ in what a missing field, a number beside a text, a quote or a Chinese character does to a filter. So a field is
stored in forms whose letters and meaning no server can mistake: every value has a *tag*, `<field in hex>:<kind>:<value>`, and
equality is "the tag is among the item's tags", which holds for missing fields and other kinds as well. Numbers are stored once
more as `n<field in hex>` and texts as `t<field in hex>`, in hex, whose order is that of the UTF-8 bytes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from sits.ports.vectors.base import Scalar
from sits.ports.vectors.where import kind


def tag(field: str, value: Scalar) -> str:
    name = hexed(field)
    if isinstance(value, bool):
        return f"{name}:b:{int(value)}"
    if isinstance(value, str):
        # 128 bits, so that a tag is short whatever the text.
        return f"{name}:t:{hashlib.blake2b(value.encode(), digest_size=16).hexdigest()}"
    return f"{name}:n:{number(value)}"


def tags(fields: Mapping[str, Scalar]) -> list[str]:
    return [tag(field, value) for field, value in fields.items()]


def numbers(fields: Mapping[str, Scalar]) -> dict[str, float]:
    return {f"n{hexed(field)}": float(value) for field, value in fields.items() if kind(value) is float}


def texts(fields: Mapping[str, Scalar]) -> dict[str, str]:
    return {f"t{hexed(field)}": hexed(value) for field, value in fields.items() if isinstance(value, str)}


def number(value: float) -> str:
    """A number in one spelling, without the plus that not every server reads: 1 and 1.0 are one, -0.0 is 0.0."""
    return repr(float(value) + 0.0).replace("e+", "e")


def hexed(text: str) -> str:
    return text.encode().hex()


def plain(code: str) -> str:
    """What `hexed` was given."""
    return bytes.fromhex(code).decode()
