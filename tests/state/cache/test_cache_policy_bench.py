"""The bench of hit ratios, in short."""

from __future__ import annotations

import pytest

from sits.bench import cache_policy
from sits.bench.cache_traces import ELSEWHERE, scanned, traces, zipf
from sits.state.cache.eviction import Limit, Lru
from sits.state.cache.tinylfu import TinyLfu


# On traces as short as a test can afford, theine differs from run to run, and on these two by more than two points; the bench
# holds them to the bound at their full length.
@pytest.mark.parametrize("name", [name for name in traces(1, 1, 1) if name not in ("loop", "sessions")])
def test_we_are_within_two_points_of_theine_on(name: str) -> None:
    (figure,) = cache_policy.beside(name, traces(40_000, 200, 7)[name](), 200, {})
    assert figure.name == f"cache_behind_theine_{name}"
    assert figure.ok, figure.detail


@pytest.mark.parametrize("size", [100, 200, 500])
def test_on_a_loop_that_does_not_fit_we_keep_most_of_what_fits_where_lru_keeps_nothing(size: int) -> None:
    trace = traces(40_000, size, 7)["loop"]()
    ours, lru = (cache_policy.replay(make(Limit(size, size)), trace, {}).all for make in (TinyLfu, Lru))
    assert ours > 60
    assert lru == 0


def test_a_scan_costs_us_less_than_two_points_and_lru_more() -> None:
    figures = {figure.name: figure for figure in cache_policy.resistance(40_000, 200, 7, {})}
    assert [figures[f"cache_scan_cost_{who}"].ok for who in ("ours", "lru_k", "lru")] == [True, True, None]
    assert (figures["cache_scan_cost_lru"].value or 0) > 2


def test_the_same_seed_is_the_same_trace() -> None:
    assert zipf(0.9, 1000, 7) == zipf(0.9, 1000, 7) != zipf(0.9, 1000, 8)


def test_a_scan_asks_for_everything_once() -> None:
    scan = [number for number in scanned(0.9, 9000, 7, 500) if number >= ELSEWHERE]
    assert (len(scan), len(set(scan))) == (1000, 1000)


def test_a_ratio_counts_hits_over_requests_and_scans_apart() -> None:
    found = cache_policy.replay(Lru(Limit(10, 10)), [1, 1, ELSEWHERE, 1], {})
    assert (found.all, found.drawn) == (50.0, pytest.approx(200 / 3))


def test_without_theine_there_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_policy, "theine", lambda trace, size: None)
    (figure,) = cache_policy.beside("loop", [1, 2, 1], 10, {})
    assert (figure.value, figure.ok) == (None, False)
    assert figure.detail.startswith("theine is not installed; ours ")
