"""Where callbacks may go: where Settings say, and nowhere that only looks like it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.resilience.callback import LONGEST_URL, callback

ALLOWED = ["https://hooks.example.com/sits/", "http://10.0.0.7:8080/in", "https://[2001:db8::1]/h/", "not a url"]
TAKEN = [
    "https://hooks.example.com/sits/",
    "https://hooks.example.com/sits/a/b?job=1&x=%20",
    "HTTPS://Hooks.Example.com:443/sits/a",
    "http://10.0.0.7:8080/in",
    "http://10.0.0.7:8080/in/deep",
    "http://10.0.0.7:8080/in?x=1",
    "https://[2001:db8::1]/h/x",
]
REFUSED = [
    "",
    "hooks.example.com/sits/",
    "//hooks.example.com/sits/",
    "http://hooks.example.com/sits/",
    "https://hooks.example.com/",
    "https://hooks.example.com/sits",
    "https://hooks.example.com/sitsy",
    "https://hooks.example.com:444/sits/",
    "https://hooks.example.com.evil.org/sits/",
    "https://evil.org/https://hooks.example.com/sits/",
    "https://hooks.example.com@evil.org/sits/",
    "https://user:pw@hooks.example.com/sits/",
    "https://@hooks.example.com/sits/",
    "https://hooks.example.com./sits/",
    "https://hooks.example.com/sits/../admin",
    "https://hooks.example.com/sits/%2e%2E/admin",
    "https://hooks.example.com/sits/.%2e/admin",
    "https://hooks.example.com/sits/..%2fadmin",
    "https://hooks.example.com/sits/a%2Fb",
    "https://hooks.example.com/sits/%5c..",
    "https://hooks.example.com/sits/..;/admin",
    "https://hooks.example.com/sits/a\\b",
    "https://hooks.example.com\\@evil.org/sits/",
    "https://hooks.example.com/sits/#x",
    "https://hooks.example.com/sits/ x",
    "https://hooks.example.com/sits/\r\nx: y",
    "https://hooks.example.com/sits/\x00",
    "https://hooks.example.com/sits/" + "a" * LONGEST_URL,
    "https://hooks.example.com:99999/sits/",
    "https://hooks.example.com:x/sits/",
    "https://[2001:db8::1/h/",
    "https://höoks.example.com/sits/",
    "https://例子.example.com/sits/",
    "ftp://hooks.example.com/sits/",
    "file:///etc/passwd",
    "http://10.0.0.7:8080/into",
    "http://10.0.0.7/in",
    "http://167772167:8080/in",
]


@pytest.mark.parametrize("url", TAKEN)
def test_what_begins_with_an_allowed_url_is_taken(url: str) -> None:
    assert callback(url.encode(), ALLOWED) == url


@pytest.mark.parametrize("url", REFUSED)
def test_everything_else_is_refused_by_the_name_of_the_field(url: str) -> None:
    with pytest.raises(SitsError) as refused:
        callback(url.encode(), ALLOWED)
    assert (refused.value.code, refused.value.param) == (Code.INVALID_REQUEST, "x-sits-callback")
    assert "codec" not in refused.value.message, "what Python says of bytes is no help"


def test_who_wants_no_call_gets_none_and_where_none_is_allowed_every_one_is_refused() -> None:
    assert callback(None, ALLOWED) is None
    with pytest.raises(SitsError):
        callback(b"https://hooks.example.com/sits/", [])


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet="htps:/.@#?\\%2e;[]abc ", max_size=40))
def test_whatever_is_taken_begins_with_scheme_host_and_path_as_they_are_written(rest: str) -> None:
    try:
        url = callback(b"https://hooks.example.com/sits" + rest.encode(), ALLOWED)
    except SitsError:
        return
    assert url is not None
    assert url.startswith("https://hooks.example.com/sits/")
    assert ".." not in url.partition("?")[0].split("/")
