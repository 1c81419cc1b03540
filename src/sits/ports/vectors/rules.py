"""What may come in: every adapter asks here first, so that all refuse the same things with the same words."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import NoReturn

import msgspec
import numpy as np

from sits.inner.errors import Code, SitsError
from sits.ports.vectors.base import (
    LARGEST_DIMENSION,
    LARGEST_FIELDS,
    LARGEST_PAGE,
    LONGEST_FIELD,
    LONGEST_TEXT,
    MOST_HITS,
    Clause,
    Item,
    Scalar,
    Vector,
)

_COLLECTION = re.compile(r"[a-z][a-z0-9_]{0,40}")
_ORDERED = frozenset({"lt", "le", "gt", "ge"})
_EXACT = 2**53


def collection_name(name: str) -> str:
    if _COLLECTION.fullmatch(name) is None:
        refuse("collection", f"a collection is named [a-z][a-z0-9_]{{0,40}}, not {name!r}")
    return name


def text(value: str, what: str) -> str:
    """A partition or an id, as it is when it may be one."""
    _named(value, what, LONGEST_TEXT)
    return value


def dimension(value: int) -> int:
    if not 1 <= value <= LARGEST_DIMENSION:
        refuse("dimension", f"a dimension is 1 to {LARGEST_DIMENSION}, not {value}")
    return value


def hits(k: int) -> int:
    if not 1 <= k <= MOST_HITS:
        refuse("k", f"k is 1 to {MOST_HITS}, not {k}")
    return k


def page(limit: int) -> int:
    if not 1 <= limit <= LARGEST_PAGE:
        refuse("limit", f"a page has 1 to {LARGEST_PAGE} ids, not {limit}")
    return limit


def unit(vector: Vector, dimension: int) -> Vector:
    """The vector at length one, a new array of float32."""
    # A double holds the square of every float32; values beyond float32 become infinite here and are refused below.
    row = np.asarray(vector, dtype=np.float64)
    if row.shape != (dimension,):
        refuse("vector", f"a vector of shape ({dimension},) is wanted, not {row.shape}")
    # vecdot, here and elsewhere, because it stays on this thread: where numpy's BLAS waits for a thread of its pool on a busy
    # machine, a product of 40 us took 8 ms. It also gives equal rows equal scores, whatever their place in a matrix.
    length = math.sqrt(np.vecdot(row, row))
    if not 0.0 < length < math.inf:
        refuse("vector", "a vector must be finite and not zero")
    shortened: Vector = (row / length).astype(np.float32)
    return shortened


def items(given: Sequence[Item], dimension: int) -> list[tuple[str, Vector, bytes]]:
    """Id, unit vector and fields as JSON of each item; of two with one id the later."""
    ready = {text(item.id, "id"): (unit(item.vector, dimension), packed(item.fields)) for item in given}
    return [(key, vector, fields) for key, (vector, fields) in ready.items()]


def packed(fields: Mapping[str, Scalar]) -> bytes:
    """Fields as JSON."""
    for name, value in fields.items():
        _named(name, "field", LONGEST_FIELD)
        _scalar(name, value)
    body = msgspec.json.encode(fields)
    if len(body) > LARGEST_FIELDS:
        refuse("fields", f"the fields of an item are at most {LARGEST_FIELDS} bytes, not {len(body)}")
    return body


_FIELDS: msgspec.json.Decoder[dict[str, Scalar]] = msgspec.json.Decoder(dict[str, Scalar])


def unpacked(body: bytes) -> Mapping[str, Scalar]:
    """Fields out of what `packed` made."""
    return _FIELDS.decode(body)


def clauses(where: Sequence[Clause]) -> Sequence[Clause]:
    """The clauses, when each has a value that its operator can take."""
    for clause in where:
        _named(clause.field, "field", LONGEST_FIELD)
        several = isinstance(clause.value, tuple)
        if several != (clause.op == "in"):
            refuse("where", f"{clause.op!r} on {clause.field!r} takes {'one value' if several else 'a tuple of values'}")
        for value in clause.value if isinstance(clause.value, tuple) else (clause.value,):
            _scalar(clause.field, value)
            if clause.op in _ORDERED and isinstance(value, bool):
                refuse("where", f"truth values are not ordered: {clause.op!r} on {clause.field!r}")
    return where


def refuse(param: str, message: str) -> NoReturn:
    raise SitsError(Code.INVALID_REQUEST, message, param=param)


def no_collection(name: str) -> SitsError:
    return SitsError(Code.NOT_FOUND, f"no collection {name!r}: create it first", param="collection")


def other_dimension(name: str, has: int, wanted: int) -> SitsError:
    message = f"collection {name!r} has dimension {has}, not {wanted}: use another name, or drop it first"
    return SitsError(Code.CONFLICT, message, param="dimension")


def too_many(name: str, most: int) -> SitsError:
    return SitsError(Code.TOO_LARGE, f"collection {name!r} would pass its cap of {most} items: delete some first", param="items")


def _named(value: str, what: str, most: int) -> None:
    if not value:
        refuse(what, f"{what} may not be empty")
    _bounded(value, what, most)


def _bounded(value: str, what: str, most: int) -> None:
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        refuse(what, f"{what} {value!r} is not Unicode text")
    if size > most or "\0" in value:
        refuse(what, f"{what} is text without NUL of at most {most} bytes, not {value[:40]!r} ({size} bytes)")


def _scalar(name: str, value: Scalar) -> None:
    if isinstance(value, str):
        _bounded(value, f"value of {name}", LARGEST_FIELDS)
    elif isinstance(value, float):
        if not math.isfinite(value):
            refuse("fields", f"field {name!r} must be finite, not {value}")
    elif isinstance(value, int):
        if abs(value) > _EXACT:
            refuse("fields", f"a whole number is at most 2**53 from zero: field {name!r} has {value}")
    else:
        refuse("fields", f"field {name!r} must be text, a number or a truth value, not {type(value).__name__}")
