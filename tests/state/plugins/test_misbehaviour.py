"""Plugins in a watched folder that misbehave when requests come: the claims of the whole, under uvloop.

One story is told for all of them at once, and each row of the table is asked about its part of it.
"""

from __future__ import annotations

import asyncio

import pytest
import uvloop

from sits.bench.plugin_trouble import CASES, NONSENSE, USABLE, WHY, Told, story
from sits.routing.plugins.fence import Kind


@pytest.fixture(scope="module")
def told(tmp_path_factory) -> dict[tuple[Kind, str], Told]:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(story(tmp_path_factory.mktemp("plugins")))


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_it_is_fenced_off_within_three_calls_and_no_request_is_the_worse_for_it(told, kind, name):
    one = told[kind, name]
    assert one.calls <= 3
    assert one.fenced["state"] == "fenced"
    expected = WHY.get(name) or NONSENSE[kind][name]
    assert one.fenced["why"].startswith(expected)
    if name not in USABLE:
        assert all(one.unaffected)
    assert one.unaffected[-1]  # and fenced off, none has any effect


@pytest.mark.parametrize(("kind", "name"), CASES)
def test_it_is_back_after_repair_without_a_restart(told, kind, name):
    one = told[kind, name]
    assert (one.repaired["state"], one.repaired["why"], one.first) == ("live", "", 3)
    assert one.repaired["troubles"] == {}  # those of before are of another version
