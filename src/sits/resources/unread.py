"""A value that could not be read, in the place where it should stand.

A resource with faults of shape is still looked at, so that those do not hide its other faults. What could not be read stands
in it as `UNREAD`: to say `is None` of it is allowed (something was written there), and every other use raises `Unread`, which
ends the rule that wanted to know. So nothing is concluded from what nobody knows, and the rules need not think of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")


class Unread(Exception):
    """Something depends on a value that could not be read."""


class _Unread:
    """See `UNREAD`."""

    __slots__ = ()

    def _used(self, *_: object) -> NoReturn:
        raise Unread

    def __repr__(self) -> str:
        return "UNREAD"

    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = __bool__ = _used
    __len__ = __iter__ = __contains__ = __getitem__ = __getattr__ = __call__ = _used
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _used
    __str__ = __format__ = __int__ = __float__ = __index__ = __fspath__ = _used


UNREAD: Any = _Unread()
"""Stands where a value could not be read."""


def judged(found: Iterable[T]) -> Iterator[T]:
    """What is found, up to where something unread would have to be known."""
    try:
        yield from found
    except Unread:
        return


def whole(value: Any) -> bool:
    """Whether nothing in a plain value is unread."""
    if isinstance(value, Mapping):
        return all(whole(part) for part in value.values())
    if isinstance(value, list | tuple):
        return all(whole(part) for part in value)
    return value is not UNREAD
