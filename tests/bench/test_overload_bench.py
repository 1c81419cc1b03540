"""The overload bench: it sends what it says, sees what happened, judges by it, and a quick run is whole."""

from __future__ import annotations

import asyncio
import math
import random
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from pathlib import Path

import pytest
import uvloop
from click.testing import CliRunner

from granted import Granted
from sits.bench import bodies, overload_found
from sits.bench.child import Child, answers
from sits.bench.figure import exit_code
from sits.bench.overload import _upstream
from sits.bench.overload_client import Order, Phase, Row, _drive
from sits.bench.overload_found import Found, beyond, good
from sits.bench.overload_upstream import answer, said
from sits.bench.overload_world import DRAWS, Batching, Slots
from sits.bench.plot import Curve, Plot, plot_svg
from sits.cli.bench import bench
from sits.engines.scripted import READ, ScriptedServer
from sits.resilience.qos.gate import Waiter

SVG = "{http://www.w3.org/2000/svg}"


# The server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of a model server with 32 places."""
    child: Child
    child, port = _upstream(tmp_path_factory.mktemp("upstream"), 0)
    with child:
        child.await_ready(answers(f"http://127.0.0.1:{port}/v1/models"), seconds=10.0)
        yield port


def test_an_answer_says_how_long_it_was_worked_on_and_waited() -> None:
    body = answer(0.1312, 0.004)
    assert bodies.whole_answer(body) is not None, "it is not the text of the other servers"
    assert said("0.1312 0.0040") == (0.1312, 0.004)
    assert b'"content":"0.1312 0.0040"' in body


def test_the_server_gives_no_more_than_its_places_do_and_says_who_waited(server: int) -> None:
    rows = uvloop.run(_drive(Order(server, [Phase(400.0, 1.0)], (0.1, 0.3, 0.6), [], 5.0, 7)))
    assert {row.status for row in rows} == {200}
    assert len(rows) == pytest.approx(400, abs=80)
    assert min(row.worked for row in rows) >= 0.099
    assert max(row.waited for row in rows) > 0.2, "twice as many came as it can take"
    for row in rows:
        assert row.took >= row.worked + row.waited - 0.002
    ends = sorted(overload_found.end(row) for row in rows)
    assert len(rows) / ends[-1] <= 1.15 * 32 / 0.16


def test_a_client_without_patience_goes_away() -> None:
    async def story() -> tuple[list[Row], float]:
        async with ScriptedServer([READ, asyncio.Event()]) as silent, Granted() as waited:
            rows = await _drive(Order(silent.port, [Phase(50.0, 0.4)], (1.0, 0.0, 0.0), [], 0.05, 7))
            seconds = waited.seconds
            await silent.until(lambda one: one.gone == len(rows))
        return rows, seconds

    rows, seconds = uvloop.run(story())
    assert {(row.status, row.priority) for row in rows} == {(0, 0)}
    assert min(row.took for row in rows) > 0.045
    assert seconds < 0.4 + 0.3


def test_phases_follow_each_other_and_one_of_them_may_be_silent(server: int) -> None:
    rows = uvloop.run(_drive(Order(server, [Phase(100.0, 0.3), Phase(0.0, 0.3), Phase(100.0, 0.3)], (0.0, 0.0, 1.0), [], 5.0, 7)))
    when = sorted(row.at for row in rows)
    assert not [at for at in when if 0.31 < at < 0.6]
    assert [at for at in when if at <= 0.3]
    assert [at for at in when if at >= 0.6]


def test_nobody_listens_and_the_load_says_so() -> None:
    rows = asyncio.run(_drive(Order(1, [Phase(50.0, 0.2)], (1.0, 0.0, 0.0), [], 5.0, 7)))
    assert rows
    assert {row.status for row in rows} == {0}


# The judgement


def row(
    at: float, priority: int = 0, status: int = 200, took: float = 0.2, *, worked: float = 0.16, retry_after: int = -1
) -> Row:
    return Row(at, 0.0, priority, status, took, worked if status == 200 else 0.0, 0.0, retry_after)


def found(*rows: Row, memory: list[tuple[float, float]] | None = None) -> Found:
    return Found(list(rows), memory or [(0.0, 50.0), (12.0, 51.0), (19.0, 53.0), (25.0, 54.0)], 10.0, 10.0, 20.0, 30.0)


def test_time_beyond_the_model_counts_from_when_a_request_was_due() -> None:
    assert beyond(Row(0.0, 0.05, 0, 200, 0.2, 0.16, 0.0)) == pytest.approx(0.09)


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        pytest.param(row(1.0, 0, took=0.45), True, id="P0 within 300 ms"),
        pytest.param(row(1.0, 0, took=0.47), False, id="P0 beyond them"),
        pytest.param(row(1.0, 1, took=0.47), True, id="P1 has 800 ms"),
        pytest.param(row(1.0, 2, took=2.1), True, id="P2 has two seconds"),
        pytest.param(row(1.0, 0, 503, 0.001), False, id="a refusal is no service"),
    ],
)
def test_what_is_served_within_its_time(one: Row, verdict: bool) -> None:
    assert good(one) is verdict


def test_the_figures_are_of_the_overload_and_hold_when_all_is_well() -> None:
    calm = [row(5.0), row(25.0)]
    busy = [row(10.0 + index / 10, took=0.2) for index in range(100)]
    refused = [row(10.0 + index / 20, 2, 503, 0.002, retry_after=3) for index in range(200)]
    outcome = overload_found.outcome(found(*calm, *busy, *refused), found(*busy), quick=False)
    by_name = {figure.name: figure for figure in outcome.figures}
    assert exit_code(outcome.figures) == 0
    assert (by_name["p0_served"].value, by_name["refusal_p99_ms"].value) == (1.0, 2.0)
    assert by_name["goodput"].value == pytest.approx(0.98, abs=0.01)
    assert by_name["rss_swing_mib"].value == 1.0
    assert by_name["qos_rss_growth_mib"].value == 4.0


@pytest.mark.parametrize(
    ("rows", "memory", "failing"),
    [
        pytest.param([row(15.0, 0, 503, 0.001, retry_after=1)], None, {"p0_served"}, id="P0 refused"),
        pytest.param([row(15.0, took=0.6)], None, {"p0_served"}, id="P0 late"),
        pytest.param([row(15.0, 2, 503, 0.2, retry_after=1)], None, {"refusal_p99_ms"}, id="refusals that take long"),
        pytest.param([row(15.0, 1, 429, 0.001)], None, {"refusals_without_retry_after"}, id="refusals that do not say when"),
        pytest.param([row(22.5, 2, 503, 0.001, retry_after=1)], None, {"recovery_seconds"}, id="refusals after it is over"),
        pytest.param([], [(9.0, 50.0), (12.0, 50.0), (19.0, 71.0)], {"rss_swing_mib"}, id="memory that climbs"),
    ],
)
def test_what_goes_wrong_is_seen(rows: list[Row], memory: list[tuple[float, float]] | None, failing: set[str]) -> None:
    busy = [row(10.0 + index / 10) for index in range(99)]
    refused = [row(12.0, 2, 503, 0.001, retry_after=1)]
    outcome = overload_found.outcome(found(*busy, *refused, *rows, memory=memory), found(*busy), quick=False)
    assert {figure.name for figure in outcome.figures if figure.ok is False} == failing


def test_too_few_answers_are_seen() -> None:
    busy = [row(10.0 + index / 10) for index in range(90)]
    outcome = overload_found.outcome(found(*busy, row(12.0, 2, 503, 0.001, retry_after=1)), found(*busy), quick=False)
    assert {figure.name for figure in outcome.figures if figure.ok is False} == {"goodput"}


def test_a_quick_run_is_whole(tmp_path: Path) -> None:
    done = CliRunner().invoke(bench, ["overload", "--quick", "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "overload.md").read_text()
    assert "not for quoting" in page
    drawings = sorted(path.name for path in (tmp_path / "overload").iterdir())
    assert drawings == ["kept.svg", "limit.svg", "memory.svg", "p0-wait.svg"]
    figures = {
        line.split()[0]: line.split()[1] for line in done.output.splitlines() if line.startswith(("p0_", "refus", "fifo_"))
    }
    # Others use this machine too, and what they take of it makes both late; but most of P0 is served with classes, and of what is
    # served so, little without.
    assert float(figures["p0_served"]) > 0.5
    assert float(figures["fifo_p0_kept"]) < float(figures["p0_served"]) / 2
    assert figures["refusals_without_retry_after"] == "0"


# The world


def job() -> Waiter:
    return Waiter(1, "")


def test_a_server_with_places_works_on_as_many_and_then_on_who_came_first() -> None:
    server = Slots(2, DRAWS["constant"](1.0, random.Random(1)))
    jobs = [job() for _ in range(4)]
    for index, one in enumerate(jobs):
        server.arrive(index / 10, one)
    ends = [server.pop() for _ in range(4)]
    assert [jobs.index(one) for _, one in ends] == [0, 1, 2, 3]
    assert [at for at, _ in ends] == pytest.approx([1.0, 1.1, 2.0, 2.1])
    assert server.next() == math.inf


def test_a_server_that_batches_is_the_slower_the_more_it_has() -> None:
    server = Batching(2.0, 2, DRAWS["constant"](1.0, random.Random(1)))
    alone = job()
    server.arrive(0.0, alone)
    at, one = server.pop()
    assert (at, one) == (1.5, alone)
    pair = [job(), job(), job()]
    for one in pair:
        server.arrive(2.0, one)
    ends = [server.pop()[0] for _ in pair]
    assert ends == pytest.approx([4.0, 4.0, 5.5])


@pytest.mark.parametrize("name", DRAWS)
def test_work_is_of_the_mean_that_was_asked_for(name: str) -> None:
    draw = DRAWS[name](0.1, random.Random(1))
    assert sum(draw(0.0) for _ in range(20_000)) / 20_000 == pytest.approx(0.1, rel=0.05)


# The plot


def test_a_plot_has_its_lines_its_words_and_its_marked_spans() -> None:
    plot = Plot(
        "waits",
        "Waits <今天>",
        "seconds",
        "ms",
        [
            Curve("with", [(0.0, 1.0), (1.0, None), (2.0, 100.0), (3.0, 10.0)]),
            Curve("without", [(0.0, 5.0), (3.0, 5.0)], dashed=True),
        ],
        log=True,
        spans=[(1.0, 2.0, "overload")],
    )
    tree = ET.fromstring(plot_svg(plot))
    words = [element.text for element in tree.iter(f"{SVG}text")]
    assert {"Waits <今天>", "seconds", "ms", "with", "without", "overload", "1", "10", "100"} <= set(words)
    lines = [element.attrib["points"].split() for element in tree.iter(f"{SVG}polyline")]
    assert [len(line) for line in lines] == [1, 2, 2], "a gap ends a line"
    assert len(list(tree.iter(f"{SVG}rect"))) == 1


def test_higher_values_are_higher_up_and_all_are_on_the_paper() -> None:
    points = [(float(index), value) for index, value in enumerate([0.0, 3.0, 7.0, 49.0])]
    tree = ET.fromstring(plot_svg(Plot("a", "a", "x", "y", [Curve("one", [*points])])))
    (line,) = tree.iter(f"{SVG}polyline")
    heights = [float(point.split(",")[1]) for point in line.attrib["points"].split()]
    assert heights == sorted(heights, reverse=True)
    assert 0.0 <= heights[-1] < heights[0] <= float(tree.attrib["height"])


def test_a_plot_of_nothing_is_a_drawing_all_the_same() -> None:
    for log in (False, True):
        ET.fromstring(plot_svg(Plot("a", "a", "x", "y", [Curve("none", [])], log=log)))
