"""What ports with servers share: names that keep installations apart, and addresses as people may see them."""

from __future__ import annotations

import re

from sits.inner.errors import Code, SitsError

_NAMESPACE = re.compile(r"[a-z][a-z0-9_]{0,39}")


def check_namespace(namespace: str) -> None:
    """Raise `invalid_request` unless `namespace` can begin names of keys and collections, and be the name of a schema."""
    if _NAMESPACE.fullmatch(namespace) is None:
        raise SitsError(
            Code.INVALID_REQUEST,
            f"namespace {namespace[:80]!r}: wanted a-z 0-9 _, a letter first, at most 40 characters",
            param="namespace",
        )


def shown(address: str) -> str:
    """An address without user, password and parameters, which may be secrets."""
    scheme, separator, rest = address.partition("://")
    if not separator:
        return address[:80]
    # The last @: a password that was not quoted may hold one.
    return f"{scheme}://{rest.rpartition('@')[2].partition('?')[0]}"[:200]
