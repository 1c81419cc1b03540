"""The limit finds what a server can do, from times alone, and follows it; nobody tells it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from sits.bench.overload_world import DRAWS, Batching, Half, Slots, saturate
from sits.resilience.qos.limit import BATCH, FEWEST, Limit

MEAN = 0.1
"""Seconds of work of a request."""


def limit(start: int = 32) -> Limit:
    return Limit(start, 2, 4096)


def slots(places: int, draw: str, seed: int = 1) -> Slots:
    return Slots(places, DRAWS[draw](MEAN, random.Random(seed)))


def goodput(halves: Sequence[Half], after: float, best: float, until: float = 1e9) -> float:
    """The share of what the server can do that was done."""
    seen = [half for half in halves if after < half.at <= until]
    return sum(half.done for half in seen) / (0.5 * len(seen)) / best


def inside(halves: Sequence[Half], after: float, until: float = 1e9) -> float:
    seen = [half for half in halves if after < half.at <= until]
    return sum(half.inside for half in seen) / len(seen)


@pytest.mark.parametrize("draw", DRAWS)
@pytest.mark.parametrize("places", [4, 16, 64, 256])
def test_a_server_with_places_is_kept_busy_with_a_short_line(draw: str, places: int) -> None:
    seconds = 60.0 if places == 4 else 20.0  # 40 answers a second teach less than 2,560 do
    runs = [saturate(limit(), slots(places, draw, seed), seconds) for seed in (1, 2)]
    settled = 10.0 if places == 4 else 5.0
    # Chance alone moves what 2,400 exponential times come to by 2 %.
    slack = 0.03 if places <= 16 else 0.01
    assert sum(goodput(run, settled, places / MEAN) for run in runs) / 2 >= 0.95 - slack
    assert sum(inside(run, settled) for run in runs) / 2 <= 2 * places


@pytest.mark.parametrize(
    ("start", "settled"),
    [pytest.param(2, 8.0, id="far too low"), pytest.param(32, 3.0, id="default"), pytest.param(256, 5.0, id="far too high")],
)
def test_a_cold_start_is_over_within_seconds_wherever_it_begins(start: int, settled: float) -> None:
    halves = saturate(limit(start), slots(32, "uneven"), 20.0)
    assert goodput(halves, settled, 32 / MEAN) >= 0.95
    assert inside(halves, settled) <= 1.5 * 32


@pytest.mark.parametrize("draw", DRAWS)
def test_when_places_are_lost_the_line_is_gone_within_ten_seconds(draw: str) -> None:
    server = slots(64, draw, 5)
    halves = saturate(limit(), server, 50.0, [(20.0, lambda now: server.resize(16, now))])
    assert goodput(halves, 30.0, 16 / MEAN) >= 0.9
    assert inside(halves, 35.0) <= 2.2 * 16


@pytest.mark.parametrize("draw", DRAWS)
def test_when_places_are_added_they_are_used_within_ten_seconds(draw: str) -> None:
    server = slots(16, draw, 5)
    halves = saturate(limit(), server, 40.0, [(20.0, lambda now: server.resize(128, now))])
    assert goodput(halves, 32.0, 128 / MEAN) >= 0.93
    assert inside(halves, 32.0) <= 1.6 * 128


@pytest.mark.parametrize("draw", DRAWS)
def test_answers_that_become_longer_are_not_taken_for_a_line(draw: str) -> None:
    dice = random.Random(5)
    plain = DRAWS[draw](MEAN, dice)

    def longer(now: float) -> float:
        """Three times as long after a minute, bit by bit."""
        return plain(now) * (1 + 2 * min(1.0, max(0.0, (now - 10.0) / 60.0)))

    halves = saturate(limit(), Slots(32, longer), 90.0)
    assert goodput(halves, 72.0, 32 / MEAN / 3) >= 0.9
    assert inside(halves, 72.0) <= 2 * 32


@pytest.mark.parametrize("draw", DRAWS)
def test_answers_that_are_suddenly_twice_as_long_cost_little_for_little_time(draw: str) -> None:
    dice = random.Random(5)
    plain = DRAWS[draw](MEAN, dice)
    halves = saturate(limit(), Slots(32, lambda now: plain(now) * (1 if now < 20.0 else 2)), 40.0)
    assert goodput(halves, 20.0, 32 / MEAN / 2, 24.0) >= 0.8
    assert goodput(halves, 24.0, 32 / MEAN / 2) >= 0.9


@pytest.mark.parametrize("draw", DRAWS)
def test_a_server_that_batches_is_let_fill_its_batch(draw: str) -> None:
    server = Batching(32.0, 64, DRAWS[draw](MEAN, random.Random(5)))
    halves = saturate(limit(), server, 60.0)
    assert goodput(halves, 30.0, server.best(MEAN)) >= 0.9
    assert inside(halves, 30.0) <= 2.5 * 64


@pytest.mark.parametrize("draw", DRAWS)
def test_a_server_without_a_largest_batch_is_not_buried(draw: str) -> None:
    """It gives a little more the more it is given, and each answer takes the longer: that has to pay."""
    server = Batching(32.0, 1 << 30, DRAWS[draw](MEAN, random.Random(5)))
    halves = saturate(limit(), server, 60.0)
    assert goodput(halves, 30.0, 32.0 / MEAN) >= 0.55
    assert inside(halves, 30.0) <= 32 * 32


def test_a_route_that_does_not_fill_its_limit_is_not_limited() -> None:
    found = limit()
    for count in range(5000):
        found.sample(20 if count % 2 else 15, 0.1 + 0.001 * (count % 7), 0.1, count * 0.01, False)
    assert found.value == 32


def test_times_to_the_first_content_tell_a_line_too() -> None:
    """Streams: the first content comes after a wait in line and 20 ms, and the place is held for a second more."""
    found = limit()
    places, now = 16, 0.0
    while now < 60.0:
        now += 1.02 / min(found.value, places)
        line = max(0, found.value - places) * 1.02 / places
        found.sample(found.value, 0.02 + line, 1.02 + line, now, False)
    assert places <= found.value <= 1.6 * places


def test_a_refusal_of_the_model_is_believed_at_once_and_once_for_each_time_that_a_request_takes() -> None:
    found = limit()
    found.sample(24, 0.01, 0.01, 5.0, True)
    assert found.value == 23
    found.sample(20, 0.01, 0.01, 5.05, True)
    assert found.value == 23
    found.sample(20, 0.01, 0.01, 5.2, True)
    assert found.value == 19


def test_a_refusal_while_little_is_under_way_says_nothing_about_room() -> None:
    found = limit()
    found.sample(10, 0.01, 0.01, 5.0, True)
    assert found.value == 32


@pytest.mark.parametrize(("least", "most"), [(8, 8), (20, 40), (2, 10)])
def test_the_limit_stays_within_its_bounds(least: int, most: int) -> None:
    found = Limit(32, least, most)
    seen = {found.value}
    server = slots(4, "uneven")
    for _ in saturate(found, server, 10.0):
        seen.add(found.value)
    assert least <= min(seen) <= max(seen) <= most


def test_new_bounds_hold_at_once() -> None:
    found = limit()
    found.bound(2, 5)
    assert found.value == 5
    found.bound(9, 50)
    assert found.value >= 9


def test_the_search_ends_and_the_base_is_the_time_of_the_quickest() -> None:
    found = limit()
    before = found.searching, found.base
    saturate(found, slots(16, "constant"), 10.0)
    assert before == (True, 0.0)
    assert found.searching is False
    assert found.base == pytest.approx(MEAN, rel=0.05)
    assert found.allowed == 1.0


def test_nothing_is_concluded_from_less_than_a_window() -> None:
    found = limit()
    for count in range(32 + BATCH * FEWEST - 1):  # those from before the first window are left out
        found.sample(32, 9.0, 9.0, float(count), False)
    assert found.value == 32
    found.sample(32, 9.0, 9.0, 99.0, False)
    assert found.value == 16
