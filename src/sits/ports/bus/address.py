"""The address of a bus taken apart."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

from sits.inner.errors import Code, SitsError

_KNOWN = "local, nats://host:port, tls://host:port or kafka://host:port"


@dataclass(frozen=True, slots=True)
class Address:
    """A scheme, and `[user:password@]host[:port]` of each server; none for a bus without servers."""

    scheme: str
    servers: tuple[str, ...]


def parse_address(address: str) -> Address:
    """Take apart `local` or `scheme://server,server`; servers after the first may repeat the scheme.

    Raises:
        SitsError: `invalid_request`; the message has no password that may be in the address.
    """
    scheme, separator, rest = address.partition("://")
    if not separator:
        return Address(address, ())
    servers = tuple(server.removeprefix(f"{scheme}://") for server in rest.split(","))
    if not all(_is_server(server) for server in servers):
        raise wrong_address(address)
    return Address(scheme, servers)


def wrong_address(address: str) -> SitsError:
    shown = address.rpartition("@")[2][:80]
    return SitsError(Code.INVALID_REQUEST, f"bus {shown!r}: wanted {_KNOWN}", param="bus")


def _is_server(server: str) -> bool:
    try:
        parts = urlsplit(f"//{server}")
        return bool(parts.hostname) and parts.port != 0 and not (parts.path or parts.query or parts.fragment)
    except ValueError:
        return False
