"""Where an answer that is made later may be sent: where Settings say, and nowhere that only looks like it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from urllib.parse import urlsplit

from sits.inner.errors import Code, SitsError

FIELD = b"x-sits-callback"
LONGEST_URL = 2048


def callback(value: bytes | None, prefixes: Iterable[str]) -> str | None:
    """The URL of `x-sits-callback`, if it may be called; None when the client gave none.

    Raises:
        SitsError: `invalid_request`: it is none, or none of those that Settings allow.
    """
    if value is None:
        return None
    try:
        url = value.decode("utf-8", "replace")
        wanted = _place(url)
    except ValueError as error:
        raise _no_callback(str(error) or "no URL") from error
    for prefix in prefixes:
        try:
            allowed = _place(prefix)
        except ValueError:
            continue
        path = allowed[3]
        if wanted[:3] == allowed[:3] and (wanted[3] == path or wanted[3].startswith(path if path.endswith("/") else path + "/")):
            return url
    raise _no_callback("it begins with none of the URLs under `qos.callbacks` in Settings")


_VISIBLE = re.compile(r"[!-~]+")
_PORTS = {"http": 80, "https": 443}


def _place(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and path, in one form.

    Raises:
        ValueError: it says more than where, or says that in more than one way.
    """
    if len(url) > LONGEST_URL or _VISIBLE.fullmatch(url) is None or any(mark in url for mark in '\\#"<>^`{|}'):
        raise ValueError(f"wanted a URL of at most {LONGEST_URL} visible ASCII characters, without a fragment")
    parts = urlsplit(url)
    scheme, host, port = parts.scheme.lower(), (parts.hostname or "").lower(), parts.port
    if scheme not in _PORTS or not host:
        raise ValueError("wanted http:// or https:// and a host")
    if "@" in parts.netloc:
        raise ValueError("a URL of a callback carries no user name or password")
    path = parts.path or "/"
    # A path that a server may read otherwise than we do could leave the prefix.
    for segment in re.sub("%2e", ".", path, flags=re.IGNORECASE).split("/"):
        if segment in (".", "..") or "%2f" in segment.lower() or "%5c" in segment.lower() or ";" in segment:
            raise ValueError("its path has dots, encoded slashes or parameters in it")
    return scheme, host, port if port is not None else _PORTS[scheme], path


def _no_callback(why: str) -> SitsError:
    return SitsError(Code.INVALID_REQUEST, f"x-sits-callback: {why}", param=FIELD.decode())
