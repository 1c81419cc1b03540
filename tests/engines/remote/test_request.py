from __future__ import annotations

import pytest

from sits.engines.base import Outgoing
from sits.engines.remote.address import parse_address
from sits.engines.remote.proxy import Proxy
from sits.engines.remote.request import HeadWriter

FIELDS = [(b"accept", b"*/*"), (b"x-name", "通义".encode())]


def head(request: Outgoing, url: str = "http://model:8000", proxy: Proxy | None = None) -> bytes:
    return HeadWriter(parse_address(url), proxy).write(request)


def test_a_post_has_its_length_and_its_fields_in_order() -> None:
    assert head(Outgoing(b"POST", b"/v1/x", FIELDS, b"12345")) == (
        "POST /v1/x HTTP/1.1\r\nhost: model:8000\r\ncontent-length: 5\r\naccept: */*\r\nx-name: 通义\r\n\r\n".encode()
    )


@pytest.mark.parametrize(
    ("method", "line"),
    [(b"POST", b"content-length: 0\r\n"), (b"PUT", b"content-length: 0\r\n"), (b"GET", b""), (b"HEAD", b""), (b"DELETE", b"")],
)
def test_an_empty_body_has_a_length_only_where_one_is_expected(method: bytes, line: bytes) -> None:
    assert head(Outgoing(method, b"/x", [], b"")) == b"%b /x HTTP/1.1\r\nhost: model:8000\r\n%b\r\n" % (method, line)


@pytest.mark.parametrize(
    ("url", "line", "host"),
    [
        ("http://model", b"GET /x HTTP/1.1", b"model"),
        ("https://model", b"GET /x HTTP/1.1", b"model"),
        ("https://model:80", b"GET /x HTTP/1.1", b"model:80"),
        ("http://[::1]:8000/base/", b"GET /base/x HTTP/1.1", b"[::1]:8000"),
        ("http://模型.example/路", b"GET /%E8%B7%AF/x HTTP/1.1", b"xn--xgs754b.example"),
    ],
)
def test_the_target_is_named_as_the_address_says(url: str, line: bytes, host: bytes) -> None:
    assert head(Outgoing(b"GET", b"/x", [], b""), url) == line + b"\r\nhost: " + host + b"\r\n\r\n"


def test_a_proxy_gets_the_absolute_form_and_its_credential() -> None:
    proxy = Proxy("proxy", 3128, b"Basic dTpw")
    assert head(Outgoing(b"GET", b"/x", [], b""), "http://model/base", proxy) == (
        b"GET http://model/base/x HTTP/1.1\r\nhost: model\r\nproxy-authorization: Basic dTpw\r\n\r\n"
    )


def test_a_tunnelled_target_never_sees_the_proxys_credential() -> None:
    proxy = Proxy("proxy", 3128, b"Basic dTpw")
    assert head(Outgoing(b"GET", b"/x", [], b""), "https://model", proxy) == b"GET /x HTTP/1.1\r\nhost: model\r\n\r\n"


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (Outgoing(b"GET", b"/x", [(b"authorization", b"Bearer sk-secret\n")], b""), "authorization"),
        (Outgoing(b"GET", b"/x", [(b"x-a", b"b\r\nx-evil: 1")], b""), "x-a"),
        (Outgoing(b"GET", b"/x", [(b"x-a\rb", b"c")], b""), "x-a"),
        (Outgoing(b"GET", b"/x", [(b"x-a", b"b\0")], b""), "x-a"),
        (Outgoing(b"GET", b"/x HTTP/1.1\r\nx-evil: 1", [], b""), "request line"),
        (Outgoing(b"GET", b"/x y", [], b""), "request line"),
        (Outgoing(b"GET\r\nx", b"/x", [], b""), "request line"),
    ],
)
def test_nothing_breaks_out_of_its_place_and_no_value_is_shown(request_: Outgoing, said: str) -> None:
    with pytest.raises(ValueError, match=said) as caught:
        head(request_)
    assert "secret" not in str(caught.value)
