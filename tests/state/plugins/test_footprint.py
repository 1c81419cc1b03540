"""Leaks of real memory, threads and files are seen, and what is no leak is none."""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence

import pytest

from sits.routing.plugins.fence import Fence
from sits.routing.plugins.limits import Limits
from sits.routing.plugins.making import fenced_score
from sits.routing.scheduling.base import Candidate, Facts, Made, Score
from sits.routing.scheduling.checks import candidates_of, facts_of, made_for
from sits.state.plugins.footprint import ProcessFootprint


class Switched(ProcessFootprint):
    """Of a thread from which the processor was taken so often."""

    def __init__(self, times):
        super().__init__()
        self.times = times

    def turns(self):
        return time.thread_time(), int(str(self.times))


FEW, MANY = 3, 1_000_000
"""A number that Python has in stock, and one that is an object of its own."""


def fenced(keep, limits=None, size=8, footprint=None):
    class Mine(Score):
        name = "mine"

        def __init__(self, made: Made) -> None:
            self.kept: list = []
            self.calls = 0

        def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
            self.calls += 1
            keep(self)
            return [float(self.calls % 97 + one.index) for one in candidates]

    candidates = candidates_of(size)
    fence = Fence("score", "mine", time.perf_counter, limits or Limits(slow=1.0), footprint=footprint or ProcessFootprint())
    mine = fenced_score(Mine, made_for(candidates, {}), fence)
    facts = facts_of(0)
    return fence, lambda: mine.score(facts, candidates), mine.plugin


def until_out(fence, call, most):
    for number in range(1, most + 1):
        call()
        if fence.out:
            return number
    return None


@pytest.fixture
def looks(monkeypatch):
    """What each look has seen kept. What another thread of this process gives back or takes meanwhile is in one of them."""
    seen, sampled = [], Fence.sampled

    def noted(fence, kept, before, after):
        seen.append(kept)
        return sampled(fence, kept, before, after)

    monkeypatch.setattr(Fence, "sampled", noted)
    return seen


@pytest.mark.parametrize("times", [FEW, MANY])
def test_what_each_call_keeps_is_measured_to_the_block(times, looks):
    """An object is a block of 64 bytes by our count; its place in the list that keeps it is eight more, now and then."""
    limits = Limits(troubles=10**9, slow=1.0, sampled_first=600, all_bytes=1 << 60)
    _, call, _ = fenced(lambda mine: mine.kept.append(object()), limits, footprint=Switched(times))
    for _ in range(600):
        call()
    assert (statistics.median(looks), len(looks)) == (64, 600)


@pytest.mark.parametrize("times", [FEW, MANY])
def test_one_that_keeps_nothing_is_seen_to_keep_nothing(times, looks):
    limits = Limits(troubles=10**9, slow=1.0, sampled_first=600, all_bytes=1 << 60)
    _, call, _ = fenced(lambda mine: None, limits, footprint=Switched(times))
    for _ in range(600):
        call()
    assert (statistics.median(looks), len(looks)) == (0, 600)


def test_a_leak_of_a_hundred_bytes_a_call_is_found_once_it_adds_up():
    fence, call, _ = fenced(lambda mine: mine.kept.append(bytes(100)), Limits(slow=1.0, all_bytes=1 << 20))
    found = until_out(fence, call, 150_000)
    # A block a call, and the list that keeps them grows now and then: 1 MiB are 16384 blocks at the most. What another thread of
    # this process gives back in a look has to be made up for by others, and one of 256 calls is looked at.
    assert found is not None
    assert found > 4_000
    assert fence.why.startswith("has kept about 1 MiB of memory in ")


def test_a_plugin_that_begins_to_leak_when_it_is_trusted_is_found_by_the_next_sample():
    fence, call, _ = fenced(lambda mine: mine.kept.append(bytearray(1 << 20)) if mine.calls > 600 else None)
    assert until_out(fence, call, 600) is None
    found = until_out(fence, call, 300)
    assert found is not None
    assert found <= 258  # of 256 calls one is sampled, and after the first trouble the next ones are


@contextlib.contextmanager
def seldom_collected():
    """As in a gateway: garbage in circles is left for long, so that there is much of it."""
    before = gc.get_threshold()
    gc.collect()
    gc.set_threshold(50_000, 20, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.collect()


def litter(number):
    """What requests leave behind: circles."""
    for _ in range(number):
        one = [bytearray(1000)]
        one.append(one)


@pytest.mark.parametrize("begins", [1, 2, 31, 100, 259, 260, 400])
def test_a_leak_of_a_little_too_much_is_found_as_soon_as_is_promised_whatever_others_leave(begins):
    fence, call, _ = fenced(lambda mine: mine.kept.append(bytearray(300 * 1024)) if mine.calls >= begins else None)
    calls = 0
    with seldom_collected():
        while not fence.out and calls < begins + 600:
            litter(20)
            call()
            calls += 1
    assert fence.out
    assert calls <= 3 if begins == 1 else calls - begins <= 258


def test_circles_are_no_leak_whatever_others_leave():
    def circle(mine):
        one = [bytearray(1 << 20)]
        one.append(one)

    fence, call, _ = fenced(circle)
    with seldom_collected():
        for _ in range(600):
            litter(20)
            call()
    assert (fence.out, fence.counts["leaked"]) == (False, 0)


def test_garbage_is_collected_as_before_once_a_call_was_looked_at():
    fence, call, _ = fenced(lambda mine: 1 / 0)
    call()
    assert (fence.counts["raised"], gc.isenabled()) == (1, True)
    gc.disable()
    try:
        call()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_a_cache_with_a_cap_is_no_leak():
    def remember(mine):
        seen = mine.kept[0] if mine.kept else mine.kept.append(OrderedDict()) or mine.kept[0]
        seen[f"session-{mine.calls}"] = mine.calls
        if len(seen) > 4096:
            seen.popitem(last=False)

    fence, call, _ = fenced(remember)
    assert until_out(fence, call, 30_000) is None
    assert fence.counts["leaked"] == 0


def test_garbage_in_circles_is_no_leak():
    def circle(mine):
        one = [bytearray(1 << 20)]
        one.append(one)

    fence, call, _ = fenced(circle)
    assert until_out(fence, call, 3) is None


@pytest.mark.parametrize("what", ["thread", "file"])
def test_what_is_not_memory_is_counted(what):
    end, files = threading.Event(), []
    keep = {"thread": lambda mine: threading.Thread(target=end.wait).start(), "file": lambda mine: files.append(os.dup(0))}[what]
    fence, call, _ = fenced(keep)
    try:
        assert until_out(fence, call, 10) == 3
        assert fence.why == f"left a {what} {'running' if what == 'thread' else 'open'}"
    finally:
        end.set()
        for file in files:
            os.close(file)
