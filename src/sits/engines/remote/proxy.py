"""Which proxy, if any, stands between us and a target: HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY.

There is no standard for these; curl's reading is followed: lower case wins over upper case, a NO_PROXY name stands for itself
and everything below it. Loopback is never proxied.
"""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from sits.engines.remote.address import Address


class Proxy(msgspec.Struct, frozen=True):
    """An HTTP proxy: absolute-form requests for http targets, CONNECT for https ones."""

    host: str
    port: int
    authorization: bytes | None = None
    """The value of Proxy-Authorization; never part of a message."""

    @property
    def label(self) -> str:
        return f"http://[{self.host}]:{self.port}" if ":" in self.host else f"http://{self.host}:{self.port}"


def proxy_for(address: Address, environment: Mapping[str, str]) -> Proxy | None:
    """The proxy that the environment declares for a target.

    Raises:
        ValueError: it declares one that is not an http:// proxy.
    """
    if _is_loopback(address.host):
        return None
    name, url = _declared(address.scheme, environment)
    if not url or _excluded(address, _read(environment, "no_proxy")):
        return None
    return _parse(name, url)


def _declared(scheme: str, environment: Mapping[str, str]) -> tuple[str, str]:
    for name in (f"{scheme}_proxy", "all_proxy"):
        # Under CGI the variable HTTP_PROXY is a header of the client's (CVE-2016-5385).
        spoofed = name == "http_proxy" and "REQUEST_METHOD" in environment
        value = environment.get(name, "") if spoofed else _read(environment, name)
        if value:
            return name, value
    return "", ""


def _read(environment: Mapping[str, str], name: str) -> str:
    return (environment.get(name) or environment.get(name.upper()) or "").strip()


def _parse(name: str, url: str) -> Proxy:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = 80 if parts.port is None else parts.port
        host = parts.hostname
    except ValueError as error:
        raise ValueError(f"{name.upper()} is not a URL: {error}") from error
    if parts.scheme.lower() != "http":
        raise ValueError(f"{name.upper()} is a {parts.scheme} proxy: only http:// proxies are spoken")
    if not host:
        raise ValueError(f"{name.upper()} names no host")
    if parts.username is None:
        return Proxy(host, port)
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
    return Proxy(host, port, b"Basic " + base64.b64encode(pair))


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    ip = _ip(host)
    return ip is not None and ip.is_loopback


def _ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def _excluded(address: Address, rules: str) -> bool:
    return any(_matches(rule, address) for rule in rules.replace(",", " ").split())


def _matches(rule: str, address: Address) -> bool:
    """Whether one NO_PROXY entry covers a target: `*`, a name, a suffix, an address or a network, each with or without a port."""
    if rule == "*":
        return True
    if "/" in rule:
        return _in_network(rule, address.host)
    name, port = _split_port(rule.lower())
    if port is not None and port != address.port:
        return False
    ip = _ip(name)
    if ip is not None:
        return ip == _ip(address.host)
    name = name.removeprefix("*").strip(".")
    return bool(name) and (address.host == name or address.host.endswith("." + name))


def _in_network(rule: str, host: str) -> bool:
    ip = _ip(host)
    try:
        return ip is not None and ip in ipaddress.ip_network(rule, strict=False)
    except ValueError:
        return False


def _split_port(rule: str) -> tuple[str, int | None]:
    if rule.startswith("["):
        name, _, rest = rule[1:].partition("]")
        digits = rest.removeprefix(":")
    elif rule.count(":") == 1:
        name, _, digits = rule.partition(":")
    else:
        return rule, None
    return name, int(digits) if digits.isdecimal() else None
