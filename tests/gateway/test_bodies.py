"""Bodies of admin pages: what is wrong with them is told by field, in our own words."""

from __future__ import annotations

import msgspec
import pytest

from sits.gateway.bodies import LARGEST, MOST, body_of
from sits.gateway.registry_pages import FindQuery, Import
from sits.gateway.switch_pages import SwitchCommand
from sits.inner.errors import Code, SitsError

REFUSED = {
    "an empty query": (FindQuery, {"query": ""}, "query", "query: the text is empty, give at least 1 character"),
    "a field that is misspelt, and another fault": (
        FindQuery, {"qery": "x", "top_k": 0}, "qery",
        'qery: unknown key, did you mean "query"?; '
        "top_k: 0 is out of range, give a whole number of at least 1 and of at most 100"),
    "no query": (FindQuery, {}, "query", "query: missing, give text"),
    "no object": (FindQuery, [], None, "must be a mapping, not a list"),
    "a choice, and an entry": (
        Import, {"origin": "consl", "entries": [{"name": " a"}]}, "origin",
        'origin: "consl" is not one of consul, eureka, did you mean "consul"?; '
        'entries[0].name: " a" is not a name on one line that does not begin with a blank'),
    "a command": (SwitchCommand, {"why": 3}, "why", 'why: must be text, not a number (3), put it in quotes: "3"'),
    "very many": (
        FindQuery, {"query": "x", "capabilities": list(range(MOST + 5))}, "capabilities[0]",
        "; ".join(f'capabilities[{n}]: must be text, not a number ({n}), put it in quotes: "{n}"' for n in range(MOST))
        + "; and 5 more"),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "body", "param", "said"), REFUSED.values(), ids=REFUSED)
def test_every_fault_is_told_and_the_first_is_the_parameter(kind: type, body: object, param: str | None, said: str) -> None:
    with pytest.raises(SitsError) as caught:
        body_of(msgspec.json.encode(body), kind)
    error = caught.value
    assert (error.code, error.param, error.message) == (Code.INVALID_REQUEST, param, f"the body cannot be used: {said}")


def test_of_a_large_body_the_first_fault_is_told() -> None:
    body = msgspec.json.encode({"query": "x" * LARGEST, "top_k": "many"})
    with pytest.raises(SitsError) as caught:
        body_of(body, FindQuery)
    assert caught.value.param == "query"
    assert "$" not in caught.value.message


def test_what_is_no_json_is_said_to_be_none() -> None:
    for body in (b"", b"{", b'{"query": "\xff"}'):
        with pytest.raises(SitsError, match="the body is not JSON"):
            body_of(body, FindQuery)


@pytest.mark.parametrize("rest", [b"1e400", b"NaN", b'"\xff"', b"[" * 5000, b"9" * 5000])
def test_what_cannot_be_read_beyond_a_fault_is_refused_too(rest: bytes) -> None:
    with pytest.raises(SitsError) as caught:
        body_of(b'{"query": 3, "x": ' + rest + b"}", FindQuery)
    assert caught.value.code is Code.INVALID_REQUEST


def test_a_good_body_is_typed() -> None:
    assert body_of(b'{"query": "\xe6\xb3\x95\xe5\xbe\x8b", "labels": {"a": "b"}}', FindQuery) == FindQuery(
        "法律", labels={"a": "b"}
    )
