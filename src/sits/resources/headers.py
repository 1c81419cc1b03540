"""Names of HTTP headers (RFC 9110, 5.1 and 5.6.2)."""

from __future__ import annotations

import re
from collections.abc import Iterator

from sits.resources.problem import Fault, Path, quoted

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_ALLOWED = "ASCII letters, digits and -, like x-team"


def is_header_name(name: str) -> bool:
    """Whether a header may be called that."""
    return _NAME.fullmatch(name) is not None


def header_faults(name: str, path: Path, *, at_key: bool = False) -> Iterator[Fault]:
    """A name that no header can have: what asks for it would never be true."""
    if not is_header_name(name):
        yield Fault(path, f"{quoted(name)} is not the name of a header", f"write {_ALLOWED}", at_key=at_key)
