"""What a card says, which words count, and whose rank comes first."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resources.kinds import Metadata, Model, ModelSpec, Promise
from sits.routing.registry import Found, Lexical, ServiceCard, card_of, fused
from sits.routing.registry.card import MOST_PARTS, spoken
from sits.routing.registry.lexical import Match
from sits.routing.registry.words import words


def model(name: str, **spec: Any) -> Model:
    labels = spec.pop("labels", {})
    return Model(Metadata(name, labels=labels), ModelSpec(**{"engine": "openai", "endpoint": "http://a:1", **spec}))


def test_a_card_has_everything_that_tells_what_a_model_is_for() -> None:
    schema = {
        "type": "object",
        "properties": {"accountId": {}, "payments": {"type": "array", "items": {"properties": {"amount": {}}}}},
    }
    document = {
        "openapi": "3.0.0",
        "info": {"title": "Payment guard"},
        "paths": {
            "/score": {"post": {"summary": "Score one payment"}, "parameters": []},
            "/x": {"get": {"operationId": "listRules"}},
        },
    }
    found = card_of(
        model(
            "txn-behaviour",
            description="Scores  card payments.",
            domains=["risk", "risk"],
            promise=Promise(350.0, 0.924),
            input_schema=schema,
            output_schema={"properties": {"anomalyScore": {}}},
            openapi=document,
            labels={"team": "payments"},
        ),
        frozenset(("chat",)),
    )
    assert found == ServiceCard(
        name="txn-behaviour",
        description="Scores card payments.",
        domains=("risk",),
        capabilities=frozenset(("chat",)),
        fields=("accountId", "payments", "amount", "anomalyScore"),
        operations=("Payment guard", "Score one payment", "list rules"),
        tags=("p95 350 ms", "accuracy 0.924"),
        labels={"team": "payments"},
        address="http://a:1",
    )
    assert found.text == (
        "txn behaviour: Scores card payments. risk. Payment guard, Score one payment, list rules "
        "account id, payments, amount, anomaly score"
    )


def test_schemas_that_are_deep_wide_or_no_schemas_make_a_card_all_the_same() -> None:
    deep: Any = {"properties": {"a": {}}}
    for _ in range(50):
        deep = {"properties": {"b": deep}, "allOf": [True, deep, 3]}
    wide = {"properties": {f"field{n}": {} for n in range(1000)}}
    assert card_of(model("deep", input_schema=deep), frozenset()).fields == ("b",)
    assert len(card_of(model("wide", input_schema=wide), frozenset()).fields) == MOST_PARTS
    assert card_of(model("odd", openapi={"info": 1, "paths": {"/": {"get": 7}, "/x": 3}}), frozenset()).operations == ()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        pytest.param("Queries of the databases", ["query", "database"], id="plural"),
        pytest.param("analysis class bus", ["analysis", "class", "bus"], id="no plural"),
        pytest.param("欺诈检测", ["欺诈", "诈检", "检测"], id="Chinese in pairs"),
        pytest.param("查SQL库", ["查", "sql", "库"], id="mixed"),
        pytest.param("probabilityOfDefault", ["probability", "default"], id="identifier"),
        pytest.param("?!  ", [], id="nothing"),
    ],
)
def test_words_are_compared_without_plural_and_chinese_in_pairs(text: str, found: list[str]) -> None:
    assert words(text) == found


CARDS = [
    ServiceCard("sql-writer", "Turns questions into queries for PostgreSQL.", ("databases",)),
    ServiceCard("pay-gw-01", "", ("checkout", "refunds")),
    ServiceCard("aml", "沿着资金流向查找可疑的转账。", ("反洗钱",)),
    ServiceCard("search", "Finds pictures.", ("media",), labels={"family": "clip"}),
]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        pytest.param("sql-writer", ["sql-writer"], id="as written"),
        pytest.param("SQL Writer", ["sql-writer"], id="other case and separators"),
        pytest.param("调用 pay_gw_01 退款", ["pay-gw-01"], id="within a Chinese sentence"),
        pytest.param("search", ["search"], id="a name of one word, alone"),
        pytest.param("search pictures", [], id="a name of one word among others is a word"),
        pytest.param("rewriter", [], id="a part of a word"),
    ],
)
def test_a_name_is_known_by_its_words(query: str, names: list[str]) -> None:
    assert Lexical(CARDS).called(query) == names


NFC, NFD = "café-menü", "cafe\u0301-menu\u0308"
NAMED = [ServiceCard("Chat"), ServiceCard("chat"), ServiceCard(NFC), ServiceCard("客服-Δ")]


@pytest.mark.parametrize(
    ("query", "names"),
    [
        pytest.param("Chat", ["Chat", "chat"], id="the exact one first"),
        pytest.param(" chat ", ["chat", "Chat"], id="the exact one first, the other way round"),
        pytest.param("CHAT", ["Chat", "chat"], id="all that differ in case only"),
        pytest.param(NFD, [NFC], id="put together in another way"),
        pytest.param(NFD.upper(), [NFC], id="and in another case"),
        pytest.param("CAFÉ MENÜ", [NFC], id="and with other separators"),
        pytest.param("客服 δ", ["客服-Δ"], id="Chinese and Greek"),
    ],
)
def test_names_that_differ_in_case_or_in_how_they_are_put_together_are_all_found(query: str, names: list[str]) -> None:
    assert Lexical(NAMED).called(query) == names


def test_a_name_is_told_from_the_same_one_put_together_in_another_way() -> None:
    both = Lexical([ServiceCard(NFC), ServiceCard(NFD)])
    assert (both.called(NFC), both.called(NFD)) == ([NFC, NFD], [NFD, NFC])


def test_words_are_alike_however_they_are_put_together() -> None:
    assert words(NFD) == words(NFC)


@pytest.mark.parametrize(
    ("query", "names"),
    [
        pytest.param("refund", ["pay-gw-01"], id="singular finds plural"),
        pytest.param("反洗钱", ["aml"], id="Chinese subject"),
        pytest.param("clip", ["search"], id="label"),
        pytest.param("refund of a train ticket bought yesterday in Berlin", [], id="one word of many says too little"),
        pytest.param("the of and", [], id="only words that tell nothing"),
    ],
)
def test_cards_are_found_by_words_that_say_enough(query: str, names: list[str]) -> None:
    assert [match.name for match in Lexical(CARDS).search(query)] == names


def test_no_cards_find_nothing() -> None:
    empty = Lexical(())
    assert (empty.called("x"), empty.search("x"), fused([], [], [], frozenset(), 5)) == ([], [], [])


def test_a_name_goes_first_then_who_is_in_both_lists() -> None:
    semantic = [("a", 0.6), ("b", 0.5), ("c", 0.4), ("d", 0.1)]
    lexical = [Match("b", 3.0, ("refund",)), Match("c", 1.0, ("refund",))]
    assert fused(["d"], lexical, semantic, frozenset("abcd"), 3) == [
        Found("d", 0.1, "called so; meaning 0.10"),
        Found("b", 0.5, "words: refund; meaning 0.50"),
        Found("c", 0.4, "words: refund; meaning 0.40"),
    ]


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)


@settings(max_examples=100)
@given(called=NAMES, lexical=NAMES, semantic=NAMES, allowed=st.frozensets(st.sampled_from("abcdefgh")), top=st.integers(1, 10))
def test_what_is_found_is_allowed_once_and_names_go_first(
    called: list[str], lexical: list[str], semantic: list[str], allowed: frozenset[str], top: int
) -> None:
    matches = [Match(name, 1.0, ("w",)) for name in lexical]
    found = [one.name for one in fused(called, matches, [(name, 0.5) for name in semantic], allowed, top)]
    everybody = ({*called, *lexical, *semantic}) & allowed
    assert len(found) == len(set(found)) == min(top, len(everybody))
    assert set(found) <= everybody
    first = [name for name in called if name in allowed]
    assert found[: len(first)] == first[:top]


@given(name=st.text(max_size=40))
def test_a_name_of_any_text_is_spoken_once_and_for_all(name: str) -> None:
    assert spoken(spoken(name)) == spoken(name)
