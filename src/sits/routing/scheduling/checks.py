"""What every filter and score must keep, as checks that its author can run, and that are run on all that come with SITS.

    for check in SCORE_CHECKS:
        check(Mine, {"its": "settings"})

A check raises AssertionError, and says what is wrong. `failures` runs all of them. They go through a world of candidates with
and without declarations, and requests that are empty, huge, in Chinese, and of somebody who means harm.
"""

from __future__ import annotations

import gc
import random
import statistics
import tracemalloc
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from math import isfinite
from time import perf_counter
from types import SimpleNamespace
from typing import Any, get_args

from sits.resources.domains import Domain, DomainSpec, Prefers
from sits.resources.kinds import Cost, Model, ModelSpec, Promise
from sits.resources.vocabulary import Metadata
from sits.routing.policies.state import TargetState, Usual
from sits.routing.scheduling.base import BEST, Candidate, Facts, Filter, Made, Score, Varies
from sits.routing.scheduling.seen import CostSeen, LatencySeen

Settings = Mapping[str, Any]
MakeScore = Callable[[Made], Score]
MakeFilter = Callable[[Made], Filter]

SIZES = (1, 2, 8, 100)
SLOW = 0.005
"""Seconds of a call for a hundred candidates: everybody waits who is served by the same worker."""
CALLS = 10_000
GROWN = 256 * 1024
"""Bytes that so many further calls may add: a leak of one small object a call is more than twice as much."""
PARTS = 4
"""So often the calls are made before it is a leak."""
FACETS = 200
"""Facets among requests whose words are all different: more than the scheduler keeps, and nothing is kept at all."""
_WORDS = ("", "legal", "chat", "unknown", "法律", "tiny", "base", "heavy", "eu", "us", "canary", "a1")
_HOSTILE = "\x00\x1b[31m'\";--\r\n\\u0000\ufffd" + "A" * 50


def candidates_of(size: int) -> list[Candidate]:
    """Backends that declare much, little and nothing, some of them under load, some that fail, some never asked."""
    dice = random.Random(size)  # noqa: S311 - no secrets
    usual = Usual()
    found = []
    for index in range(size):
        spec = ModelSpec(
            engine="vllm",
            endpoint=f"http://10.0.0.{index}:8000",
            domains=["legal", "法律"] if index % 3 else [],
            promise=Promise(latency_p95_ms=100.0 * (1 + index % 5), accuracy=0.88 + index % 10 / 100) if index % 4 else Promise(),
            cost=Cost(input_per_million=float(index % 3), output_per_million=2.0 * (index % 3)),
            adapters=["a1"] if index % 2 else [],
            context_window=8192 if index % 5 else None,
        )
        labels = {"engine": "vllm"} | ({"gpu": "h100", "tier": "base", "kv-tokens": "100000"} if index % 2 else {"tier": "heavy"})
        labels |= {"region": ("eu", "us")[index % 2], "zone": f"z{index % 3}"} if index % 7 else {"kv-used": "0.5"}
        name = f"模型-{index}"
        state = TargetState(usual)
        for number in range(index % 4 * 5):
            state.ended(float(number), dice.uniform(0.1, 3.0), state.started(float(number)), dice.random() < 0.9, 0.1, 50.0)
        for _ in range(index % 6):
            state.started(20.0)
        state.told(index % 9, index % 2, (index % 11) / 10.0 if index % 2 else -1.0)
        one = Candidate(index, name, Model(metadata=Metadata(name=f"m{index}"), spec=spec), state, 1.0 + index % 2, labels, None)
        one.capabilities = frozenset(("chat", "tools")) if index % 2 else frozenset(("chat",))
        found.append(one)
    return found


def made_for(candidates: Sequence[Candidate], settings: Settings) -> Made:
    """What a plugin is made from, in this world."""
    prefers = Prefers(models=["模型-1"], labels={"gpu": "h100"})
    domain = Domain(metadata=Metadata(name="legal"), spec=DomainSpec(examples=["a", "b", "c", "d"], prefers=prefers))
    costs, latencies = CostSeen(), LatencySeen()
    for one in candidates[::2]:
        for number in range(30):
            costs.note(one.name, 0.001 * (1 + number % 3))
            latencies.note(one.name, 0.1 * (1 + number % 5), 25.0)
    return Made("route", candidates, settings, SimpleNamespace(domains={"legal": domain}), costs, latencies)


def facts_of(seed: int, *, distinct: bool = False) -> Facts:
    """A request like others; with `distinct`, one whose words nobody else has."""
    dice = random.Random(seed)  # noqa: S311 - no secrets

    def word() -> str:
        return f"w{seed}" if distinct else dice.choice(_WORDS)

    headers = {b"x-sits-zone": word().encode(), b"x-sits-labels": f"gpu={word()}".encode(), b"x-mine": word().encode()}
    facts = Facts("chat", frozenset(dice.choice((("chat",), ("chat", "tools"), ("chat", "vision")))), headers, b"")
    text = f"{dice.choice(_WORDS)} {seed // 7} {dice.random()}".encode()
    facts.body = b'{"messages":[{"role":"user","content":"' + text * dice.choice((1, 20, 60)) + b'"}]}'
    facts.key, facts.team, facts.colour = f"key-{seed % 5}", word(), word()
    facts.session, facts.region, facts.adapter = word().encode(), word(), word()
    facts.domain, facts.tier = word(), word()
    facts.priority, facts.complexity = dice.randrange(3), dice.random()
    facts.tokens, facts.wanted_output = dice.choice((0, 10, 9000)), dice.choice((0, 256))
    facts.qps, facts.draw, facts.now = dice.uniform(0, 100), dice.random(), 30.0
    return facts


def odd_facts() -> Iterator[Facts]:
    """Requests at the edge of what can come."""
    for text in ("", "法律咨询" * 5, _HOSTILE, "x" * 100_000):
        for body in (b"", b"{", text.encode(), b"\xff\xfe" * 1000, b"[" * (1 << 20)):
            facts = Facts("chat", frozenset(), {b"": b"", b"x-sits-zone": b"\xff", b"x-sits-labels": b"=,=," * 500}, body)
            facts.key = facts.team = facts.colour = facts.region = facts.adapter = facts.domain = facts.tier = text
            facts.session = text.encode()
            facts.needs = frozenset(("vision", "logprobs"))
            facts.tokens, facts.wanted_output = (1 << 40, 1 << 40) if body else (0, 0)
            facts.qps, facts.draw, facts.now = 1e9, 1.0 - 2.0**-53, 1e9
            yield facts


def every_facts() -> Iterator[Facts]:
    """Both kinds."""
    for seed in range(60):
        yield facts_of(seed)
    yield from odd_facts()


def _numbers(score: Score, facts: Facts, candidates: Sequence[Candidate]) -> list[float]:
    """What it says; of more numbers than there are candidates one, for there may be no end of them."""
    return list(islice(score.score(facts, candidates), len(candidates) + 1))


def _score(make: MakeScore, settings: Settings, size: int) -> tuple[Score, list[Candidate]]:
    candidates = candidates_of(size)
    return make(made_for(candidates, settings)), candidates


def gives_a_number_for_each_candidate(make: MakeScore, settings: Settings) -> None:
    for size in SIZES:
        score, candidates = _score(make, settings, size)
        for facts in every_facts():
            given = _numbers(score, facts, candidates)
            count = len(given) if len(given) <= size else f"more than {size}"
            assert len(given) == size, f"{count} numbers for {size} candidates"
            wrong = [one for one in given if not isinstance(one, int | float) or not isfinite(one)]
            assert not wrong, f"{wrong[0]!r} is no finite number"
            if score.scale == "given":
                wrong = [one for one in given if not 0.0 <= one <= BEST]
                assert not wrong, f"{wrong[0]!r} is not from 0 to 100, and `scale` is `given`"
            elif score.scale == "least":
                assert min(given) >= 0.0, f"a cost of {min(given)!r} is below 0, and `scale` is `least`"


def says_the_same_of_the_same(make: MakeScore, settings: Settings) -> None:
    candidates = candidates_of(8)
    one, other = make(made_for(candidates, settings)), make(made_for(candidates, settings))
    for seed in range(60):
        first = _numbers(one, facts_of(seed), candidates)
        assert _numbers(one, facts_of(seed), candidates) == first, "another answer to the same request, asked again"
        assert _numbers(other, facts_of(seed), candidates) == first, "another answer of another object, made from the same"


def looks_at_nothing_but_its_facet(make: MakeScore, settings: Settings) -> None:
    score, candidates = _score(make, settings, 8)
    if score.varies == "request":
        return
    seen: dict[Hashable, list[float]] = {}
    for seed in range(400):
        facts = facts_of(seed)
        given = _numbers(score, facts, candidates)
        facet = score.facet(facts)
        assert seen.setdefault(facet, given) == given, f"two answers for facet {facet!r}: it varies by `{score.varies}` only"


def has_few_small_facets(make: MakeScore, settings: Settings) -> None:
    score, _ = _score(make, settings, 8)
    if score.varies == "request":
        return
    found = set()
    for facts in (*(facts_of(seed, distinct=True) for seed in range(2 * FACETS)), *odd_facts()):
        facet = score.facet(facts)
        try:
            found.add(facet)
        except TypeError as error:
            raise AssertionError(f"the facet {facet!r} cannot be hashed") from error
        assert len(repr(facet)) < 1000, "a facet is kept, and should be small"
    assert len(found) <= FACETS, f"{len(found)} facets of {2 * FACETS} requests: clients can make up new ones"


def changes_nothing(make: MakeScore, settings: Settings) -> None:
    score, candidates = _score(make, settings, 8)
    before = [_told(one) for one in candidates]
    for facts in every_facts():
        shown = _of_facts(facts)
        score.score(facts, candidates)
        score.facet(facts)
        score.reserve(facts, candidates[3])
        score.release(candidates[3], True)
        assert _of_facts(facts) == shown, "the facts of the request were changed"
    assert [_told(one) for one in candidates] == before, "a candidate was changed"


def is_quick(make: MakeScore, settings: Settings) -> None:
    score, candidates = _score(make, settings, 100)

    def call(facts: Facts) -> None:
        score.facet(facts)
        score.score(facts, candidates)
        score.reserve(facts, candidates[0])
        score.release(candidates[0], True)

    _quick(call)


def holds_nothing_when_all_is_released(make: MakeScore, settings: Settings) -> None:
    score, candidates = _score(make, settings, 2)

    def call(facts: Facts, number: int) -> None:
        score.score(facts, candidates)
        score.facet(facts)
        score.reserve(facts, candidates[number % 2])
        score.release(candidates[number % 2], number % 7 > 0)

    _bounded(call)


def takes_settings_or_says_why_not(make: MakeScore | MakeFilter, settings: Settings) -> None:
    candidates = candidates_of(3)
    wrong: list[dict[str, Any]] = [{"thereIsNoSuchSetting": 1}, {"": None}]
    values: tuple[Any, ...] = (None, "法", -1, [], {"a": {"b": 1}}, float("nan"))
    wrong += [{**settings, key: value} for key in settings for value in values]
    for given in ({}, *wrong):
        try:
            make(made_for(candidates, given))
        except ValueError:
            continue
        except Exception as error:
            raise AssertionError(f"settings {given!r} are to be refused by a ValueError, not by {error!r}") from error


def is_named(make: MakeScore, settings: Settings) -> None:
    score, _ = _score(make, settings, 2)
    assert isinstance(score.name, str), "`name` is no text"
    assert score.name, "`name` is empty"
    assert score.varies in get_args(Varies), f"`varies` is {score.varies!r}"
    assert score.scale in ("given", "most", "least"), f"`scale` is {score.scale!r}"


SCORE_CHECKS: tuple[Callable[[MakeScore, Settings], None], ...] = (
    is_named,
    takes_settings_or_says_why_not,
    gives_a_number_for_each_candidate,
    says_the_same_of_the_same,
    looks_at_nothing_but_its_facet,
    has_few_small_facets,
    changes_nothing,
    is_quick,
    holds_nothing_when_all_is_released,
)


def filter_is_named(make: MakeFilter, settings: Settings) -> None:
    sieve = make(made_for(candidates_of(2), settings))
    assert isinstance(sieve.name, str), "`name` is no text"
    assert sieve.name, "`name` is empty"
    assert isinstance(sieve.strict, bool), "`strict` is neither true nor false"


def filter_says_why_in_a_line(make: MakeFilter, settings: Settings) -> None:
    for size in SIZES:
        candidates = candidates_of(size)
        sieve = make(made_for(candidates, settings))
        for facts in every_facts():
            asks = sieve.asks(facts)
            assert isinstance(asks, bool), f"`asks` returns {asks!r}"
            for one in candidates if asks else ():
                why = sieve.keep(facts, one)
                assert isinstance(why, str), f"`keep` returns {why!r}"
                assert len(why) <= 500, f"{len(why)} characters of a reason: more than a line"
                assert why.isprintable(), f"{why!r} has characters that cannot be shown"


def filter_says_the_same_of_the_same(make: MakeFilter, settings: Settings) -> None:
    candidates = candidates_of(8)
    one, other = make(made_for(candidates, settings)), make(made_for(candidates, settings))
    for seed in range(60):
        first = _verdict(one, facts_of(seed), candidates)
        assert _verdict(one, facts_of(seed), candidates) == first, "another verdict of the same request, asked again"
        assert _verdict(other, facts_of(seed), candidates) == first, "another verdict of another object, made from the same"


def filter_changes_nothing(make: MakeFilter, settings: Settings) -> None:
    candidates = candidates_of(8)
    sieve = make(made_for(candidates, settings))
    before = [_told(one) for one in candidates]
    for facts in every_facts():
        shown = _of_facts(facts)
        _verdict(sieve, facts, candidates)
        assert _of_facts(facts) == shown, "the facts of the request were changed"
    assert [_told(one) for one in candidates] == before, "a candidate was changed"


def filter_is_quick(make: MakeFilter, settings: Settings) -> None:
    candidates = candidates_of(100)
    sieve = make(made_for(candidates, settings))
    _quick(lambda facts: _verdict(sieve, facts, candidates))


def filter_holds_nothing(make: MakeFilter, settings: Settings) -> None:
    candidates = candidates_of(2)
    sieve = make(made_for(candidates, settings))
    _bounded(lambda facts, number: _verdict(sieve, facts, candidates))


FILTER_CHECKS: tuple[Callable[[MakeFilter, Settings], None], ...] = (
    filter_is_named,
    takes_settings_or_says_why_not,
    filter_says_why_in_a_line,
    filter_says_the_same_of_the_same,
    filter_changes_nothing,
    filter_is_quick,
    filter_holds_nothing,
)


def failures(what: str, make: Any, settings: Settings) -> list[tuple[str, str]]:
    """The checks that a `filter` or a `score` fails: what is claimed of it, and what was found instead."""
    found = []
    checks: Sequence[Callable[[Any, Settings], None]] = SCORE_CHECKS if what == "score" else FILTER_CHECKS
    for check in checks:
        try:
            check(make, settings)
        except Exception as error:
            said = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            found.append((check.__name__.replace("_", " "), said.partition("\nassert ")[0]))
    return found


def _verdict(sieve: Filter, facts: Facts, candidates: Sequence[Candidate]) -> list[str]:
    return [sieve.keep(facts, one) for one in candidates] if sieve.asks(facts) else []


def _told(one: Candidate) -> tuple[object, ...]:
    state = one.state
    return (
        (one.index, one.name, one.model, one.weight, dict(one.labels), one.capabilities),
        (state.outstanding, state.elsewhere, state.kv, state.first, state.total, state.errors, state.room, state.seen),
    )


def _of_facts(facts: Facts) -> tuple[object, ...]:
    words = (facts.operation, facts.needs, dict(facts.headers), facts.body, facts.key, facts.team, facts.colour, facts.session)
    numbers = (facts.priority, facts.complexity, facts.tokens, facts.wanted_output, facts.qps, facts.draw, facts.now)
    return words, numbers, (facts.region, facts.adapter, facts.domain, facts.tier)


def _quick(call: Callable[[Facts], object]) -> None:
    took = []
    for seed in range(21):
        facts = facts_of(seed)
        began = perf_counter()
        call(facts)
        took.append(perf_counter() - began)
    median = statistics.median(took)
    assert median < SLOW, f"{1000 * median:.1f} ms a call for 100 candidates: it is computed where every other request waits"


def _new(number: int) -> Facts:
    """A request of its own, made quickly."""
    body = b'{"messages":[{"role":"user","content":"%d' % number + b"x" * 700
    facts = Facts("chat", frozenset(("chat",)), {b"x-sits-labels": b"gpu=%d" % number}, body)
    word = f"w{number}"
    facts.domain = facts.tier = facts.region = facts.colour = facts.key = facts.adapter = word
    facts.session = word.encode()
    facts.tokens, facts.now, facts.draw = number, 30.0 + number / 1000.0, number % 97 / 97.0
    return facts


def _bounded(call: Callable[[Facts, int], object]) -> None:
    """What leaks grows with every part; what others in this process keep meanwhile grows now and then."""
    tracemalloc.start()
    try:
        before = None
        for part in range(PARTS):
            gc.collect()
            tracemalloc.reset_peak()
            for number in range(part * CALLS, (part + 1) * CALLS):
                call(_new(number), number)
            peak = tracemalloc.get_traced_memory()[1]
            grown = GROWN if before is None else peak - before
            if grown < GROWN:
                return
            before = peak
    finally:
        tracemalloc.stop()
    raise AssertionError(f"{grown // 1024} KiB more after {CALLS} further calls")
