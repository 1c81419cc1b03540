"""The tests of a switch's gates are wrong as seldom as they say, however often one looks, and find what is wrong."""

from __future__ import annotations

import random
from collections.abc import Iterator
from math import log

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resilience.switch.proof import against_difference, against_rate, convincing

CONFIDENCE = 0.95


def looks(chance: random.Random, old: float, new: float, share: float, requests: int) -> Iterator[tuple[int, int, int, int]]:
    """Counts after each request of a run in which each goes to the new model with a probability of `share`."""
    trials, failures = [0, 0], [0, 0]
    for _ in range(requests):
        arm = chance.random() < share
        trials[arm] += 1
        failures[arm] += chance.random() < (new if arm else old)
        yield trials[0], failures[0], trials[1], failures[1]


@pytest.mark.parametrize(
    ("old", "new", "share"),
    [(0.0, 0.01, 0.5), (0.02, 0.02, 0.5), (0.05, 0.06, 0.25), (0.3, 0.31, 0.1)],
    ids=["at the margin, from nothing", "equal", "at the margin, one in twenty", "at the margin, many fail"],
)
def test_looking_after_every_request_alarms_falsely_no_more_often_than_is_said(old: float, new: float, share: float) -> None:
    chance, runs = random.Random(4), 60
    alarms = sum(
        any(
            convincing(against_difference((n, f), (m, g), 0.01), CONFIDENCE) for n, f, m, g in looks(chance, old, new, share, 400)
        )
        for _ in range(runs)
    )
    # 3 of 60 are allowed on average; more than 7 come by chance once in 70 such simulations.
    assert alarms <= 7


def test_the_usual_test_would_alarm_far_more_often_when_looked_at_so_often() -> None:
    """What peeking does to the two-proportion z-test at the same level: the reason for all this."""
    chance, runs = random.Random(4), 100
    alarms = 0
    for _ in range(runs):
        for n, f, m, g in looks(chance, 0.2, 0.2, 0.5, 400):
            pooled = (f + g) / (n + m)
            spread = (pooled * (1 - pooled) * (1 / max(n, 1) + 1 / max(m, 1))) ** 0.5
            if n >= 20 and m >= 20 and spread and (g / m - f / n) / spread > 1.645:
                alarms += 1
                break
    assert alarms > 15


WORSE = {
    "all requests fail, at one in a hundred": (0.005, 1.0, 0.01, 60),
    "half of them fail": (0.005, 0.5, 0.05, 60),
    "one in ten fails": (0.005, 0.1, 0.25, 400),
    "one in twenty fails": (0.005, 0.05, 0.5, 1500),
}


@pytest.mark.parametrize(("old", "new", "share", "most"), WORSE.values(), ids=WORSE.keys())
def test_a_worse_model_is_found_within_so_many_of_its_requests(old: float, new: float, share: float, most: int) -> None:
    found = []
    for seed in range(10):
        for number, (n, f, m, g) in enumerate(looks(random.Random(seed), old, new, share, int(2 * most / share))):
            if number % 5 == 0 and convincing(against_difference((n, f), (m, g), 0.01), CONFIDENCE, 15):
                found.append(m)
                break
    assert len(found) >= 9
    assert sorted(found)[4] <= most


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 500), st.integers(1, 500), st.data(), st.floats(0.0, 0.2))
def test_what_is_within_the_margin_is_never_evidence(n: int, m: int, data: st.DataObject, margin: float) -> None:
    f = data.draw(st.integers(0, n))
    g = data.draw(st.integers(0, m))
    evidence = against_difference((n, f), (m, g), margin)
    if g / m <= f / n + margin:
        assert evidence <= 1e-9
    assert evidence == against_difference((n, f), (m, g), margin)
    assert against_difference((n, f), (m, g), margin + 0.1) <= evidence + 1e-6


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 400), st.data(), st.floats(0.001, 0.5))
def test_one_rate_is_held_against_a_bound_in_the_same_way(n: int, data: st.DataObject, rate: float) -> None:
    f = data.draw(st.integers(0, n))
    if f / n <= rate:
        assert against_rate(n, f, rate) <= 1e-9
    assert against_rate(n, f, min(1.0, rate + 0.1)) <= against_rate(n, f, rate) + 1e-9


def test_without_a_request_of_either_there_is_no_evidence() -> None:
    assert against_difference((0, 0), (50, 50), 0.01) == against_difference((50, 0), (0, 0), 0.01) == 0.0
    assert against_rate(0, 0, 0.05) == 0.0
    assert against_difference((50, 0), (50, 50), 1.0) <= 0.0


def test_confidence_is_shared_between_the_tests() -> None:
    assert convincing(log(20.0) + 1e-9, 0.95)
    assert not convincing(log(20.0) + 1e-9, 0.95, 2)
    assert convincing(log(40.0) + 1e-9, 0.95, 2)
