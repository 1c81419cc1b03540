"""API keys: made once, kept as hashes, checked on every request.

A key's secret is 256 random bits, so nobody finds it by guessing and a plain SHA-256 is the right hash: slow, salted hashes
are for passwords, which people choose and which can be guessed; here they would only burn the CPU of every request.
Because the secret is looked up by its hash, no comparison runs over the secret itself and there is nothing to time.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Literal

import msgspec

from sits.inner.errors import Code, SitsError
from sits.resources.conform import faults
from sits.resources.keys import Key, KeySpec
from sits.resources.problem import Fault, shown
from sits.resources.reliability import Priority
from sits.resources.vocabulary import Metadata

AuthMode = Literal["auto", "required", "off"]

_NEVER = float("inf")
_SPAN = re.compile(r"([1-9][0-9]{0,5})([mhdw])")
_SECONDS = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


class NewKey(msgspec.Struct, frozen=True):
    """A key just made: `secret` is shown once and kept nowhere, `key` is the resource to store."""

    secret: str
    key: Key


def new_key(
    name: str,
    random: Callable[[int], bytes],
    *,
    models: list[str] | None = None,
    admin: bool = False,
    expires: str | None = None,
) -> NewKey:
    """A new key; `random` is `secrets.token_bytes` outside of tests.

    Raises:
        SitsError: `invalid_request`, the name or the time is not one.
    """
    if expires is not None:
        moment(expires)
    secret = "sits-" + base64.urlsafe_b64encode(random(32)).decode().rstrip("=")
    key = Key(Metadata(name), KeySpec(sha256(secret.encode()).hexdigest(), models, admin, expires))
    plain = msgspec.to_builtins(key)
    if found := faults(plain, Key):
        why = "; ".join(_said(fault) for fault in found)
        raise SitsError(Code.INVALID_REQUEST, f"no key can be made of this: {why}")
    return NewKey(secret, msgspec.convert(plain, Key))


def _said(fault: Fault) -> str:
    text = f"{shown(fault.path[1:])}: {fault.message}"
    return f"{text}; {fault.hint}" if fault.hint else text


def moment(text: str) -> float:
    """Unix seconds of an RFC 3339 time.

    Raises:
        SitsError: `invalid_request`, it is not one, or has no offset from UTC.
    """
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError as error:
        raise SitsError(Code.INVALID_REQUEST, f"{text!r} is not an RFC 3339 time such as 2027-01-31T12:00:00Z") from error
    if parsed.tzinfo is None:
        raise SitsError(Code.INVALID_REQUEST, f"{text!r} needs an offset from UTC: add Z, or +02:00")
    return parsed.timestamp()


def expiry(text: str, now: float) -> str:
    """The RFC 3339 time that `30d` (m, h, d, w) from `now`, or an RFC 3339 time itself, means.

    Raises:
        SitsError: `invalid_request`, it is neither, or is past.
    """
    span = _SPAN.fullmatch(text)
    if span is not None:
        then = now + int(span[1]) * _SECONDS[span[2]]
    else:
        then = moment(text)
        if then <= now:
            raise SitsError(Code.INVALID_REQUEST, f"{text} is past: the key would never work")
    try:
        return datetime.fromtimestamp(int(then), UTC).isoformat().replace("+00:00", "Z")
    except (ValueError, OverflowError) as error:
        raise SitsError(Code.INVALID_REQUEST, f"{text} from now is beyond the year 9999") from error


class KeyIdentity(msgspec.Struct, frozen=True, gc=False):
    """Who asks: what one key may do."""

    name: str
    models: frozenset[str] | None = None
    """Names it may ask for; None is all."""
    admin: bool = False
    expires: float = _NEVER
    """Unix seconds."""
    disabled: bool = False
    team: str = ""
    priority: Priority | None = None
    """The class of service of its requests, where the key says."""

    def allows(self, model: str) -> bool:
        """Whether the key may ask for this name."""
        return self.models is None or model in self.models


class Authenticator:
    """Knows the keys of one configuration: those declared in it and those made at run time."""

    __slots__ = ("_by_hash", "asks")

    def __init__(self, keys: Iterable[Key], mode: AuthMode) -> None:
        """Raises `SitsError` (`invalid_request`) when a key's time of expiry is not one. Of two keys with one secret the
        first counts."""
        self._by_hash: dict[bytes, KeyIdentity] = {}
        for key in keys:
            spec = key.spec
            identity = KeyIdentity(
                key.metadata.name,
                None if spec.models is None else frozenset(spec.models),
                spec.admin,
                _NEVER if spec.expires is None else moment(spec.expires),
                spec.disabled,
                spec.team or "",
                spec.priority,
            )
            self._by_hash.setdefault(bytes.fromhex(spec.sha256), identity)
        self.asks = mode == "required" or (mode == "auto" and bool(self._by_hash))
        """Whether a request needs a key; without, nobody is asked and nobody is known."""

    def check(self, authorization: bytes | None, x_api_key: bytes | None, now: float) -> KeyIdentity | None:
        """Who asks, by `Authorization: Bearer` or else `x-api-key`; None when nobody is asked. 0.6 us.

        Hashing takes 0.24 us of it and a dict of recent secrets 0.03 us, but that would keep secrets in memory; not worth it.

        Raises:
            SitsError: `unauthenticated`, no key, or an unknown, disabled or expired one.
        """
        if not self.asks:
            return None
        secret = _secret(authorization, x_api_key)
        identity = self._by_hash.get(sha256(secret).digest())
        if identity is None:
            raise SitsError(Code.UNAUTHENTICATED, f"the API key ({hint(secret)}) is not known")
        return _valid(identity, now)

    def named(self, name: str | None, now: float) -> KeyIdentity | None:
        """Who asked by that name before, as they may ask now. All keys are looked through: they lie under their secrets.

        Raises:
            SitsError: `unauthenticated`, the key is gone, disabled or expired; a key is asked for by now, and this is none.
        """
        if name is None:
            if self.asks:
                raise SitsError(Code.UNAUTHENTICATED, "an API key is asked for by now")
            return None
        identity = next((one for one in self._by_hash.values() if one.name == name), None)
        if identity is None:
            raise SitsError(Code.UNAUTHENTICATED, f"the API key {name!r} is not known any more")
        return _valid(identity, now)

    def require_admin(self, identity: KeyIdentity | None) -> None:
        """Raise `forbidden` unless an admin asks, or nobody is asked at all."""
        if self.asks and (identity is None or not identity.admin):
            raise SitsError(Code.FORBIDDEN, "this needs a key that was made with --admin")


def _valid(identity: KeyIdentity, now: float) -> KeyIdentity:
    if identity.disabled:
        raise SitsError(Code.UNAUTHENTICATED, f"the API key {identity.name!r} is disabled")
    if identity.expires <= now:
        raise SitsError(Code.UNAUTHENTICATED, f"the API key {identity.name!r} has expired")
    return identity


def require_model(identity: KeyIdentity | None, model: str) -> None:
    """Raise `forbidden` when the key may not ask for this name."""
    if identity is not None and not identity.allows(model):
        raise SitsError(Code.FORBIDDEN, f"the API key {identity.name!r} may not use the model {model!r}", param="model")


def hint(secret: bytes) -> str:
    """As much of a refused secret as may be shown: its length, and of a long one the first four characters."""
    start = secret[:4].decode("latin-1")
    size = f"{len(secret)} characters"
    return f"{start}..., {size}" if len(secret) >= 20 and start.isascii() and start.isprintable() else size


def _secret(authorization: bytes | None, x_api_key: bytes | None) -> bytes:
    if authorization is not None:
        if authorization.startswith(b"Bearer "):
            secret = authorization[7:].strip()
            if secret:
                return secret
        scheme, _, rest = authorization.partition(b" ")
        if scheme.lower() == b"bearer" and rest.strip():
            return rest.strip()
    if x_api_key is not None and x_api_key.strip():
        return x_api_key.strip()
    if authorization is not None:
        raise SitsError(Code.UNAUTHENTICATED, "the Authorization header carries no key: send `Authorization: Bearer KEY`")
    raise SitsError(Code.UNAUTHENTICATED, "no API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`")
