"""The head of a request as bytes: one joined string, checked in one go."""

from __future__ import annotations

import re

from sits.engines.base import Outgoing
from sits.engines.remote.address import Address
from sits.engines.remote.proxy import Proxy

_BODYLESS = frozenset((b"GET", b"HEAD", b"DELETE", b"OPTIONS", b"TRACE"))
"""Methods that say nothing by having no body, so no Content-Length: 0 is owed (RFC 9110 8.6)."""
_FIT = re.compile(rb"[!-~]+").fullmatch


class HeadWriter:
    """Writes request heads for one target; what never changes is made once.

    Through an http:// proxy the target is written in absolute form with the proxy's credential (RFC 9112 3.2.2). A
    tunnelled https target is written as if there were no proxy.
    """

    __slots__ = ("_fixed", "_prefix")

    def __init__(self, address: Address, proxy: Proxy | None) -> None:
        fixed = f"host: {address.host_field}\r\n".encode()
        prefix = address.prefix
        if proxy is not None and not address.secure:
            prefix = address.origin + prefix
            if proxy.authorization is not None:
                fixed += b"proxy-authorization: " + proxy.authorization + b"\r\n"
        self._prefix = prefix.encode()
        self._fixed = fixed

    def write(self, request: Outgoing) -> bytes:
        """Request line, fields and the empty line.

        Raises:
            ValueError: the method, path or a field would break out of its place (CR, LF, NUL or a space in the path). The
                message names the field, never its value.
        """
        size = len(request.body)
        length = b"content-length: %d\r\n" % size if size or request.method not in _BODYLESS else b""
        fields = request.headers
        # Two joins at C speed: 0.35 us for six fields.
        lines = b"\r\n".join(map(b": ".join, fields)) + b"\r\n" if fields else b""
        path, count = request.path, len(fields)
        # Line ends of ours come in pairs, one for each field; counting them costs 0.2 us, a pattern over each field 1.1 us.
        sound = lines.count(b"\n") == count and lines.count(b"\r") == count and b"\0" not in lines
        if not sound or _FIT(path) is None or not request.method.isalpha():
            raise ValueError(_what_breaks(request))
        return b"%b %b%b HTTP/1.1\r\n%b%b%b%b\r\n" % (
            request.method, self._prefix, path, self._fixed, request.fixed, length, lines
        )  # fmt: skip


def _what_breaks(request: Outgoing) -> str:
    for name, value in request.headers:
        if any(byte in name + value for byte in b"\r\n\0"):
            return f"the request field {name.decode('latin-1')!r} has a line break or a NUL in its name or value"
    return f"the request line has a character that does not belong there: {request.method + b' ' + request.path!r}"
