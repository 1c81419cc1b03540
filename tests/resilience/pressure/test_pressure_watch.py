"""A trigger over time: what holds long enough acts, what is over long enough ends, and what nobody saw changes nothing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resilience.pressure import Watch
from sits.resources.reliability import Trigger

GPU = Trigger("accelerator_memory", 92.0, duration_seconds=5.0)


def acting(trigger: Trigger, story: list[tuple[float, float | None]]) -> str:
    """What the watch says after each (time, value): `!` while it acts."""
    watch = Watch(trigger)
    said = ""
    for now, value in story:
        before = watch.acting
        assert watch.look(value, now) == (watch.acting != before)
        said += "!" if watch.acting else "."
    return said


@pytest.mark.parametrize(
    ("trigger", "story", "said"),
    [
        pytest.param(GPU, [(0, 0.95), (4.9, 0.95), (5, 0.95)], "..!", id="five seconds above"),
        pytest.param(GPU, [(0, 0.92), (5, 0.92)], "..", id="at the threshold is not above it"),
        pytest.param(GPU, [(0, 0.95), (3, 0.91), (5, 0.95), (9, 0.95), (10, 0.95)], "....!", id="a break begins anew"),
        pytest.param(GPU, [(0, 0.95), (5, 0.95), (6, 0.85), (20, 0.85)], ".!!!", id="below the threshold is not released"),
        pytest.param(GPU, [(0, 0.95), (5, 0.95), (6, 0.82), (10, 0.82), (11, 0.82)], ".!!!.", id="nine tenths, five seconds"),
        pytest.param(GPU, [(0, 0.95), (5, 0.95), (6, 0.8), (9, 0.9), (11, 0.8), (15, 0.8), (16, 0.8)], ".!!!!!.", id="a break"),
        pytest.param(Trigger("queue", 100.0), [(0, 100), (1, 101), (2, 95), (3, 89)], ".!!.", id="at once when no time is given"),
        pytest.param(Trigger("queue", 100.0, release=50.0), [(0, 101), (1, 60), (2, 49)], "!!.", id="its own release"),
        pytest.param(
            Trigger("queue", 9.0, duration_seconds=2, release_seconds=10), [(0, 10), (2, 10), (3, 1), (12, 1), (13, 1)], ".!!!.",
            id="its own time to release",
        ),
        pytest.param(GPU, [(0, 0.95), (5, 0.95), (6, None), (600, None)], ".!!!", id="absent: what acts goes on"),
        pytest.param(GPU, [(0, 0.95), (3, None), (4, 0.95), (8, 0.95), (9, 0.95)], "....!", id="absent: the time begins again"),
        pytest.param(GPU, [(0, 0.95), (5, 0.95), (6, 0.5), (8, None), (9, 0.5), (12, 0.5), (14, 0.5)], ".!!!!!.", id="both ways"),
        pytest.param(GPU, [(0, None), (50, None)], "..", id="absent from the start"),
    ],
)  # fmt: skip
def test_it_acts_when(trigger: Trigger, story: list[tuple[float, float | None]], said: str) -> None:
    assert acting(trigger, story) == said


@pytest.mark.parametrize(
    ("metric", "threshold", "release", "meant"),
    [
        ("accelerator_memory", 92.0, None, (0.92, 0.828)),
        ("accelerator_memory", 0.92, 80.0, (0.92, 0.8)),
        ("gpu_memory_utilization", 92.0, 0.5, (0.92, 0.5)),
        ("host_cpu", 1.0, None, (1.0, 0.9)),
        ("kv_cache:m", 90.0, None, (0.9, 0.81)),
        ("queue", 92.0, 1.0, (92.0, 1.0)),
        ("loop_lag_ms", 250.0, None, (250.0, 225.0)),
        ("prometheus:up", 92.0, None, (92.0, 82.8)),
    ],
)
def test_a_share_may_be_given_in_per_cent(
    metric: str, threshold: float, release: float | None, meant: tuple[float, float]
) -> None:
    watch = Watch(Trigger(metric, threshold, release=release))
    assert (watch.threshold, watch.release) == pytest.approx(meant)


def test_the_phase_says_where_it_is_on_its_way() -> None:
    watch, phases = Watch(GPU), []
    for now, value in [(0.0, 0.5), (1.0, 0.95), (6.0, 0.95), (7.0, 0.5), (12.0, 0.5)]:
        watch.look(value, now)
        phases.append(watch.phase)
    assert phases == ["calm", "rising", "acting", "falling", "calm"]


READINGS = st.lists(st.tuples(st.sampled_from([0.5, 1.0, 2.0]), st.sampled_from([None, 1.0, 8.5, 9.5, 10.0, 11.0])), max_size=40)


@settings(max_examples=100, deadline=None)
@given(READINGS, st.sampled_from([0.0, 1.0, 3.0]), st.sampled_from([None, 0.0, 4.0]))
def test_it_does_as_a_plain_look_back_says(readings: list[tuple[float, float | None]], hold: float, let_go: float | None) -> None:
    watch = Watch(Trigger("queue", 10.0, duration_seconds=hold, release_seconds=let_go))
    past: list[tuple[float, float | None]] = []
    now, acts = 0.0, False
    for passed, value in readings:
        now += passed
        past.append((now, value))
        crossed = [value is not None and (value < 9.0 if acts else value > 10.0) for _, value in past]
        unbroken = next((place for place in range(len(past) - 1, -1, -1) if not crossed[place]), -1) + 1
        seconds = (hold if let_go is None else let_go) if acts else hold
        if crossed[-1] and now - past[unbroken][0] >= seconds:
            acts = not acts
            past = []
        watch.look(value, now)
        assert watch.acting == acts
