"""How two changes of one path become one: a table of rules, by the name of the path.

| rule | an update says | two that did not know of each other |
| --- | --- | --- |
| last-writer | the new value | the one with the later stamp (hybrid clock) stays |
| append | items to add, a JSON array | both stay, in the order in which they were committed |
| union | members to add, a JSON array | all members, each once |
| max | a JSON number | the larger one |
| reject | the new value | the first one stays; the other is put on record for somebody to decide |

Updates of `append`, `union` and `max` say what is added, not what there is afterwards, so they can follow any other. Removing a
path (None) is a last writer's affair for `last-writer`, refused like any other for `reject`, and gives way to what was added
without its knowledge for the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import msgspec

from sits.inner.errors import Code, SitsError

Rule = Literal["last-writer", "append", "union", "max", "reject"]
DEFAULT: Rule = "last-writer"
MOST_ROWS = 64
LONGEST_PATH = 512
"""Bytes of a path in UTF-8."""


class RuleRow(msgspec.Struct, frozen=True):
    """One row of a session's table: a path, or with `*` at its end all that begin so. The first row that fits counts."""

    path: str
    rule: Rule


def rule_of(path: str, rows: Sequence[RuleRow]) -> Rule:
    """The rule for a path."""
    for row in rows:
        if path == row.path or (row.path.endswith("*") and path.startswith(row.path[:-1])):
            return row.rule
    return DEFAULT


def check_path(path: str) -> None:
    """Raise `invalid_request` unless `path` can name a part of a context."""
    try:
        size = len(path.encode())
    except UnicodeEncodeError as error:
        raise SitsError(Code.INVALID_REQUEST, f"a path is no text: {error.reason}", param="updates") from error
    if not 0 < size <= LONGEST_PATH:
        raise SitsError(Code.INVALID_REQUEST, f"a path of {size} bytes: wanted 1 to {LONGEST_PATH}", param="updates")


_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_members = msgspec.json.Decoder(list[Any]).decode
_number = msgspec.json.Decoder(int | float).decode
_encode = msgspec.json.Encoder(order="deterministic").encode


def _append_update(update: bytes) -> bytes:
    return _encode(_items(update))


def _union_update(update: bytes) -> bytes:
    return _union(sorted({_encode(member) for member in _members(update)}))


def _max_update(update: bytes) -> bytes:
    return _encode(_number(update))


def _append_join(have: bytes, update: bytes) -> bytes:
    if have == b"[]" or update == b"[]":
        return update if have == b"[]" else have
    return have[:-1] + b"," + update[1:]


def _union_join(have: bytes, update: bytes) -> bytes:
    return _union(sorted({bytes(member) for member in (*_items(have), *_items(update))}))


def _union(members: list[bytes]) -> bytes:
    return b"[" + b",".join(members) + b"]"


def _max_join(have: bytes, update: bytes) -> bytes:
    return update if _number(update) > _number(have) else have


_ADDING: dict[Rule, tuple[str, Callable[[bytes], bytes], Callable[[bytes, bytes], bytes]]] = {
    "append": ("a JSON array of items to add", _append_update, _append_join),
    "union": ("a JSON array of members to add", _union_update, _union_join),
    "max": ("a JSON number", _max_update, _max_join),
}
"""Rules whose updates add: what one looks like, how it is made canonical, how it joins what is there."""


def adds(rule: Rule) -> bool:
    """Whether updates of this rule add to what there is."""
    return rule in _ADDING


def canonical(rule: Rule, path: str, update: bytes | None) -> bytes | None:
    """An update as it is kept.

    Raises:
        SitsError: `invalid_request`, it is not what the rule of its path wants.
    """
    row = _ADDING.get(rule)
    if row is None or update is None:
        return update
    try:
        return row[1](update)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        message = f"the path {path[:80]!r} has the rule {rule}: its update must be {row[0]} ({error})"
        raise SitsError(Code.INVALID_REQUEST, message, param=f"updates.{path[:80]}") from error


def join(rule: Rule, have: bytes | None, update: bytes | None) -> bytes | None:
    """The value of a path after a canonical update; None when it is removed."""
    row = _ADDING.get(rule)
    if row is None or update is None or have is None:
        return update
    return row[2](have, update)
