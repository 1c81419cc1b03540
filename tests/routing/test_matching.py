"""Which requests a rule is for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resources.choosing import Match, RouteRule, While
from sits.routing.matching import Matcher, Rule
from sits.routing.rule_watch import FEWEST, RuleWatch, Unmet
from sits.routing.scheduling.base import Facts


def match(**said: Any) -> Match:
    return msgspec.convert(said, Match)


def facts(headers: dict[str, str] | None = None, **known: Any) -> Facts:
    made = Facts("chat", frozenset(), {name.encode(): value.encode() for name, value in (headers or {}).items()}, b"{}")
    for name, value in known.items():
        setattr(made, name, value)
    return made


ROWS: dict[str, tuple[dict[str, Any], Facts, bool]] = {
    "region": ({"region": ["us-west"]}, facts(region="us-west"), True),
    "another region": ({"region": ["us-west"]}, facts(region="us-west-2"), False),
    "no region": ({"region": ["us-west"]}, facts(), False),
    "one of two regions": ({"region": ["us-west", "华东"]}, facts(region="华东"), True),
    "adapter": ({"adapter": ["法律"]}, facts(adapter="法律"), True),
    "no adapter": ({"adapter": ["法律"]}, facts(), False),
    "both hold": ({"region": ["eu"], "adapter": ["sql"]}, facts(region="eu", adapter="sql"), True),
    "one of both holds": ({"region": ["eu"], "adapter": ["sql"]}, facts(region="eu"), False),
    "header, exact": ({"headers": {"X-Tier": "gold"}}, facts({"x-tier": "gold"}), True),
    "header, longer": ({"headers": {"x-tier": "gold"}}, facts({"x-tier": "golden"}), False),
    "header, its beginning": ({"headers": {"x-tier": "gold*"}}, facts({"x-tier": "golden"}), True),
    "header, another beginning": ({"headers": {"x-tier": "gold*"}}, facts({"x-tier": "old"}), False),
    "header, any": ({"headers": {"x-tier": "*"}}, facts({"x-tier": ""}), True),
    "header, none": ({"headers": {"x-tier": "*"}}, facts({"x-other": "1"}), False),
    "header, Chinese": ({"headers": {"x-部门": "法*"}}, facts({"x-部门": "法务"}), True),
    "two headers": ({"headers": {"a": "1", "b": "2"}}, facts({"a": "1", "b": "2"}), True),
    "one of two headers": ({"headers": {"a": "1", "b": "2"}}, facts({"a": "1"}), False),
    "class": ({"priority": ["P0"]}, facts(priority=0), True),
    "another class": ({"priority": ["P0", "P2"]}, facts(priority=1), False),
    "team": ({"team": ["search"]}, facts(team="search"), True),
    "no team": ({"team": ["search"]}, facts(), False),
    "colour": ({"colour": ["blue"]}, facts(colour="blue"), True),
    "no colour": ({"colour": ["blue"]}, facts(), False),
    "domain": ({"domain": ["legal"]}, facts(domain="legal"), True),
    "of no domain": ({"domain": ["unknown"]}, facts(domain="unknown"), True),
    "domain, nobody has read it": ({"domain": ["legal", "unknown"]}, facts(), False),
    "tier": ({"complexity": ["heavy"]}, facts(tier="heavy"), True),
    "another tier": ({"complexity": ["heavy"]}, facts(tier="tiny"), False),
    "tokens, from": ({"promptTokens": {"from": 1000}}, facts(tokens=1000), True),
    "tokens, too few": ({"promptTokens": {"from": 1000}}, facts(tokens=999), False),
    "tokens, below": ({"promptTokens": {"below": 1000}}, facts(tokens=999), True),
    "tokens, not below": ({"promptTokens": {"below": 1000}}, facts(tokens=1000), False),
    "rate in the band": ({"qps": {"from": 1, "below": 2}}, facts(qps=1.0), True),
    "rate beyond the band": ({"qps": {"from": 1, "below": 2}}, facts(qps=2.0), False),
}


@pytest.mark.parametrize(("said", "request_facts", "counts"), ROWS.values(), ids=ROWS)
def test_all_that_is_given_must_hold(said: dict[str, Any], request_facts: Facts, counts: bool) -> None:
    assert Matcher(match(**said)).matches(request_facts) is counts


WORDS = st.sampled_from(["", "eu", "us", "ap"])
LISTS = st.lists(st.sampled_from(["eu", "us", "ap"]), max_size=2)


@given(st.lists(st.tuples(LISTS, LISTS), min_size=1, max_size=3), WORDS, WORDS)
@settings(max_examples=100, deadline=None)
def test_of_several_matches_one_is_enough_and_of_a_list_one_entry(
    rows: list[tuple[list[str], list[str]]], region: str, adapter: str
) -> None:
    rule = RouteRule("r", [Match(region=one, adapter=other) for one, other in rows], [])
    expected = any((not one or region in one) and (not other or adapter in other) for one, other in rows)
    assert Rule(0, rule, None).counts(facts(region=region, adapter=adapter)) is expected


def test_a_rule_does_not_count_while_its_targets_are_not_as_it_wants_them() -> None:
    watch = RuleWatch(While(p99_below_ms=100.0))
    rule = Rule(0, RouteRule("r", Match(region=["eu"]), []), watch)
    assert rule.counts(facts(region="eu", now=10.0))
    for _ in range(20):
        watch.note(0.2, 10.0)
    assert not rule.counts(facts(region="eu", now=10.0))


def test_a_rule_that_does_not_count_says_why_in_the_facts_of_the_request() -> None:
    watch = RuleWatch(While(p99_below_ms=100.0))
    rule = Rule(0, RouteRule("快", Match(region=["eu"]), []), watch)
    own, other = facts(region="eu", now=10.0), facts(region="us", now=10.0)
    for _ in range(20):
        watch.note(0.2, 10.0)
    assert [rule.counts(own), rule.counts(other)] == [False, False]
    assert own.passed == (("快", (Unmet("p99BelowMs", 200.0, 100.0, 20),)),)
    assert other.passed == ()
    trying = [facts(region="eu", now=100.0) for _ in range(FEWEST + 1)]
    assert [rule.counts(one) for one in trying] == [True] * FEWEST + [False]
    watch.note(0.01, 100.0)
    assert [one.passed for one in trying] == [()] * FEWEST + [(("快", (Unmet("again", 0.0, FEWEST),)),)]
    assert watch.why_not() == (Unmet("again", 1.0, FEWEST),)


def test_requests_of_others_do_not_use_up_the_tries_of_a_rule() -> None:
    watch = RuleWatch(While(p99_below_ms=100.0))
    rule = Rule(0, RouteRule("r", Match(region=["eu"]), []), watch)
    for _ in range(20):
        watch.note(0.2, 0.0)
    assert not rule.counts(facts(region="eu", now=1.0))
    assert not any(rule.counts(facts(region="us", now=100.0)) for _ in range(50))
    assert [rule.counts(facts(region="eu", now=100.0)) for _ in range(21)] == [True] * 20 + [False]
