"""The cache bench: its world keeps time and order, its designs differ in what they say they do, and a quick run is whole."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from click.testing import CliRunner

from sits.bench import staleness
from sits.bench.cache_off import Watch
from sits.bench.cache_served import Reply, _figure
from sits.bench.figure import Figure
from sits.bench.staleness import DESIGNS, Run, Times, World, embedder, swing
from sits.bench.storm_designs import LARGE, SMALL, TTL, Ask, Design, OneRoom
from sits.bench.storm_world import Models, Shape, Virtual, percentile, traffic
from sits.cli.bench import bench
from sits.state.cache.answer import Answer
from sits.state.cache.eviction import Limit
from sits.state.cache.fingerprint import question

T = TypeVar("T")
Story = Callable[[Virtual], Awaitable[T]]

ASKED, REWORDED = "How do I reset my password?", "how can I reset my password"
OTHER = "Where are my invoices?"


def live(story: Story[T]) -> T:
    """Run a story in a world of its own."""
    with asyncio.Runner(loop_factory=Virtual) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, Virtual)

        async def told() -> T:
            return await story(loop)

        return runner.run(told())


# The world.


def test_seconds_pass_at_once_and_in_order() -> None:
    async def story(loop: Virtual) -> list[tuple[str, float]]:
        seen: list[tuple[str, float]] = []

        async def one(name: str, seconds: float) -> None:
            await asyncio.sleep(seconds)
            seen.append((name, round(loop.time(), 6)))

        await asyncio.gather(one("an hour", 3600), one("a minute", 60), one("a day", 86400))
        return seen

    assert live(story) == [("a minute", 60.0), ("an hour", 3600.0), ("a day", 86400.0)]


def test_a_world_in_which_nothing_can_happen_any_more_says_so() -> None:
    async def story(loop: Virtual) -> None:
        await loop.create_future()

    with pytest.raises(RuntimeError, match="everybody waits"):
        live(story)


def test_models_answer_as_many_at_once_as_they_have_slots_and_the_others_in_line() -> None:
    async def story(loop: Virtual) -> tuple[list[float], list[float]]:
        models = Models(loop, slots=2)
        ended: list[float] = []

        async def one() -> None:
            await models.answer(1.0)
            ended.append(round(loop.time(), 6))

        await asyncio.gather(*(one() for _ in range(5)))
        return ended, models.load(0.0, 4.0, 2.0)

    assert live(story) == ([1.0, 1.0, 2.0, 2.0, 3.0], [2.5, 0.0])


def test_traffic_is_what_its_shape_says_and_the_same_for_the_same_seed() -> None:
    shape = Shape(rate=50.0, questions=100)
    drawn = traffic(shape, 200.0, 1)
    assert drawn == traffic(shape, 200.0, 1)
    assert drawn != traffic(shape, 200.0, 2)
    assert [request.at for request in drawn] == sorted(request.at for request in drawn)
    asked = [request for request in drawn if request.question is not None]
    again = [request for request in asked if request.question is not None and request.question < shape.questions]
    assert len(drawn) / 200 == pytest.approx(50, rel=0.05)
    assert len(asked) / len(drawn) == pytest.approx(0.5, abs=0.03)
    assert 1 - len(again) / len(asked) == pytest.approx(0.02, abs=0.01)
    assert sum(request.reworded for request in again) / len(again) == pytest.approx(0.25, abs=0.03)
    new = [request.question for request in asked if request not in again]
    assert len(set(new)) == len(new)


@pytest.mark.parametrize(
    ("values", "share", "found"), [([], 0.5, 0.0), ([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0] * 99 + [9.0], 0.99, 9.0)]
)
def test_percentiles(values: list[float], share: float, found: float) -> None:
    assert percentile(values, share) == found


# The designs.


async def asks(design: Design, *asked: Ask) -> list[str]:
    return [await design.ask(one, 1.0) for one in asked]


def ask(text: str, model: str = LARGE, tenant: str = "a") -> Ask:
    return Ask(tenant, text, model)


async def made(loop: Virtual, name: str) -> Design:
    design = DESIGNS[name](loop, Models(loop, slots=100))
    await design.start(embedder())
    return design


FOUR = (ask(ASKED), ask(ASKED), ask(REWORDED), ask(OTHER, SMALL))


@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_finds_equal_requests_and_other_words_and_not_those_of_others(name: str) -> None:
    async def story(loop: Virtual) -> list[str]:
        design = await made(loop, name)
        return await asks(design, *FOUR, ask(ASKED, tenant="b"))

    assert live(story) == ["model", "hit", "semantic", "model", "model"]


@pytest.mark.parametrize(
    ("name", "after"),
    [
        # Asked: the same, other words, the other model's question.
        ("apart", ["hit", "stale", "hit"]),
        ("apart, never stale", ["hit", "model", "hit"]),
        ("tied", ["model", "semantic", "hit"]),
        ("coupled", ["model", "semantic", "model"]),
    ],
)
def test_what_goes_stale_in_the_semantic_cache_takes_what_the_design_couples_with_it(name: str, after: list[str]) -> None:
    async def story(loop: Virtual) -> list[str]:
        design = await made(loop, name)
        await asks(design, *FOUR)
        await design.go_stale()
        first = await asks(design, ask(ASKED))
        await asyncio.sleep(5.0)
        return first + await asks(design, ask(REWORDED), ask(OTHER, SMALL))

    assert live(story) == after


@pytest.mark.parametrize("name", ["apart", "apart, never stale", "tied"])
def test_no_design_gives_what_is_wrong(name: str) -> None:
    async def story(loop: Virtual) -> list[str]:
        design = await made(loop, name)
        await asks(design, *FOUR)
        await design.purge()
        return await asks(design, ask(REWORDED), ask(OTHER, SMALL))

    assert live(story) == ["model", "hit"]


@pytest.mark.parametrize(
    ("name", "hows"),
    [
        ("apart", ["flight", "flight", "model"]),
        ("coupled, single flight", ["flight", "flight", "model"]),
        ("apart, no single flight", ["model", "model", "model"]),
        ("coupled", ["model", "model", "model"]),
    ],
)
def test_equal_requests_at_once_are_one_call_with_single_flight(name: str, hows: list[str]) -> None:
    async def story(loop: Virtual) -> list[str]:
        design = await made(loop, name)
        return sorted(await asyncio.gather(*(design.ask(ask(ASKED), 1.0) for _ in range(3))))

    assert live(story) == hows


def test_a_stale_answer_is_renewed_behind_the_one_that_is_given_once() -> None:
    async def story(loop: Virtual) -> tuple[list[str], int, list[str], int]:
        models = Models(loop, slots=100)
        design = DESIGNS["apart"](loop, models)
        await design.start(embedder())
        await asks(design, *FOUR)
        await asyncio.sleep(1.0)
        await design.go_stale()
        before = len(models.calls)
        given = list(await asyncio.gather(*(design.ask(ask(REWORDED), 1.0) for _ in range(20))))
        await asyncio.sleep(2.0)
        under_way = len(models.calls) - before
        return given, under_way, await asks(design, ask(REWORDED), ask(ASKED)), len(models.calls) - before

    assert live(story) == (["stale"] * 20, 1, ["hit", "hit"], 1)


def test_in_one_room_the_one_that_goes_takes_the_other_along() -> None:
    async def story(loop: Virtual) -> tuple[bool, bool, list[bytes]]:
        room = OneRoom(Limit(1024 * 1024, 3))
        keys = [bytes([number]) * 32 for number in range(4)]
        for number in (0, 1):
            await room.put(keys[number], Answer("chat", b"{}", 0.0, 100.0), 0.0, room.moment)
        room.tie(keys[0], keys[1])
        for number in (2, 3):
            await room.put(keys[number], Answer("chat", b"{}", 0.0, 100.0), 0.0, room.moment)
        return room.held(keys[1], 1.0) is not None, room.held(keys[3], 1.0) is not None, room.gone(9)

    assert live(story) == (False, True, [bytes([0]) * 32, bytes([1]) * 32])


# What comes of it.


def run(*took: tuple[float, staleness.How, float], loads: tuple[float, ...] = (1.0,)) -> Run:
    return Run(list(took), list(loads), 1)


def test_the_figures_of_a_run_are_of_its_requests_and_of_those_that_were_hits_when_it_was_calm() -> None:
    calm = run((0.0, "hit", 0.1), (1.0, "model", 5.0), loads=(10.0, 20.0))
    storm = run((0.0, "stale", 0.2), (1.0, "flight", 9.0), (70.0, "model", 1.0), (71.0, "hit", 0.1), loads=(11.0, 17.0))
    assert (storm.hit_rate, storm.calls, storm.minute(0), storm.minute(1)) == (50.0, 1, 50.0, 50.0)
    assert (storm.share("stale"), storm.minute(0, "stale"), storm.minute(1, "stale")) == (25.0, 50.0, 0.0)
    assert (storm.p99(), storm.p99(calm)) == (9.0, 0.2)
    assert swing(storm, calm) == 15.0


def test_in_a_batch_the_answers_of_one_model_pass_their_time_as_the_storm_begins() -> None:
    world = World(Shape(rate=1.0, questions=50), Times(warm=30.0, storm=60.0))
    batch = [at for at, one in world.fills("batch") if one.model == LARGE]
    assert len(batch) > 20
    assert all(world.times.begins <= at + TTL <= world.times.begins + 60 for at in batch)
    assert sorted(one.text for _, one in world.fills("calm")) == sorted(one.text for _, one in world.fills("batch"))


def test_the_median_of_hits_is_told_only_where_most_were_hits() -> None:
    hit, miss = (Reply(200, {"x-sits-cache": how}, b"", took) for how, took in (("hit", 0.5), ("miss", 3.0)))
    assert _figure("f", [hit, hit, miss], "hit", "<= 1") == Figure(
        "f", 0.5, "ms", "<= 1", True, "2 of 3 answers were hit; p99 0.50"
    )
    assert (_figure("f", [hit, miss], "hit", "<= 1").value, _figure("f", [hit, miss], "hit", "<= 1").ok) == (None, False)


def test_the_watch_counts_calls_of_the_caches_and_no_others() -> None:
    with Watch() as watch:
        json.loads("[1]")
        assert watch.calls == 0
        question(b"p", b"{}")
    assert watch.calls > 0


BOUNDED = {
    "costs": ["cache_exact_lookup_us", "limits_check_us"],
    "served": ["cache_hit_exact_ms", "cache_hit_semantic_ms"],
    "off": ["cache_off_calls"],
    "semantic": [
        "semantic_hit_ratio", "semantic_false_hits", "semantic_crowded_false_hits", "semantic_cross_tenant_hits",
        "semantic_lookup_p50",
    ],
    "storm": ["storm_hit_rate", "storm_p99_ratio", "storm_load_swing"],
}  # fmt: skip


def test_a_quick_run_is_whole_and_what_must_hold_on_any_machine_holds(tmp_path: Path) -> None:
    result = CliRunner().invoke(bench, ["cache", "--quick", "--json", "--out", str(tmp_path)])
    assert result.exit_code in (0, 1), result.output
    figures = {figure.name: figure for figure in (msgspec.json.decode(line, type=Figure) for line in result.stdout.splitlines())}
    for name in [name for names in BOUNDED.values() for name in names]:
        assert figures[name].bound is not None
        assert figures[name].value is not None, figures[name]
    # Counts and simulations are the same everywhere; times are not asserted on, since the machine has other things to do.
    for name in ("cache_off_calls", "semantic_hit_ratio", "semantic_false_hits", "semantic_cross_tenant_hits"):
        assert figures[name].ok, figures[name]
    stale = {name: figures[f"storm_stale_{name}_hit_rate"].value or 0 for name in ("apart", "coupled", "apart_never_stale")}
    assert stale["coupled"] + 20 < stale["apart_never_stale"] < stale["apart"]
    text = (tmp_path / "performance-cache.md").read_text()
    assert "A quick run" in text
    assert [line for line in text.splitlines() if line.startswith("| storm")] == [
        f"| storm `{storm}` | hit % first minute | hit % in all | of them stale | stale in all "
        "| p99 ms where calm hits | p99 ms of all | waited for a model | load swing % |"
        for storm in ("stale", "wrong")
    ]
    assert (tmp_path / "performance-cache" / "storm-hits.svg").exists()


def test_a_part_that_is_not_there_is_refused_with_those_that_are() -> None:
    result = CliRunner().invoke(bench, ["cache", "--only", "strom"])
    assert result.exit_code == 2
    assert "the bench has no part 'strom'; there are: costs, served, off, semantic, policy, storm" in result.stderr
