"""What is personal is taken out, what is not stays, and what was JSON is JSON still."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resilience.shadow.scrub import DEEPEST, IBAN_LENGTHS, OF_THE_USER, STRUCTURAL, Scrubber, Unscrubbable

TEXTS = [
    ("an address", "mail alice@example.com now", "mail <EMAIL_1> now"),
    ("an address in Chinese", "邮箱是alice@example.com。谢谢", "邮箱是<EMAIL_1>。谢谢"),
    ("an address of full width", "请写信给ａｌｉｃｅ＠ｅｘａｍｐｌｅ．ｃｏｍ", "请写信给<EMAIL_1>"),
    ("a Chinese address", "请写信给 张三@公司.cn，谢谢", "请写信给 <EMAIL_1>，谢谢"),
    ("the same twice, in other letters", "a@b.org, A@B.org, c@b.org", "<EMAIL_1>, <EMAIL_1>, <EMAIL_2>"),
    ("a mobile", "电话13800138000，请回电", "电话<PHONE_1>，请回电"),
    (
        "a mobile in groups is the same mobile",
        "138 0013 8000 / 138-0013-8000 / +86 13800138000",
        "<PHONE_1> / <PHONE_1> / <PHONE_1>",
    ),
    ("a mobile of full width", "手机：１３８００１３８０００", "手机：<PHONE_1>"),
    ("a landline", "座机 010-62345678 或 (0755)88886666", "座机 <PHONE_1> 或 <PHONE_2>"),
    ("a number of the world", "call +49 30 901820 or +1 (415) 555-2671", "call <PHONE_1> or <PHONE_2>"),
    ("a number of North America", "call 415-555-2671 or (415) 555 2671", "call <PHONE_1> or <PHONE_1>"),
    ("an identity number", "身份证号11010519491231002X。", "身份证号<ID_1>。"),
    ("a card", "4111 1111 1111 1111, 4111-1111-1111-1111", "<CARD_1>, <CARD_1>"),
    ("a card of American Express", "pay with 378282246310005", "pay with <CARD_1>"),
    ("an account", "IBAN DE89 3704 0044 0532 0130 00 BITTE", "IBAN <IBAN_1> BITTE"),
    ("an account without spaces", "iban gb82west12345698765432!", "iban <IBAN_1>!"),
    ("an address of the network", "from 203.0.113.9:8080", "from <IP_1>:8080"),
    ("addresses of IPv6", "2001:db8::1 and 2001:0db8:0:0:0:0:0:1", "<IP_1> and <IP_1>"),
    ("a URL with a password", "see (https://bob:pw@host.com/x).", "see (<URL_1>)."),
    ("a URL with a token", "GET https://x.y/a?b=1&token=abc 好", "GET <URL_1> 好"),
    ("a database", "postgres://u:p@h:5432/db，不要", "<URL_1>，不要"),
    ("several kinds", "张三 13800138000 a@b.org 10.1.2.3", "张三 <PHONE_1> <EMAIL_1> <IP_1>"),
]
STAY = [
    ("nothing", ""),
    ("plain words", "The quick brown fox, 快速的狐狸"),
    ("a number with a wrong check digit", "110105194912310021"),
    ("a card with a wrong check digit", "4111111111111112"),
    ("an account with a wrong check digit", "GB83 WEST 1234 5698 7654 32"),
    ("an account of no country", "ZZ82 WEST 1234 5698 7654 32"),
    ("a date that is none", "110105194902300029"),
    ("a time", "at 12:30:45 on 2024-01-31"),
    ("a number with a dot", "3.14159265358979 and 1,234,567.89"),
    ("a version", "v1.2.3.4 and 1.2.3"),
    ("a scope of C++", "std::vector<int> a::b"),
    ("an order", "order 20240101123456"),
    ("milliseconds", "1700000000000"),
    ("a URL", "https://example.com/@user?page=2#top"),
    ("a decorator", "@app.get and user@ and @b.org"),
    ("a hash", "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"),
    ("a price", "价格是12.5元，共1000件"),
]


@pytest.mark.parametrize(("text", "expected"), [row[1:] for row in TEXTS], ids=[row[0] for row in TEXTS])
def test_what_is_personal_has_a_placeholder(text: str, expected: str) -> None:
    assert Scrubber().text(text) == expected


@pytest.mark.parametrize("text", [row[1] for row in STAY], ids=[row[0] for row in STAY])
def test_what_is_not_personal_stays(text: str) -> None:
    assert Scrubber().text(text) == text


def test_one_thing_has_one_placeholder_in_all_that_one_scrubber_reads() -> None:
    scrubber = Scrubber()
    assert scrubber.text("a@b.org and c@b.org") == "<EMAIL_1> and <EMAIL_2>"
    assert scrubber.text("answer to c@b.org") == "answer to <EMAIL_2>"
    assert scrubber.found == {"EMAIL": 2}


FOUND = ["alice@example.com", "13800138000", "11010519491231002X", "4111111111111111", "DE89370400440532013000", "203.0.113.9",
         "+14155552671", "https://bob:secret@host.com/x"]  # fmt: skip
AROUND = st.text(alphabet=st.characters(codec="utf-8", exclude_characters="@"), max_size=20)


@settings(max_examples=100, deadline=None)
@given(before=AROUND, after=AROUND, found=st.sampled_from(FOUND))
def test_whatever_stands_around_it_apart_it_is_found(before: str, after: str, found: str) -> None:
    scrubbed = Scrubber().text(f"{before} \n{found}\n {after}")
    assert found not in scrubbed


@settings(max_examples=100, deadline=None)
@given(st.lists(st.one_of(st.sampled_from(FOUND), st.text(max_size=12), st.sampled_from([" ", "，", "\n", "-", "0", "@", "."]))))
def test_a_second_pass_finds_nothing_more(pieces: list[str]) -> None:
    once = Scrubber().text("".join(pieces))
    assert Scrubber().text(once) == once


JSONS = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text(max_size=12),
              st.sampled_from(FOUND)),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
    max_leaves=12,
)  # fmt: skip


def shape(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: shape(held) for name, held in value.items()}
    return [shape(one) for one in value] if isinstance(value, list) else type(value)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(max_size=8).filter(lambda name: name not in OF_THE_USER), JSONS, max_size=4))
def test_json_keeps_its_names_and_types_and_all_that_is_no_text(value: dict[str, Any]) -> None:
    scrubbed = json.loads(Scrubber().json(json.dumps(value).encode()))
    assert shape(scrubbed) == shape(value)
    assert all(found not in json.dumps(_values(scrubbed)) for found in FOUND)


def _values(value: Any) -> Any:
    """Without what is a word of the protocol."""
    if isinstance(value, dict):
        return [_values(held) for name, held in value.items() if not (name in STRUCTURAL and isinstance(held, str))]
    return [_values(one) for one in value] if isinstance(value, list) else value


PICTURE = "data:image/png;base64,138001380001"


def test_a_request_is_scrubbed_where_it_has_words_and_nowhere_else() -> None:
    arguments = json.dumps({"to": "a@b.org", "tel": 13800138000, "n": 1.5, "ok": True, "a@b.org": [None]})
    body = {
        "model": "gpt-4@138", "user": "alice", "metadata": {"tel": "13800138000"}, "seed": 13800138000, "temperature": 0.70,
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "我是 a@b.org"}, {"type": "image_url", "image_url": {"url": PICTURE}}]},
            {"role": "assistant", "tool_calls": [{"id": "13800138000", "function": {"name": "send", "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": "13800138000", "content": '[{"ip": "10.1.2.3"}, "not json {"]'},
            {"role": "user", "content": '{"broken": 13800138000'},
        ],
    }  # fmt: skip
    assert json.loads(Scrubber().json(json.dumps(body).encode())) == {
        "model": "gpt-4@138", "seed": 13800138000, "temperature": 0.7,
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "我是 <EMAIL_1>"}, {"type": "image_url", "image_url": {"url": PICTURE}}]},
            {"role": "assistant", "tool_calls": [{"id": "13800138000", "function": {
                "name": "send", "arguments": '{"to":"<EMAIL_1>","tel":"<PHONE_1>","n":1.5,"ok":true,"<EMAIL_1>":[null]}'}}]},
            {"role": "tool", "tool_call_id": "13800138000", "content": '[{"ip":"<IP_1>"},"not json {"]'},
            {"role": "user", "content": '{"broken": <PHONE_1>'},
        ],
    }  # fmt: skip


REFUSED = [
    ("no JSON", b"{"),
    ("a number that is none", b'{"a": NaN}'),
    ("too deep", b'{"a":' + b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1) + b"}"),
    ("far too deep", b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    ("too full", json.dumps({"a": " ".join(f"{n}@b.org" for n in range(10_001))}).encode()),
]


@pytest.mark.parametrize("body", [row[1] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_be_scrubbed_is_refused(body: bytes) -> None:
    with pytest.raises(Unscrubbable):
        Scrubber().json(body)


HOSTILE = ["a://b?c&", "a@a", "é@a.a", "DE12ABCD ", "+1()", "1 ", "::a1", "0" * 17 + " ", "a.a."]


@pytest.mark.parametrize("unit", HOSTILE)
def test_no_text_takes_more_than_a_time_in_proportion_to_its_length(unit: str) -> None:
    text = unit * (65536 // len(unit))
    began = process_time()
    Scrubber().text(text)
    assert process_time() - began < 2.0, "it takes some 20 ms; with a pattern that looks back and forth it took minutes"


def test_every_length_of_an_account_is_one_that_the_pattern_can_have() -> None:
    assert all(15 <= length <= 33 for length in IBAN_LENGTHS.values())
