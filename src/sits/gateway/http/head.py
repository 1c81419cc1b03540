"""The head of a request: what llhttp lets pass and the RFCs, or our limits, do not. Pure."""

from __future__ import annotations

import re

from sits.gateway.http.front import FIELDS
from sits.inner.errors import Code, SitsError
from sits.resources.kinds import Limits

_HOST = re.compile(rb"(?:[\w.~!$&'()*+,;=%-]*|\[[0-9A-Fa-f:.]+\])(?::[0-9]*)?")
_VERSIONS = {"1.1": False, "1.0": True}
"""Those that are spoken, and whether they are the old one."""


def examine(headers: dict[bytes, bytes], fields: int, version: str, method: bytes, limits: Limits) -> tuple[bool, bool, bool]:
    """Whether it is HTTP/1.0, whether a body follows, and whether the client waits to be told to send it.

    Raises:
        SitsError: the request is refused, unread.
    """
    size = sum(map(len, headers)) + sum(map(len, headers.values())) + 4 * fields
    if size > limits.header_bytes or fields > FIELDS:
        raise too_long(limits)
    old = _VERSIONS.get(version)
    if old is None:
        status = 400 if version == "0.9" else 505
        raise SitsError(Code.INVALID_REQUEST, "only HTTP/1.0 and HTTP/1.1 are spoken here", status=status)
    host = headers.get(b"host")
    if host is None:
        if not old:
            raise SitsError(Code.INVALID_REQUEST, "the Host field is missing (RFC 9112 3.2)")
    elif _HOST.fullmatch(host.strip(b" \t")) is None:
        raise SitsError(Code.INVALID_REQUEST, "the Host field names no host (RFC 9112 3.2)")
    if method == b"CONNECT":
        raise SitsError(Code.METHOD_NOT_ALLOWED, "this is no proxy: CONNECT is not done", status=501)
    body = _has_body(headers, old, limits)
    expect = headers.get(b"expect")
    if expect is None or old:  # RFC 9110 10.1.1: from HTTP/1.0 it is ignored.
        return old, body, False
    if expect.strip().lower() != b"100-continue":
        raise SitsError(Code.INVALID_REQUEST, "the only expectation that is met is 100-continue", status=417)
    return old, body, body


def _has_body(headers: dict[bytes, bytes], old: bool, limits: Limits) -> bool:
    """What contradicts itself in Content-Length and Transfer-Encoding, llhttp has refused by now."""
    length = headers.get(b"content-length")
    if length is not None:
        if len(length) > 20:  # 64 bits have 20 digits; more are zeros in front, of which `int` takes 4300 at the most.
            length = headers[b"content-length"] = length.strip(b" \t").lstrip(b"0") or b"0"
        size = int(length)
        if size > limits.body_bytes:
            raise too_large(limits, size)
        return size > 0
    coding = headers.get(b"transfer-encoding")
    if coding is None:
        return False
    if old:
        raise SitsError(Code.INVALID_REQUEST, "HTTP/1.0 has no Transfer-Encoding (RFC 9112 6.1)")
    if coding.strip().lower() != b"chunked":
        raise SitsError(Code.UNSUPPORTED_MEDIA, "the only transfer coding that is read is chunked", status=501)
    return True


def too_large(limits: Limits, size: int | None = None) -> SitsError:
    what = "the body" if size is None else f"the body of {size} bytes"
    return SitsError(Code.TOO_LARGE, f"{what} is larger than the {limits.body_bytes} bytes that are taken")


def too_long(limits: Limits) -> SitsError:
    return SitsError(Code.HEADERS_TOO_LARGE, f"the header is larger than {limits.header_bytes} bytes or {FIELDS} fields")


def origin_form(target: bytes) -> bytes:
    """The path of an absolute-form target; `*` stays (RFC 9112 3.2)."""
    scheme, mark, rest = target.partition(b"://")
    if not mark or not scheme.isalnum():
        return target
    _, slash, path = rest.partition(b"/")
    return slash + path if slash else b"/"
