"""When a plugin is fenced off and when it is back, by a clock of the test's own."""

from __future__ import annotations

import pytest

from sits.routing.plugins.fence import Fence, described
from sits.routing.plugins.limits import Alarm, Limits


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def fence(limits: Limits | None = None) -> tuple[Fence, Clock, list[str]]:
    clock, heard = Clock(), []
    made = Fence("score", "mine", clock, limits, heard=lambda one: heard.append("out" if one.out else "back"))
    return made, clock, heard


def trouble(one: Fence, times: int) -> None:
    for _ in range(times):
        one.trouble("raised", "raised RuntimeError")


def test_the_third_trouble_fences_it_off():
    one, _, heard = fence()
    seen = []
    for _ in range(4):
        trouble(one, 1)
        seen.append(one.out)
    assert seen == [False, False, True, True]
    assert heard == ["out"]


@pytest.mark.parametrize(("good", "out"), [(0, True), (50, True), (99, True), (100, False)])
def test_a_hundred_good_calls_in_a_row_heal_what_was_before(good, out):
    one, _, _ = fence()
    trouble(one, 2)
    for _ in range(good):
        one.well(1e-6)
    trouble(one, 1)
    assert one.out is out


def test_good_calls_between_troubles_do_not_add_up():
    one, _, heard = fence()
    for _ in range(3):
        assert heard == []
        trouble(one, 1)
        for _ in range(60):
            if not one.out:
                one.well(1e-6)
    assert heard == ["out"]


def test_it_rests_for_a_growing_while_and_is_called_once_to_see():
    one, clock, _ = fence()
    trouble(one, 3)
    rests = []
    for _ in range(8):
        begun = clock.now
        while not one.open(clock.now):
            clock.now += 1.0
        rests.append(clock.now - begun)
        trouble(one, 1)
    assert rests == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0]


def test_one_good_call_brings_it_back_and_one_more_trouble_fences_it_for_longer():
    one, clock, heard = fence()
    trouble(one, 3)
    clock.now += 5.0
    assert one.open(clock.now)
    one.well(1e-6)
    assert (one.out, one.since) == (False, 105.0)
    trouble(one, 1)
    assert one.out
    assert not one.open(clock.now + 9.9)
    assert one.open(clock.now + 10.0)
    assert heard == ["out", "back", "out"]


def test_after_a_hundred_good_calls_nothing_is_held_against_it():
    one, clock, _ = fence()
    trouble(one, 3)
    clock.now += 5.0
    for _ in range(101):
        one.well(1e-6)
    assert one.why == ""
    trouble(one, 3)
    assert one.open(clock.now + 5.0)


def test_a_new_version_begins_anew_and_its_counters_go_on():
    one, _, _ = fence()
    for _ in range(7):
        one.well(0.001)
    trouble(one, 3)
    made = one.mended()
    assert (made.out, made.why, made.calls, made.counts["raised"], made.most) == (False, "", 7, 3, 0.0)
    trouble(made, 2)
    made.well(0.25)
    assert (made.own.calls, made.own.counts["raised"], round(made.own.seconds, 3), made.most) == (1, 2, 0.25, 0.25)
    assert not made.out
    assert one.out


@pytest.mark.parametrize(
    ("kept", "before", "after", "said"),
    [
        pytest.param(0, (1, 2, 3), (1, 2, 3), "", id="nothing"),
        pytest.param(0, (1, 2, 3), (2, 2, 3), "left a thread running", id="a thread"),
        pytest.param(0, (1, 2, 3), (1, 3, 3), "left a file open", id="a file"),
        pytest.param(0, (1, 2, 3), (1, 2, 4), "left a task running", id="a task"),
        pytest.param(0, (1, 2, 3), (0, 1, 2), "", id="less than before"),
        pytest.param(1 << 20, (1, 2, 3), (1, 2, 3), "kept 1024 KiB of memory in one call", id="a megabyte"),
        pytest.param(256 * 1024, (1, 2, 3), (1, 2, 3), "", id="as much as it may"),
    ],
)
def test_what_a_call_leaves_behind(kept, before, after, said):
    one, _, _ = fence()
    assert one.sampled(kept, before, after) == said


def test_a_little_in_each_call_is_found_by_the_sum():
    one, _, _ = fence()
    same = (0, 0, 0)
    found = []
    while not found:
        one.calls += 256
        said = one.sampled(200, same, same)
        if said:
            found.append((one.calls, said))
    assert found == [(335616, "has kept about 64 MiB of memory in 335616 calls")]


def test_one_large_table_that_grew_in_a_sampled_call_is_no_leak():
    one, _, _ = fence()
    same = (0, 0, 0)
    said = set()
    for number in range(5000):
        one.calls += 256
        said.add(one.sampled(200_000 if number % 100 == 50 else 0, same, same))
    assert said == {""}


def test_the_first_three_calls_are_sampled_and_then_one_of_256():
    one, _, _ = fence()
    dues = []
    for _ in range(4):
        one.sampled(0, (0, 0, 0), (0, 0, 0))
        dues.append(one.due)
    assert dues == [1, 1, 256, 256]


@pytest.mark.parametrize(
    ("took", "before", "after", "said"),
    [
        pytest.param(0.004, (1.0, 0), (1.0, 0), "", id="quick"),
        pytest.param(0.02, (1.0, 0), (1.0, 0), "took 20.0 ms", id="it waited"),
        pytest.param(0.02, (1.0, 0), (1.02, 3), "took 20.0 ms", id="it computed"),
        pytest.param(0.02, (1.0, 0), (1.0001, 1), "", id="others had the processor"),
    ],
)
def test_slow_by_itself(took, before, after, said):
    one, _, _ = fence()
    assert one.slow(took, before, after) == said


class Nasty(Exception):
    def __str__(self):
        raise SystemExit


class Rude(Exception):
    def __str__(self):
        return "\x1b[2Jbell\a" + "x" * 10_000


@pytest.mark.parametrize(
    ("error", "said"),
    [
        pytest.param(ValueError("没有标签"), "raised ValueError: 没有标签", id="its words"),
        pytest.param(SystemExit(), "raised SystemExit", id="no words"),
        pytest.param(Nasty(), "raised Nasty: with no words that can be read", id="words that raise"),
        pytest.param(Rude(), "raised Rude: �[2Jbell�" + "x" * 191, id="words for a terminal"),
    ],
)
def test_an_error_is_told_in_a_line(error, said):
    assert described(error, Alarm(), 1.0) == said
