"""Addresses as people write them."""

from __future__ import annotations

import ipaddress
import urllib.parse


def gateway_url(text: str) -> str:
    """The root of a gateway, of whatever its user copied: `host:8080`, `http://host:8080/`, the `/v1` that SDKs want.

    Raises:
        ValueError: it is no HTTP address; the message says why.
    """
    url = text.strip() if "://" in text else f"http://{text.strip()}"
    parts = urllib.parse.urlsplit(url)
    if parts.scheme not in ("http", "https"):
        raise ValueError(f"{text!r} is neither http:// nor https://")
    if not parts.hostname or any(c.isspace() for c in url):
        raise ValueError(f"{text!r} names no host; write it like http://127.0.0.1:8080")
    try:
        _ = parts.port
    except ValueError:
        raise ValueError(f"{text!r} has no port that is a number up to 65535") from None
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
