"""The routing bench: its simulator agrees with queueing theory, repeats by its seed, and a quick run is whole."""

from __future__ import annotations

import statistics
import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest

from sits.bench import BenchError, Plan, routing, routing_real
from sits.bench.page import render
from sits.bench.routing_bound import least_mean
from sits.bench.routing_cluster import fragmentation, place
from sits.bench.routing_pool import (
    ALIKE,
    BURSTY,
    EXACT,
    FAILING,
    GENERATIONS,
    KNOWING,
    LIMIT,
    MIXED,
    OF_GENERATIONS,
    OURS,
    RIVALS,
    RR,
    STEADY,
    TRAFFIC,
    WLC,
    World,
    at,
    capacities,
    once,
    stale,
    usual,
    weights_of,
)
from sits.bench.routing_world import LINE, PATIENCE, Ask, Backend, Lengths, Seen, Simulation, Traffic, Trouble, asks, peak
from sits.routing.policies import POLICIES
from sits.routing.policies.fit import Roomiest, Tightest

ONE_SECOND = Lengths(prompt=1.0, prompt_sigma=0.0, answer=100.0, answer_sigma=0.0, straggler=0.0)
"""Each request takes 1 s of a backend that writes 100 tokens a second."""


def alone(backend: Backend, trace: list[Ask], *troubles: Trouble) -> Seen:
    return Simulation([backend], [POLICIES["round-robin"]()], [1.0], troubles, 1).run(trace)


def one_slot(slots: int = 1, crowd: float = 0.0) -> Backend:
    return Backend("one", slots, 1e12, 100.0, crowd)


# The simulator


@pytest.mark.parametrize("load", [0.3, 0.6, 0.8])
def test_one_slot_waits_as_an_m_d_1_queue_does(load: float) -> None:
    seen = alone(one_slot(), asks(STEADY, ONE_SECOND, load, 20_000.0, 3))
    assert seen.waited == pytest.approx(load / (2.0 * (1.0 - load)), rel=0.1)
    assert seen.mean == pytest.approx(1.0 + seen.waited, rel=1e-6)


@pytest.mark.parametrize("load", [0.3, 0.6])
def test_slots_that_share_one_speed_are_as_slow_as_processor_sharing(load: float) -> None:
    seen = alone(one_slot(101, 100.0), asks(STEADY, ONE_SECOND, load, 20_000.0, 3))
    assert seen.mean == pytest.approx(1.0 / (1.0 - load), rel=0.1)
    assert seen.waited == 0.0


def test_what_each_request_takes_is_what_there_is_to_read_and_to_write() -> None:
    backend = Backend("b", 2, 1000.0, 50.0, crowd=1.0)
    seen = alone(backend, [Ask(0.0, 1000, 100, 1.0), Ask(10.0, 1000, 100, 2.0)])
    assert (seen.mean, seen.p99) == (pytest.approx((3.0 + 6.0) / 2), pytest.approx(6.0))
    assert alone(backend, [Ask(0.0, 0, 100, 1.0), Ask(0.0, 0, 100, 1.0)]).mean == pytest.approx(4.0)


def test_a_backend_that_is_slower_for_a_while_is_as_fast_again_after_it() -> None:
    trace = [Ask(at, 0, 100, 1.0) for at in (0.0, 10.0, 30.0)]
    seen = alone(one_slot(), trace, Trouble(0, 10.5, 20.0, slow=4.0))
    assert seen.mean == pytest.approx((1.0 + (0.5 + 2.0) + 1.0) / 3)


def test_who_waits_too_long_goes_away_and_who_finds_a_full_line_is_refused() -> None:
    trace = [Ask(0.0, 0, 100, 1.0)] * 200
    seen = alone(one_slot(), trace)
    assert (seen.offered, seen.dropped) == (200, 200 - int(PATIENCE))
    assert seen.p99 == PATIENCE
    refused = alone(one_slot(), [Ask(0.0, 0, 100, 1.0)] * (LINE + 100))
    assert refused.dropped == LINE + 100 - int(PATIENCE)


def test_a_backend_that_fails_gives_no_answers() -> None:
    seen = alone(one_slot(), [Ask(at, 0, 10, 1.0) for at in (0.0, 10.0, 20.0)], Trouble(0, 5.0, 15.0, fails=1.0))
    assert (seen.dropped, seen.mean) == (1, pytest.approx((0.1 + PATIENCE + 0.1) / 3))


@pytest.mark.parametrize("name", RIVALS)
def test_a_run_is_repeated_by_its_seed(name: str) -> None:
    world = World(MIXED, FAILING, seconds=120.0, gateways=2, scrape=1.0)
    assert once(RIVALS[name], world, 8.0, 5) == once(RIVALS[name], world, 8.0, 5)


def test_every_policy_gets_the_same_requests_at_the_same_rate() -> None:
    bursts = [asks(BURSTY, Lengths(), 10.0, 600.0, seed) for seed in range(10)]
    assert statistics.fmean(len(trace) / 600.0 for trace in bursts) == pytest.approx(10.0, rel=0.15)
    assert asks(BURSTY, Lengths(), 10.0, 600.0, 3) == bursts[3]
    gaps = [later.at - earlier.at for trace in bursts for earlier, later in pairwise(trace)]
    assert statistics.pstdev(gaps) > 1.1 * statistics.fmean(gaps), "more uneven than Poisson"
    assert Traffic("steady").burst == STEADY.burst == 1.0


def test_the_peak_is_the_last_rate_that_is_carried() -> None:
    assert peak(lambda rate: rate <= 7.3, 1.0, 20.0, 20) == pytest.approx(7.3, abs=0.001)
    assert peak(lambda rate: False, 1.0, 20.0, 20) == 0.0


def test_a_pool_at_its_capacity_is_just_full() -> None:
    world = World(ALIKE, STEADY, seeds=(7,), seconds=600.0)
    assert at(RIVALS[EXACT], world, 0.9 * world.capacity).waited < 1.0
    assert at(RIVALS[EXACT], world, 1.2 * world.capacity).waited > 10.0
    assert len(capacities(ALIKE)) == 8


# What is told, and what is possible


def test_weights_are_whose_they_are_said_to_be() -> None:
    assert weights_of("equal", MIXED) == [1.0] * 8
    assert weights_of("slots", MIXED) == [32.0, 32.0, 16.0, 16.0, 16.0, 8.0, 8.0, 8.0]
    assert weights_of("sheet", GENERATIONS)[::2] == pytest.approx([2250 / 0.035, 989 / 0.035, 312 / 0.035, 125 / 0.035])
    exact = capacities(MIXED)
    assert weights_of("capacity", MIXED) == exact
    assert weights_of("stale", MIXED) == [exact[2], exact[1], exact[0], *exact[3:]]
    assert stale([3.0, 3.0]) == [3.0, 3.0]


def test_four_generations_are_as_their_data_sheets_say() -> None:
    assert [one.slots for one in GENERATIONS[::2]] == [36, 13, 13, 3]
    assert [round(one.writes, 1) for one in GENERATIONS[::2]] == [571.4, 239.3, 145.6, 64.3]
    assert World(MIXED, STEADY).limit == LIMIT
    assert World(GENERATIONS, STEADY).limit == pytest.approx(17.5)


def test_the_least_mean_of_a_backend_without_a_crowd_is_that_of_one_request() -> None:
    backend = Backend("b", 100, 1e12, 50.0, crowd=0.0)
    trace = asks(STEADY, Lengths(), 5.0, 300.0, 1)
    alone_takes = statistics.fmean(ask.more * backend.work(ask.prompt, ask.answer) for ask in trace) / 50.0
    assert least_mean(World((backend,), STEADY, seeds=(1,)), 5.0) == pytest.approx(alone_takes)
    assert alone_takes == pytest.approx(usual()[1] / 50.0, rel=0.1)


def test_a_backend_that_is_twice_as_slow_half_the_time_adds_half_as_much_then() -> None:
    backend = Backend("b", 100, 1e12, 50.0, crowd=0.0)
    slow = Traffic("slow", troubles=(Trouble(0, 0.0, 150.0, slow=2.0),))
    well, ill = (least_mean(World((backend,), traffic, seeds=(1,)), rate) for traffic, rate in ((STEADY, 15.0), (slow, 15.0)))
    # Work is done while it is well as long as there is room: 100 slots half the time give half of what is wanted at the least.
    assert well < ill < 2.0 * well
    assert least_mean(World((backend,), STEADY, seeds=(1,)), 40.0) == float("inf")


@pytest.mark.parametrize("traffic", TRAFFIC, ids=lambda traffic: traffic.name)
@pytest.mark.parametrize("name", [WLC, EXACT, OURS, KNOWING])
def test_no_policy_is_quicker_than_what_is_possible(traffic: Traffic, name: str) -> None:
    world = World(MIXED, traffic, seeds=(21, 22))
    rate = 0.5 * world.capacity
    assert at(RIVALS[name], world, rate).mean > 0.99 * least_mean(world, rate)


# What it is for


def test_with_backends_of_three_speeds_ours_is_quicker_than_turns_and_needs_no_weights() -> None:
    world = World(MIXED, STEADY, seeds=(21,))
    rate = 0.7 * world.capacity
    ours, exact, turns = (at(RIVALS[name], world, rate) for name in (OURS, EXACT, RR))
    assert ours.dropped == 0
    assert ours.mean < 1.1 * exact.mean
    assert ours.mean < 0.5 * turns.mean


def test_with_equal_backends_nothing_is_lost() -> None:
    world = World(ALIKE, STEADY, seeds=(21,))
    rate = 0.7 * world.capacity
    assert at(RIVALS[OURS], world, rate).mean < 1.03 * at(RIVALS[WLC], world, rate).mean


def test_a_backend_that_fails_at_once_does_not_draw_the_traffic() -> None:
    world = World(MIXED, FAILING, seeds=(21,))
    rate = 0.5 * world.capacity
    ours, exact = at(RIVALS[OURS], world, rate), at(RIVALS[EXACT], world, rate)
    assert ours.drops < 0.05 < 0.15 < exact.drops


# A thousand nodes


def test_the_tightest_fit_leaves_less_in_pieces_and_nobody_waits_longer() -> None:
    plain, tight = place(Roomiest, 45.0, 2), place(Tightest, 45.0, 2)
    assert plain.requests == tight.requests
    assert tight.fragmentation < plain.fragmentation / 3.6
    assert tight.waited <= plain.waited


def test_free_memory_that_is_too_little_for_a_request_is_fragmented() -> None:
    assert fragmentation([32, 16]) == 0.0
    assert fragmentation([8, 8]) == pytest.approx(0.05)
    assert fragmentation([0, 0]) == 0.0


# The bench


def quick(*parts: str) -> Plan:
    return Plan(lambda text: None, Path("unused"), quick=True, only=parts)


def test_a_quick_run_is_whole() -> None:
    outcome = routing.run(quick("pool", "generations", "alike", "gateways", "cluster", "cost"))
    bounds = [figure.name for figure in outcome.figures if figure.bound is not None]
    assert bounds == [
        "routing_mean_vs_round_robin",
        "routing_peak_vs_round_robin",
        "routing_mean_vs_weighted_least_connections",
        "routing_peak_vs_weighted_least_connections",
        "routing_pareto",
        "routing_generations_mean_vs_round_robin",
        "routing_generations_peak_vs_round_robin",
        "routing_generations_mean_vs_weighted_least_connections",
        "routing_generations_peak_vs_weighted_least_connections",
        "routing_gateways_single_prompts",
        "routing_gateways_conversations",
        "routing_report_us",
        "routing_cluster_latency",
        "routing_cluster_fragmentation",
        "routing_pick_us",
        "routing_notes_us",
    ]
    assert all(figure.value is not None for figure in outcome.figures)
    files = render(outcome.page, outcome.figures)
    assert sorted(files) == [
        "routing.md",
        "routing/front-bursty.svg",
        "routing/front-degrading.svg",
        "routing/front-steady.svg",
    ]
    for name, text in files.items():
        if name.endswith(".svg"):
            assert len(ET.fromstring(text).findall("{http://www.w3.org/2000/svg}polyline")) == 3
    assert "A quick run" in files["routing.md"]


def test_a_real_gateway_before_real_servers_is_as_simulated() -> None:
    rivals = {name: RIVALS[name] for name in (RR, OURS)}
    turns, ours = routing_real.compare(rivals, 15.0, 1.5, 4, lambda text: None)
    assert [(one.name, one.failed) for one in (turns, ours)] == [(RR, 0), (OURS, 0)]
    assert turns.offered == ours.offered
    assert max(turns.shares) - min(turns.shares) <= 1.01 / turns.offered, "each server in its turn"
    assert turns.mean == pytest.approx(turns.simulated, rel=0.35)
    assert ours.mean < turns.mean


def test_the_weights_of_the_real_routes_are_those_that_are_said() -> None:
    told = {name: routing_real.weights_of(one) for name, one in OF_GENERATIONS.items()}
    assert told[WLC] == [1.0] * 4
    assert told[EXACT] == [8.0, 4.0, 2.0, 1.0]
    assert told["least-connections, stale weights"] == [4.0, 8.0, 2.0, 1.0]
    assert told["least-connections, data sheet"] == [18.0, 7.9, 2.5, 1.0]


def test_a_part_that_there_is_not_is_said() -> None:
    with pytest.raises(BenchError, match="no part 'pols'; there are: pool, generations, talks, alike"):
        routing.run(quick("pols"))
