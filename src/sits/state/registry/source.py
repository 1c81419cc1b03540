"""A file or an address of another registry -> its entries. Waits for the disk and the network: for commands, or a thread.

An address without a path is a registry's own: all its services are asked for. One with a path is one answer.
"""

from __future__ import annotations

import base64
import http.client
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Literal

from sits.inner.errors import Code, SitsError
from sits.routing.registry.card import ServiceCard
from sits.state.registry import consul, eureka
from sits.state.registry.imported import MOST_ENTRIES, checked

Kind = Literal["consul", "eureka"]
Fetch = Callable[[str], bytes]
LARGEST = 32 * 1024 * 1024
"""Bytes of one answer."""
SECONDS = 10.0
EUREKA = "/eureka/apps"


def entries(kind: Kind, source: str, fetch: Fetch | None = None, headers: Mapping[str, str] | None = None) -> list[ServiceCard]:
    """What a registry knows. `fetch` is for other ways to the network than ours.

    Raises:
        SitsError: `not_found`, no such file; `upstream_unreachable`, `upstream_error`; `invalid_request`, the answer is not that
            of a registry of this kind; `request_too_large`.
    """
    parse = consul.cards if kind == "consul" else eureka.cards
    if not source.startswith(("http://", "https://")):
        return parse(_file(source))
    get = fetch if fetch is not None else lambda url: fetched(url, headers or {})
    path = urllib.parse.urlsplit(source).path
    if path not in ("", "/"):
        return parse(get(source))
    base = source.rstrip("/")
    if kind == "eureka":
        return parse(get(base + EUREKA))
    found = {card.name: card for card in consul.cards(get(f"{base}/v1/catalog/services"))}
    for name in list(found)[:MOST_ENTRIES]:
        for card in consul.cards(get(f"{base}/v1/health/service/{urllib.parse.quote(name, safe='')}")):
            found[card.name] = card
    return checked(list(found.values()), consul.WHOSE)


def fetched(url: str, headers: Mapping[str, str]) -> bytes:
    """The body of one answer. Raises as `entries` does."""
    request = urllib.request.Request(_plain(url), headers={"accept": "application/json", **headers})  # noqa: S310 - http(s), as seen
    if (user := _user(url)) is not None:
        request.add_header("authorization", "Basic " + base64.b64encode(user.encode()).decode())
    try:
        with urllib.request.build_opener(_Stay).open(request, timeout=SECONDS) as answer:
            body: bytes = answer.read(LARGEST + 1)
    except urllib.error.HTTPError as error:
        error.close()
        raise SitsError(Code.UPSTREAM_ERROR, f"{_shown(url)} answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SitsError(Code.UPSTREAM_UNREACHABLE, f"{_shown(url)}: {getattr(error, 'reason', error)}") from error
    if len(body) > LARGEST:
        raise SitsError(Code.TOO_LARGE, f"{_shown(url)} answers with more than {LARGEST} bytes")
    return body


class _Stay(urllib.request.HTTPRedirectHandler):
    """Follows nobody to another place: a token that is for one server would go along."""

    def redirect_request(self, *_: object) -> None:
        return None


def _file(source: str) -> bytes:
    path = Path(source)
    try:
        if path.stat().st_size > LARGEST:
            raise SitsError(Code.TOO_LARGE, f"{source} has more than {LARGEST} bytes")
        return path.read_bytes()
    except OSError as error:
        raise SitsError(Code.NOT_FOUND, f"{source}: {error.strerror}", param="source") from error


def _shown(url: str) -> str:
    """An address without what may be a secret."""
    return _plain(url).partition("?")[0]


def _plain(url: str) -> str:
    """An address without a user and a password."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def _user(url: str) -> str | None:
    """`user:password` of an address."""
    user, at, _ = urllib.parse.urlsplit(url).netloc.rpartition("@")
    return urllib.parse.unquote(user) if at else None
