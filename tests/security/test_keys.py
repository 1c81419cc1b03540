"""API keys: made, hashed, checked; a refused one is never repeated to whoever sent it."""

from __future__ import annotations

import random
from hashlib import sha256

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.resources.keys import Key, KeySpec
from sits.resources.kinds import Metadata
from sits.security.keys import Authenticator, KeyIdentity, expiry, hint, moment, new_key, require_model

NOW = 1_700_000_000.0
SECRETS = {name: f"sits-{name:_<43}" for name in ("plain", "admin", "narrow", "old", "off")}


def key(name: str, **spec: object) -> Key:
    return Key(Metadata(name), KeySpec(sha256(SECRETS[name].encode()).hexdigest(), **spec))  # type: ignore[arg-type]


KEYS = [
    key("plain"),
    key("admin", admin=True),
    key("narrow", models=["a", "路由"]),
    key("old", expires="2023-11-14T22:13:20Z"),  # exactly NOW
    key("off", disabled=True),
]
GUARD = Authenticator(KEYS, "auto")


def bearer(name: str) -> bytes:
    return b"Bearer " + SECRETS[name].encode()


GOOD = {
    "bearer": (bearer("plain"), None, KeyIdentity("plain")),
    "x-api-key": (None, SECRETS["plain"].encode(), KeyIdentity("plain")),
    "the bearer wins over x-api-key": (bearer("admin"), b"whatever", KeyIdentity("admin", admin=True)),
    "another scheme beside x-api-key": (b"Basic eDp5", SECRETS["plain"].encode(), KeyIdentity("plain")),
    "lower-case scheme": (bearer("plain").replace(b"Bearer", b"bearer"), None, KeyIdentity("plain")),
    "more space": (bearer("plain").replace(b" ", b"   ") + b" ", None, KeyIdentity("plain")),
    "an allow-list": (bearer("narrow"), None, KeyIdentity("narrow", frozenset({"a", "路由"}))),
}


@pytest.mark.parametrize(("authorization", "x_api_key", "identity"), GOOD.values(), ids=GOOD.keys())
def test_a_known_key_is_told_who_it_is(authorization: bytes | None, x_api_key: bytes | None, identity: KeyIdentity) -> None:
    assert GUARD.check(authorization, x_api_key, NOW) == identity


BAD = {
    "none": (None, None, "no API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`"),
    "unknown": (b"Bearer sits-" + b"q" * 43, None, "the API key (sits..., 48 characters) is not known"),
    "unknown and short": (b"Bearer hunter2", None, "the API key (7 characters) is not known"),
    "not ASCII": ("Bearer 密钥密钥密钥密钥".encode(), None, "the API key (24 characters) is not known"),
    "expired": (bearer("old"), None, "the API key 'old' has expired"),
    "disabled": (None, SECRETS["off"].encode(), "the API key 'off' is disabled"),
    "another scheme": (b"Basic eDp5", None, "the Authorization header carries no key: send `Authorization: Bearer KEY`"),
    "an empty bearer": (b"Bearer ", None, "the Authorization header carries no key: send `Authorization: Bearer KEY`"),
    "an empty x-api-key": (None, b" ", "no API key: send `Authorization: Bearer KEY` or `x-api-key: KEY`"),
}


@pytest.mark.parametrize(("authorization", "x_api_key", "message"), BAD.values(), ids=BAD.keys())
def test_any_other_is_refused_with_the_reason(authorization: bytes | None, x_api_key: bytes | None, message: str) -> None:
    with pytest.raises(SitsError) as refused:
        GUARD.check(authorization, x_api_key, NOW)
    assert (refused.value.code, refused.value.status, refused.value.message) == (Code.UNAUTHENTICATED, 401, message)


def test_a_key_works_until_the_moment_it_expires() -> None:
    found = GUARD.check(bearer("old"), None, NOW - 0.001)
    assert found == KeyIdentity("old", expires=NOW)


MODES = {
    "auto without keys asks nobody": ("auto", [], False),
    "auto with a key asks": ("auto", KEYS, True),
    "auto with only a disabled key still asks": ("auto", [KEYS[4]], True),
    "required asks even without keys": ("required", [], True),
    "off asks nobody": ("off", KEYS, False),
}


@pytest.mark.parametrize(("mode", "keys", "asks"), MODES.values(), ids=MODES.keys())
def test_the_mode_says_who_is_asked(mode: str, keys: list[Key], asks: bool) -> None:
    guard = Authenticator(keys, mode)  # type: ignore[arg-type]
    assert guard.asks is asks
    if asks:
        with pytest.raises(SitsError):
            guard.check(b"Bearer nonsense", None, NOW)
    else:
        assert guard.check(b"Bearer nonsense", None, NOW) is None


def test_a_key_may_ask_for_what_its_list_allows() -> None:
    narrow, plain = KeyIdentity("narrow", frozenset({"a"})), KeyIdentity("plain")
    assert [narrow.allows("a"), narrow.allows("b"), plain.allows("b")] == [True, False, True]
    require_model(narrow, "a")
    require_model(None, "b")
    with pytest.raises(SitsError) as refused:
        require_model(narrow, "b")
    assert (refused.value.code, refused.value.param) == (Code.FORBIDDEN, "model")


def test_only_an_admin_passes_where_admins_are_asked_for() -> None:
    GUARD.require_admin(KeyIdentity("admin", admin=True))
    Authenticator([], "auto").require_admin(None)
    for identity in (None, KeyIdentity("plain")):
        with pytest.raises(SitsError) as refused:
            GUARD.require_admin(identity)
        assert refused.value.code is Code.FORBIDDEN


def test_a_new_key_is_kept_as_a_hash_and_works() -> None:
    made = new_key("team-a", random.Random(1).randbytes, models=["a"], admin=True, expires="2027-01-31T12:00:00Z")
    assert len(made.secret) == 48
    assert made.secret.startswith("sits-")
    assert made.key == Key(
        Metadata("team-a"), KeySpec(sha256(made.secret.encode()).hexdigest(), ["a"], True, "2027-01-31T12:00:00Z")
    )
    assert made.secret not in repr(made.key)
    found = Authenticator([made.key], "auto").check(b"Bearer " + made.secret.encode(), None, NOW)
    assert found == KeyIdentity("team-a", frozenset({"a"}), True, moment("2027-01-31T12:00:00Z"))


@pytest.mark.parametrize(
    ("name", "more"),
    [("", {}), ("with space", {}), ("ok", {"models": ["not ok!"]}), ("ok", {"expires": "tomorrow"})],
    ids=["no name", "a bad name", "a bad model", "a bad time"],
)
def test_a_key_that_no_configuration_would_take_is_not_made(name: str, more: dict[str, object]) -> None:
    with pytest.raises(SitsError) as refused:
        new_key(name, random.Random(1).randbytes, **more)  # type: ignore[arg-type]
    assert refused.value.code is Code.INVALID_REQUEST


TIMES = {
    "Z": ("2027-01-31T12:00:00Z", "2027-01-31T12:00:00Z"),
    "offset": ("2027-01-31T12:00:00+02:00", "2027-01-31T10:00:00Z"),
    "minutes": ("90m", "2023-11-14T23:43:20Z"),
    "hours": ("12h", "2023-11-15T10:13:20Z"),
    "days": ("30d", "2023-12-14T22:13:20Z"),
    "weeks": ("1w", "2023-11-21T22:13:20Z"),
}


@pytest.mark.parametrize(("text", "moment_"), TIMES.values(), ids=TIMES.keys())
def test_an_expiry_is_a_time_or_a_span(text: str, moment_: str) -> None:
    assert expiry(text, NOW) == moment_


@pytest.mark.parametrize("text", ["", "30", "0d", "d", "-1d", "1y", "2027-01-31T12:00:00", "2020-01-01T00:00:00Z", "999999w"])
def test_any_other_expiry_is_refused(text: str) -> None:
    with pytest.raises(SitsError) as refused:
        expiry(text, NOW)
    assert refused.value.code is Code.INVALID_REQUEST


@settings(max_examples=200)
@given(st.binary(max_size=80), st.booleans())
def test_no_header_does_anything_but_be_refused(junk: bytes, as_bearer: bool) -> None:
    header = b"Bearer " + junk if as_bearer else junk
    with pytest.raises(SitsError) as refused:
        GUARD.check(header, None, NOW)
    assert refused.value.code is Code.UNAUTHENTICATED


@settings(max_examples=100)
@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=5, max_size=60))
def test_a_refusal_shows_four_characters_at_the_most(secret: str) -> None:
    shown = hint(secret.encode())
    assert shown in (f"{len(secret)} characters", f"{secret[:4]}..., {len(secret)} characters")
    assert (secret[:4] in shown.partition(",")[0] and len(secret) >= 20) or shown == f"{len(secret)} characters"


def test_a_bad_expiry_is_found_when_the_configuration_is_compiled() -> None:
    with pytest.raises(SitsError) as refused:
        Authenticator([key("old", expires="2023-11-14")], "auto")
    assert refused.value.code is Code.INVALID_REQUEST
