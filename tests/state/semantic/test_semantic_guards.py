"""Pairs that look alike and are not, by the guard that tells them apart; and pairs that no guard may tell apart."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.semantic_pairs import Pair, pairs
from sits.state.cache.semantic.guards import GUARDS, contradiction
from sits.state.cache.semantic.reading import read
from sits.state.cache.semantic.score import score

APART = """
language | How do I reset my password? | 怎么重置密码？
language | 什么是AI？ | What is AI?
length | {long}a | {long}b
literal | Translate "I am hungry" into French. | Translate "I am tired" into French.
literal | What does np.zeros(3) return? | What does np.ones(3) return?
literal | Explain x > 5 | Explain x < 5
literal | /etc/passwd里存了什么？ | /etc/shadow里存了什么？
number | Boil an egg for 3 minutes | Boil an egg for 8 minutes
number | Divide 10 by 4 | Divide 4 by 10
number | Is 5 mg too much? | Is 5 g too much?
number | Is 40 degrees Celsius hot? | Is 40 degrees Fahrenheit hot?
number | the 16th president | the 26th president
number | 五十美元能买什么 | 五百美元能买什么
number | 二〇二四年的预算 | 二〇二三年的预算
number | 一斤苹果 | 一公斤苹果
date | What is on Monday? | What is on Thursday?
date | 三月去日本 | 五月去日本
polarity | Which foods contain gluten? | Which foods do not contain gluten?
polarity | How do I cook with salt? | How do I cook without salt?
polarity | I can hear you | I can't hear you
polarity | 哪些食物含麸质？ | 哪些食物不含麸质？
polarity | 我收到验证码了。 | 我没收到验证码。
question | Who invented it, the telephone? | When was it invented, the telephone?
question | Write a haiku | How do I write a haiku?
question | What is a mortgage? | How do I get a mortgage?
question | Who do I call? | Who calls me?
question | What time does it open? | What day does it open?
question | 电话是谁发明的？ | 电话是什么时候发明的？
question | 公司有多少员工？ | 公司有哪些员工？
tense | When did the shop open? | When does the shop open?
tense | Who won the match? | Who will win the match?
tense | 谁赢了比赛？ | 谁会赢比赛？
mood | Should I take the medicine? | Can I take the medicine?
mood | Give me a joke | What is a joke?
mood | 什么是笑话？ | 有什么笑话？
voice | Did Sun buy Oracle? | Was Sun bought by Oracle?
voice | 公司收购微软了吗？ | 公司被微软收购了吗？
person | Who is my boss? | Who is your boss?
person | Do I owe you money? | Do you owe me money?
person | Is my password safe? | Is his password safe?
person | 我的密码是什么？ | 他的密码是什么？
antonym | How do I turn on the light? | How do I turn off the light?
antonym | What is the maximum weight? | What is the minimum weight?
antonym | Should I buy stocks? | Should I sell stocks?
antonym | before the surgery | after the surgery
antonym | 怎么提高心率？ | 怎么降低心率？
antonym | 怎么打开通知？ | 怎么关闭通知？
antonym | 手术前吃什么 | 手术后吃什么
name | Do I need a visa for Japan? | Do I need a visa for China?
name | Ubuntu上怎么安装它？ | Windows上怎么安装它？
words | best restaurants in madrid | best restaurants in milan
words | 杭州有什么好吃的？ | 苏州有什么好吃的？
words | 张伟是经理吗？ | 张强是经理吗？
words | What are the symptoms of flu? | What are the symptoms of flu in babies?
words | How do I use a gift card? | How do I get a gift card?
words | Delete all the files | Delete some files
words | books about Hemingway, all of them | books on Hemingway's wife, all of them
words | How are you? | How am I?
order | Is Python faster than Java? | Is Java faster than Python?
order | Can cats eat dog food? | Can dogs eat cat food?
order | Convert kilograms to pounds. | Convert pounds to kilograms.
order | flights to London | flights from London
order | 从伦敦怎么去巴黎？ | 从巴黎怎么去伦敦？
order | 小明比小红高多少？ | 小红比小明高多少？
order | 蜂蜜怎么保存？ | 蜜蜂怎么保存？
"""
ROWS = [tuple(part.strip() for part in line.split(" | ")) for line in APART.strip().splitlines()]
LONG = "a very long text " * 70


@pytest.mark.parametrize(("guard", "a", "b"), ROWS, ids=[f"{row[0]}: {row[1][:30]}" for row in ROWS])
def test_what_differs_is_told_apart_by_its_guard(guard: str, a: str, b: str) -> None:
    one, two = read(a.format(long=LONG)), read(b.format(long=LONG))
    assert (contradiction(one, two), contradiction(two, one)) == (guard, guard)


def test_every_guard_has_a_row() -> None:
    assert {row[0] for row in ROWS} == {name for name, _ in GUARDS}


TOGETHER = """
How do I reset my password? | hi, could you please tell me how I can reset my password?
How do I reset my pasword? | How do I reset my password?
What is the difference between TCP and UDP? | What's the difference between UDP and TCP?
In Python, how do I convert a string into an integer? | How do I convert a string to an integer in Python?
What is the capital of Spain? | What is Spain's capital?
How far is 5 km? | How far is 5000 meters?
Give me five names for a coffee shop | Give me 5 names for a coffee shop
What does the plan cost? | How much does the plan cost?
怎么重置密码？ | 请问如何重置密码呢？
三百块能买什么 | 300元能买什么
周四开门吗 | 星期四开门吗
怎么磨菜刀？ | 菜刀怎么磨？
围棋和象棋哪个难？ | 象棋和围棋哪个难？
能推荐一本小说吗？ | 推荐一本小说
在Ubuntu上怎么安装Docker？ | 如何在 ubuntu 上安装 docker
"""
SAME = [tuple(part.strip() for part in line.split(" | ")) for line in TOGETHER.strip().splitlines()]


@pytest.mark.parametrize(("a", "b"), SAME, ids=[row[0] for row in SAME])
def test_another_wording_is_let_pass(a: str, b: str) -> None:
    one, two = read(a), read(b)
    assert (contradiction(one, two), contradiction(two, one)) == (None, None)


TEXTS = sorted({text for pair in pairs() for text in (pair.a, pair.b)})


@given(st.sampled_from(TEXTS), st.sampled_from(TEXTS))
@settings(max_examples=100, deadline=None)
def test_guards_do_not_care_which_question_came_first(a: str, b: str) -> None:
    one, two = read(a), read(b)
    assert (contradiction(one, two) is None) == (contradiction(two, one) is None)
    assert score(one, two, 0.9) == score(two, one, 0.9)


@given(st.text(max_size=60))
@settings(max_examples=100, deadline=None)
def test_a_text_never_contradicts_itself(text: str) -> None:
    assert contradiction(read(text), read(text)) is None
    assert score(read(text), read(text), 1.0) == 1.0


OTHERS = [pair for pair in pairs() if not pair.same and pair.kind != "tenant"]


@pytest.mark.parametrize("split", ["tune", "test", "later"])
def test_no_labelled_other_question_passes(split: str) -> None:
    passed = [pair.id for pair in OTHERS if pair.split == split and contradiction(read(pair.a), read(pair.b)) is None]
    assert passed == []


def test_the_set_is_what_it_says() -> None:
    found = pairs()
    assert len(found) >= 500
    assert len({pair.id for pair in found}) == len(found)
    by_lang = {lang: sum(pair.lang == lang for pair in found) for lang in ("en", "zh")}
    assert abs(by_lang["en"] - by_lang["zh"]) < 0.05 * len(found)
    assert {pair.kind for pair in found if pair.same} == {"light", "heavy", "link"}
    assert {"number", "negation", "entity", "tenant", "antonym", "order"} <= {pair.kind for pair in found if not pair.same}
    twice = [(pair.a, pair.b) for pair in found if not pair.tenants]
    assert len(set(twice)) == len(twice)


def test_no_question_is_in_two_of_tune_and_test() -> None:
    def texts(split: str) -> set[str]:
        return {read(text).plain for pair in chosen(split) for text in (pair.a, pair.b)}

    def chosen(split: str) -> list[Pair]:
        return [pair for pair in pairs() if pair.split == split and pair.kind != "tenant"]

    assert texts("tune") & texts("test") == set()
