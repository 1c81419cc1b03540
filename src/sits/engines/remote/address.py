"""Where a target is: a base URL, parsed once."""

from __future__ import annotations

import re
from urllib.parse import quote, urlsplit

import msgspec

DEFAULT_PORTS = {"http": 80, "https": 443}
_PREFIX = re.compile(r"[!-~]*")


class Address(msgspec.Struct, frozen=True):
    """A parsed base URL; `host` is ASCII (IDNA) and without brackets, `prefix` is empty or "/like/this"."""

    scheme: str
    host: str
    port: int
    prefix: str = ""

    @property
    def secure(self) -> bool:
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """Host and port as they stand in a URL or a CONNECT line; the port is always there."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def host_field(self) -> str:
        """The value of the Host field: without the scheme's own port (RFC 9110 7.2)."""
        bracketed = f"[{self.host}]" if ":" in self.host else self.host
        return bracketed if self.port == DEFAULT_PORTS[self.scheme] else f"{bracketed}:{self.port}"

    @property
    def origin(self) -> str:
        """How messages name the target."""
        return f"{self.scheme}://{self.host_field}"


def parse_address(url: str) -> Address:
    """The address that a base URL names.

    Raises:
        ValueError: it is not the base URL of an HTTP server; the message says what is wrong with it.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise ValueError(f"{url!r} is not a URL: {error}") from error
    scheme = parts.scheme.lower()
    if scheme not in DEFAULT_PORTS:
        raise ValueError(f"{url!r} does not begin with http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("a base URL carries no user name or password: use apiKey or headers")
    if parts.query or parts.fragment:
        raise ValueError(f"{url!r} has a query or a fragment: a base URL ends with its path")
    if port == 0:
        raise ValueError(f"{url!r} has port 0")
    return Address(scheme, _ascii_host(parts.hostname, url), port or DEFAULT_PORTS[scheme], _prefix(parts.path))


def _ascii_host(host: str | None, url: str) -> str:
    if not host:
        raise ValueError(f"{url!r} names no host")
    try:
        ascii_host = host.encode("idna").decode() if not host.isascii() else host
    except UnicodeError as error:
        raise ValueError(f"the host of {url!r} has no form for DNS: {error}") from error
    if re.fullmatch(r"[A-Za-z0-9._:%-]+", ascii_host) is None:
        raise ValueError(f"the host of {url!r} has a character that no host name has")
    return ascii_host.lower()


def _prefix(path: str) -> str:
    quoted = quote(path.rstrip("/"), safe="/%:@!$&'()*+,;=~-._")
    assert _PREFIX.fullmatch(quoted), "quote leaves nothing but visible ASCII"
    return quoted
