"""Semantic contracts: which clause a call would break, in which words."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.errors import SitsError
from sits.resources.semantics import SemanticSpec
from sits.routing.scheduling.base import Facts
from sits.routing.semantics import NOTHING, Grounds, broken, grounds

NOW = datetime(2026, 11, 30, 12, tzinfo=UTC).timestamp()
SCOPE, TIME, EMBEDDING = "x-sits-grounding-scope", "x-sits-grounding-time", "x-sits-embedding"


def facts(operation: str = "chat", body: bytes = b"{}", **headers: str) -> Facts:
    return Facts(operation, frozenset(), {name.replace("_", "-").encode(): said.encode() for name, said in headers.items()}, body)


def said(**headers: str) -> Grounds:
    return grounds(facts(**{f"x-sits-{name}": value for name, value in headers.items()}))


READ: dict[str, tuple[dict[str, str], Grounds]] = {
    "nothing": ({}, NOTHING),
    "scopes": ({"grounding-scope": " 手册, prices ,,"}, Grounds(frozenset({"手册", "prices"}))),
    "scopes, percent-encoded": ({"grounding-scope": "%E6%89%8B%E5%86%8C,100%"}, Grounds(frozenset({"手册", "100%"}))),
    "a time": ({"grounding-time": "2026-11-30T12:00:00Z"}, Grounds(oldest=NOW)),
    "a time elsewhere": ({"grounding-time": "2026-11-30T20:00:00+08:00"}, Grounds(oldest=NOW)),
    "a date": ({"grounding-time": "2026-11-30"}, Grounds(oldest=NOW - 12 * 3600)),
    "the oldest of several": ({"grounding-time": "2026-11-30T12:00:00Z, 2026-11-30"}, Grounds(oldest=NOW - 12 * 3600)),
    "all of an embedding": ({"embedding": "bge-m3@1.5/1024"}, Grounds(model="bge-m3", version="1.5", dimension=1024)),
    "its model": ({"embedding": "bge-m3"}, Grounds(model="bge-m3")),
    "a model with a slash": ({"embedding": "BAAI/bge-m3"}, Grounds(model="BAAI/bge-m3")),
    "all, with a slash": ({"embedding": "BAAI/bge-m3@v2/768"}, Grounds(model="BAAI/bge-m3", version="v2", dimension=768)),
    "model and dimension": ({"embedding": "BAAI/bge-m3/768"}, Grounds(model="BAAI/bge-m3", dimension=768)),
    "a version": ({"embedding": "@v2"}, Grounds(version="v2")),
    "a dimension": ({"embedding": "/768"}, Grounds(dimension=768)),
    "a Chinese model": ({"embedding": "向量@一/8"}, Grounds(model="向量", version="一", dimension=8)),
}


@pytest.mark.parametrize(("headers", "expected"), READ.values(), ids=READ)
def test_what_a_request_says_of_its_grounds(headers: dict[str, str], expected: Grounds) -> None:
    assert said(**headers) == expected


@given(st.lists(st.text(st.characters(exclude_categories=["Cs", "Cc"], exclude_characters=",%"), min_size=1), max_size=4))
@settings(max_examples=100, deadline=None)
def test_scopes_are_the_same_as_they_are_and_percent_encoded(names: list[str]) -> None:
    wanted = {name.strip() for name in names} - {""}
    assert said(**{"grounding-scope": ",".join(names)}).scopes == wanted
    assert said(**{"grounding-scope": ",".join(quote(one) for one in wanted)}).scopes == wanted


BAD = {
    "no time": (TIME, "gestern"),
    "an empty time": (TIME, " "),
    "a time in Chinese": (TIME, "昨天"),
    "one of two times": (TIME, "2026-11-30, soon"),
    "a year that no calendar has": (TIME, "99999-01-01"),
    "two signs": (EMBEDDING, "a@b@c"),
    "a version that is none": (EMBEDDING, "@@"),
    "a slash too many": (EMBEDDING, "a@b/c"),
    "blanks": (EMBEDDING, "a b"),
    "too many scopes": (SCOPE, "x," * 3000),
    "too long a name": (EMBEDDING, "x" * 5000),
}


@pytest.mark.parametrize(("header", "value"), BAD.values(), ids=BAD)
def test_what_cannot_be_read_is_refused_with_the_header_named(header: str, value: str) -> None:
    with pytest.raises(SitsError) as caught:
        grounds(facts(**{header: value}))
    assert (caught.value.code, caught.value.param) == ("invalid_request", header)
    assert caught.value.message.startswith(header)


NOT_YET = {
    "years ahead": ("2029-01-01T00:00:00Z", False),
    "ahead by more than clocks differ": ("2026-11-30T12:05:01Z", False),
    "ahead as clocks differ": ("2026-11-30T12:05:00Z", True),
    "a day that has begun in Kiribati": ("2026-12-01", True),
    "a day that has begun nowhere": ("2026-12-02", False),
    "a later one of two": ("2026-11-30,2026-12-24T18:00:00+01:00", False),
    "now, elsewhere": ("2026-12-01T02:00:00+14:00", True),
}


@pytest.mark.parametrize(("said", "good"), NOT_YET.values(), ids=NOT_YET)
def test_no_document_is_from_the_future(said: str, good: bool) -> None:
    asked = facts(**{TIME: said})
    asked.wall = NOW
    if good:
        assert grounds(asked).oldest is not None
        return
    with pytest.raises(SitsError, match=f"{TIME} .* is in the future: .*grounding.maxAgeHours") as caught:
        grounds(asked)
    assert (caught.value.code, caught.value.param) == ("invalid_request", TIME)


@given(st.binary(max_size=60))
@settings(max_examples=100, deadline=None)
def test_whatever_is_in_the_headers_is_read_or_refused(raw: bytes) -> None:
    for header in (SCOPE, TIME, EMBEDDING):
        refused = ""
        try:
            found = grounds(Facts("chat", frozenset(), {header.encode(): raw}, b""))
        except SitsError as error:
            refused = error.param or "something"
        assert refused in ("", header)
        assert refused or isinstance(found, Grounds)


@pytest.mark.parametrize(
    ("body", "dimension"),
    [
        (b'{"dimensions": 256}', 256),
        (b'{"dimensions": null}', 0),
        (b'{"dimensions": -3}', 0),
        (b'{"dimensions": "many"}', 0),
        (b'{"input": "\\"dimensions\\""}', 0),
        (b"{}", 0),
    ],
)
def test_an_embedding_request_says_its_dimension_in_the_body(body: bytes, dimension: int) -> None:
    assert grounds(facts("embeddings", body)).dimension == dimension
    assert grounds(facts("chat", body)) == NOTHING
    both = grounds(facts("embeddings", body, **{EMBEDDING: "m/8"}))
    assert both == Grounds(model="m", dimension=dimension or 8)


GROUNDED = {"grounding": {"scopes": ["手册", "prices"], "maxAgeHours": 24}}
VECTORS = {"embedding": {"model": "bge", "version": "1", "dimension": 1024}}
CLAUSES: dict[str, tuple[dict[str, Any], Grounds, str, str]] = {
    "nothing wanted": ({}, NOTHING, "legal", ""),
    "a domain": ({"intents": ["legal", "tax"]}, NOTHING, "tax", ""),
    "another domain": ({"intents": ["legal", "tax"]}, NOTHING, "code", "intents: it answers for legal, tax, not for code"),
    "of no domain": ({"intents": ["legal"]}, NOTHING, "unknown", "intents: it answers for legal, not for unknown"),
    "a domain that nobody has read": ({"intents": ["legal"]}, NOTHING, "", ""),
    "good grounds": (GROUNDED, Grounds(frozenset({"手册"}), NOW - 24 * 3600), "", ""),
    "all scopes": (GROUNDED, Grounds(frozenset({"手册", "prices"}), NOW), "", ""),
    "one scope too many": (
        GROUNDED, Grounds(frozenset({"手册", "法规"}), NOW), "", "grounding.scopes: 法规 is not among 手册, prices",
    ),
    "no scope": (
        GROUNDED, Grounds(oldest=NOW), "", f"grounding.scopes: the request does not say its scope ({SCOPE})",
    ),
    "too old": (
        GROUNDED, Grounds(frozenset({"手册"}), NOW - 25 * 3600), "",
        "grounding.maxAgeHours: documents are 25.0 hours old, 24 are allowed",
    ),
    "no age": (
        GROUNDED, Grounds(frozenset({"手册"})), "",
        f"grounding.maxAgeHours: the request does not say how old its documents are ({TIME})",
    ),
    "nothing, where it need not": ({"grounding": {**GROUNDED["grounding"], "required": False}}, NOTHING, "", ""),
    "wrong, where it need not": (
        {"grounding": {**GROUNDED["grounding"], "required": False}}, Grounds(frozenset({"法规"})), "",
        "grounding.scopes: 法规 is not among 手册, prices",
    ),
    "these vectors": (VECTORS, Grounds(model="bge", version="1", dimension=1024), "", ""),
    "vectors not said": (VECTORS, NOTHING, "", ""),
    "another model": (VECTORS, Grounds(model="e5"), "", "embedding.model: e5, not bge"),
    "another version": (VECTORS, Grounds(model="bge", version="2"), "", "embedding.version: 2, not 1"),
    "another dimension": (VECTORS, Grounds(dimension=768), "", "embedding.dimension: 768, not 1024"),
    "a version that is not declared": ({"embedding": {"model": "bge"}}, Grounds(version="2", dimension=3), "", ""),
    "the first broken clause is named": (
        {"intents": ["legal"], **GROUNDED}, NOTHING, "code", "intents: it answers for legal, not for code",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("spec", "request_grounds", "domain", "expected"), CLAUSES.values(), ids=CLAUSES)
def test_the_clause_that_a_call_would_break_is_named(
    spec: dict[str, Any], request_grounds: Grounds, domain: str, expected: str
) -> None:
    found = broken(msgspec.convert(spec, SemanticSpec), request_grounds, domain, NOW)
    assert found == (f"breaks its contract: {expected}" if expected else "")
