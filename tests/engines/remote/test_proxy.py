from __future__ import annotations

import pytest

from sits.engines.remote.address import parse_address
from sits.engines.remote.proxy import Proxy, proxy_for

P = Proxy("proxy", 3128)
BOTH = {"HTTP_PROXY": "http://proxy:3128", "HTTPS_PROXY": "http://proxy:3128"}


@pytest.mark.parametrize(
    ("url", "environment", "proxy"),
    [
        ("http://model", {}, None),
        ("http://model", {"HTTP_PROXY": "http://proxy:3128"}, P),
        ("http://model", {"http_proxy": "proxy:3128"}, P),
        ("http://model", {"http_proxy": "http://proxy:3128", "HTTP_PROXY": "http://other:1"}, P),
        ("http://model", {"HTTP_PROXY": "http://proxy"}, Proxy("proxy", 80)),
        ("http://model", {"HTTP_PROXY": "http://[::2]:3128"}, Proxy("::2", 3128)),
        ("http://model", {"HTTPS_PROXY": "http://proxy:3128"}, None),
        ("https://model", {"HTTPS_PROXY": "http://proxy:3128"}, P),
        ("https://model", {"ALL_PROXY": "http://proxy:3128"}, P),
        ("http://model", {"all_proxy": "http://other:1", "HTTP_PROXY": "http://proxy:3128"}, P),
        ("http://model", {"HTTP_PROXY": "http://proxy:3128", "REQUEST_METHOD": "GET"}, None),
        ("http://model", {"http_proxy": "http://proxy:3128", "REQUEST_METHOD": "GET"}, P),
        ("http://model", {"HTTP_PROXY": ""}, None),
        ("http://model", {"HTTP_PROXY": "http://u%40x:p%3Aw@proxy:3128"}, Proxy("proxy", 3128, b"Basic dUB4OnA6dw==")),
        ("http://localhost:8000", BOTH, None),
        ("http://a.localhost", BOTH, None),
        ("http://127.8.9.1", BOTH, None),
        ("https://[::1]", BOTH, None),
        ("http://localhost.example", BOTH, P),
    ],
)  # fmt: skip
def test_the_environment_names_the_proxy(url: str, environment: dict[str, str], proxy: Proxy | None) -> None:
    assert proxy_for(parse_address(url), environment) == proxy


@pytest.mark.parametrize(
    ("rules", "url", "direct"),
    [
        ("*", "http://model", True),
        ("example.com", "http://example.com", True),
        ("example.com", "http://api.example.com", True),
        ("example.com", "http://badexample.com", False),
        (".example.com", "http://api.example.com", True),
        ("*.example.com", "http://api.example.com", True),
        ("EXAMPLE.com", "http://api.Example.COM", True),
        ("other, example.com ,x", "http://example.com", True),
        ("other example.com", "http://example.com", True),
        ("example.com:8000", "http://example.com:8000", True),
        ("example.com:8000", "http://example.com", False),
        ("10.0.0.0/8", "http://10.1.2.3", True),
        ("10.0.0.0/8", "http://11.1.2.3", False),
        ("10.0.0.1/8", "http://10.9.9.9", True),
        ("10.0.0.0/8", "http://ten.example", False),
        ("nonsense/8", "http://10.1.2.3", False),
        ("10.1.2.3", "http://10.1.2.3:99", True),
        ("2001:db8::1", "http://[2001:db8:0::1]", True),
        ("[2001:db8::1]:8000", "http://[2001:db8::1]:8000", True),
        ("[2001:db8::1]:8000", "http://[2001:db8::1]:8001", False),
        ("2001:db8::/32", "http://[2001:db8::7]", True),
        (".", "http://model", False),
        ("", "http://model", False),
    ],
)
def test_no_proxy_names_who_is_asked_directly(rules: str, url: str, direct: bool) -> None:
    assert (proxy_for(parse_address(url), {**BOTH, "NO_PROXY": rules}) is None) is direct


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("socks5://u:secret@proxy", "HTTP_PROXY is a socks5 proxy"),
        ("https://proxy", "HTTP_PROXY is a https proxy"),
        ("http://proxy:x", "HTTP_PROXY is not a URL"),
        ("http://", "HTTP_PROXY names no host"),
    ],
)
def test_a_proxy_that_is_not_spoken_is_refused(value: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        proxy_for(parse_address("http://model"), {"HTTP_PROXY": value})
    assert "secret" not in str(caught.value)


def test_a_proxy_that_is_not_spoken_does_not_matter_to_those_it_is_not_for() -> None:
    assert proxy_for(parse_address("http://model"), {"ALL_PROXY": "socks5://proxy", "NO_PROXY": "model"}) is None
