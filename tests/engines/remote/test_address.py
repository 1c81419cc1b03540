from __future__ import annotations

import pytest

from sits.engines.remote import Address, parse_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("http://10.0.0.7:8000", Address("http", "10.0.0.7", 8000)),
        ("HTTPS://API.Example.com", Address("https", "api.example.com", 443)),
        (" http://model/ ", Address("http", "model", 80)),
        ("http://model/openai/v1/", Address("http", "model", 80, "/openai/v1")),
        ("http://[2001:db8::1]:8000", Address("http", "2001:db8::1", 8000)),
        ("http://模型.例子/路径 a", Address("http", "xn--xgs754b.xn--fsqu00a", 80, "/%E8%B7%AF%E5%BE%84%20a")),
    ],
)
def test_a_base_url_is_parsed(url: str, address: Address) -> None:
    assert parse_address(url) == address


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("model:8000", "does not begin with http:// or https://"),
        ("ftp://model", "does not begin with http:// or https://"),
        ("", "does not begin with http:// or https://"),
        ("http://", "names no host"),
        ("http://:8000", "names no host"),
        ("http://model:0", "port 0"),
        ("http://model:99999", "is not a URL"),
        ("http://model:x", "is not a URL"),
        ("http://[::1", "is not a URL"),
        ("http://user:secret@model", "no user name or password"),
        ("http://model/?a=b", "a query or a fragment"),
        ("http://model/#x", "a query or a fragment"),
        ("http://mo del", "a character that no host name has"),
        ("http://模..型", "no form for DNS"),
    ],
)
def test_what_is_not_a_base_url_is_refused_with_the_reason(url: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        parse_address(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "origin", "authority"),
    [
        ("http://model", "http://model", "model:80"),
        ("https://model:8443/v1", "https://model:8443", "model:8443"),
        ("https://[::1]", "https://[::1]", "[::1]:443"),
    ],
)
def test_an_address_names_itself(url: str, origin: str, authority: str) -> None:
    address = parse_address(url)
    assert (address.origin, address.authority) == (origin, authority)
