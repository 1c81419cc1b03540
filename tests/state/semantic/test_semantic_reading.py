"""What is read out of a question: quantities, kinds, denials, names."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.state.cache.semantic.lexicon import stem
from sits.state.cache.semantic.reading import LONGEST, read

QUANTITIES = [
    ("digits", "order 48213", ("48213",)),
    ("thousands", "1,500 dollars", ("1500USD",)),
    ("currency before", "$1,500", ("1500USD",)),
    ("words", "three hundred and fifty euros", ("350EUR",)),
    ("hyphens", "twenty-five people", ("25",)),
    ("millions", "a loan of 1.5 million", ("1500000",)),
    ("a pronoun is no number", "which one is new", ()),
    ("ordinals", "the first and the 16th", ("1th", "16th")),
    ("percent", "20 percent of 80", ("20%", "80")),
    ("units", "5 km in 30 minutes", ("5000m", "1800s")),
    ("a unit by another name", "5000 metres in half an hour", ("5000m", "0.5")),
    ("versions keep their zeros", "python 3.10 or 3.1", ("3.10", "3.1")),
    ("Chinese by scale", "三百五十块", ("350CNY",)),
    ("Chinese, the last scale left out", "三百五能买吗", ("350",)),
    ("Chinese by place", "二〇二四年的预算", ("2024",)),
    ("Chinese ten thousands", "一百五十万贷款", ("1500000",)),
    ("mixed", "3万公里", ("30000000m",)),
    ("Chinese percent", "百分之二十", ("20%",)),
    ("Chinese ordinals", "第三章", ("3th",)),
    ("two of something", "两个人", ("2",)),
    ("a name with a numeral", "二甲双胍", ()),
    ("a dish with a numeral", "三明治", ()),
    ("weeks are days", "两周", ("14day",)),
    ("age", "四岁", ("4age",)),
    ("full width", "１２楼", ("12floor",)),
]


@pytest.mark.parametrize(("text", "numbers"), [row[1:] for row in QUANTITIES], ids=[row[0] for row in QUANTITIES])
def test_quantities_are_read_in_one_form(text: str, numbers: tuple[str, ...]) -> None:
    assert read(text).numbers == numbers


DATES = [
    ("weekday", "on Thursdays", {"@thu"}),
    ("Chinese weekday", "星期四", {"@thu"}),
    ("Chinese weekday, short", "周四", {"@thu"}),
    ("Sunday", "礼拜天", {"@sun"}),
    ("month", "in March", {"@m3"}),
    ("Chinese month", "三月份", {"@m3"}),
    ("may, the month", "the weather in May", {"@m5"}),
    ("may, the verb", "who may enter", set()),
    ("Chinese date", "5月3号", {"@m5", "@3"}),
]


@pytest.mark.parametrize(("text", "dates"), [row[1:] for row in DATES], ids=[row[0] for row in DATES])
def test_dates_are_read_in_one_form(text: str, dates: set[str]) -> None:
    assert read(text).dates == dates


KINDS = [
    ("How do I reset it?", {"how"}),
    ("Is there a way to pay later?", {"how"}),
    ("What should I do about ants?", {"how"}),
    ("Why is it slow?", {"why"}),
    ("How come it is slow?", {"why"}),
    ("At what time does it open?", {"clock"}),
    ("Where is the bank?", {"where"}),
    ("How long does it take?", {"long"}),
    ("How many are there?", {"many"}),
    ("How much does the room cost?", {"what"}),
    ("Which is better?", {"what"}),
    ("Can I pay by card?", {"yn"}),
    ("Can you recommend a novel?", set()),
    ("Write a poem.", set()),
    ("Who wrote it?", {"who"}),
    ("Whom did he call?", {"whom"}),
    ("怎么退款？", {"how"}),
    ("有没有办法退款？", {"how"}),
    ("为什么这么慢？", {"why"}),
    ("谁写的？", {"who"}),
    ("在哪里？", {"where"}),
    ("多久能到？", {"long"}),
    ("有几个？", {"many"}),
    ("能不能退款？", {"yn"}),
    ("能推荐一本书吗？", set()),
    ("写一首诗。", set()),
]


@pytest.mark.parametrize(("text", "kinds"), KINDS, ids=[row[0] for row in KINDS])
def test_the_kind_of_a_question_is_read(text: str, kinds: set[str]) -> None:
    assert read(text).kinds == kinds


DENIED = [
    ("Which foods do not contain gluten?", ("¬include",)),
    ("Which foods don't contain gluten?", ("¬include",)),
    ("Which foods contain gluten?", ()),
    ("coffee without sugar", ("¬sugar",)),
    ("哪些食物不含麸质？", ("¬包括",)),
    ("没有糖的咖啡", ("¬糖",)),
    ("要不要去？", ()),
    ("差不多了吗？", ()),
]


@pytest.mark.parametrize(("text", "denied"), DENIED, ids=[row[0] for row in DENIED])
def test_denials_are_tied_to_what_they_deny(text: str, denied: tuple[str, ...]) -> None:
    assert read(text).denied == denied


def test_literals_are_kept_to_the_letter() -> None:
    found = read('Why does `x == Y` fail in /etc/hosts with "Not found" after list.append(3)?')
    assert found.literals == ("`x == Y`"[1:-1], "/etc/hosts", "Not found", "list.append(3)")


def test_names_are_noted_by_how_they_are_written() -> None:
    assert read("Do I need a visa for Japan?").names == {"japan"}
    assert read("在Ubuntu上怎么安装Docker？").names == {"ubuntu", "docker"}


STEMS = [
    ("making", "make"),
    ("planned", "plan"),
    ("planes", "plane"),
    ("cities", "city"),
    ("boxes", "box"),
    ("paid", "pay"),
    ("children", "child"),
    ("organising", "organize"),
    ("colour", "color"),
    ("bus", "bus"),
    ("need", "need"),
    ("during", "during"),
    ("writing", "write"),
]


@pytest.mark.parametrize(("word", "base"), STEMS, ids=[row[0] for row in STEMS])
def test_inflections_have_one_stem(word: str, base: str) -> None:
    assert stem(word) == base


def test_long_texts_are_only_equal_to_themselves() -> None:
    assert read("a" * (LONGEST + 1)).language == "long"
    assert read("a" * LONGEST).language == "en"


@given(st.text(max_size=80))
@settings(max_examples=100, deadline=None)
def test_any_text_can_be_read(text: str) -> None:
    found = read(text)
    assert found.canonical
    assert set(found.denied) - {"¬"} <= set(found.content)


@given(st.text(alphabet="abc不了 没?吗12三百\"`'", max_size=30))
@settings(max_examples=100, deadline=None)
def test_spaces_around_change_nothing(text: str) -> None:
    assert read(text) == read(f"  {text} ")
