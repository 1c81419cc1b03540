"""What a worker told stays told when it dies, and all workers give a configuration the same version."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import pathlib
import random
import signal
import subprocess
from collections.abc import Callable
from functools import partial
from hashlib import sha256

import pytest
from gateway_client import Asking, eventually
from gateway_process import Sits
from gateway_rig import inside_loop, model, settings, write
from gateway_wires import PATHS, WIRES, request
from hypothesis import given
from hypothesis import settings as rules
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families as parse

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.gateway.crew import MOST_VERSIONS, Figures, Told, Versions, clear
from sits.observe.exposition import merge
from sits.observe.metrics import Registry
from sits.observe.process import ProcessFigures

CHAT = WIRES["chat", "openai"]
Page = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def read(text: str, *types: str) -> Page:
    """The samples of the families of these types."""
    families = (family for family in parse(text) if family.type in types)
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in families for s in family.samples}


def fallen(before: Page, after: Page) -> dict[object, tuple[float, float]]:
    """What was told before and is less now, or is not there any more."""
    return {key: (value, after.get(key, 0.0)) for key, value in before.items() if after.get(key, 0.0) < value}


class Worker:
    """A registry and its file; `figures` is None while it is dead."""

    def __init__(self, run: pathlib.Path, index: int) -> None:
        self._run, self._index = run, index
        self.start()

    def start(self) -> None:
        self.registry = Registry(50, lambda: ProcessFigures(1000, 0.1, 7, 1.0))
        self.figures: Figures | None = Figures(self._run, os.getpid(), self._index)
        self.figures.resume(self.registry, {"a", "b"})

    def count(self, value: float, name: str) -> None:
        self.registry.attempt(name, "ok").value += 1
        self.registry.plugin_seconds.series("p", "filter").value += value
        self.registry.meter("chat", name, name, "vllm").done(200, "", value, value / 10, "f" * 32, value, value / 2, 5, 7)
        self.registry.inflight.value += 1

    def told(self) -> bytes:
        dump = self.registry.dump()
        assert self.figures is not None
        self.figures.keep(dump)
        return dump


def scrape(workers: list[Worker], asked: int, deaf: int = -1) -> str:
    """The page that one of them makes; `deaf` lives and does not answer in time."""
    figures = workers[asked].figures
    assert figures is not None
    heard = [one for number, one in enumerate(workers) if one.figures is not None and number != deaf]
    return merge([one.told() for one in heard], left=figures.left)


HAPPENINGS = st.lists(
    st.tuples(
        st.sampled_from(["count", "count", "scrape", "scrape", "scrape deaf", "kill", "start"]),
        st.integers(0, 2),
        st.floats(0, 50),
        st.sampled_from(["a", "b"]),
    ),
    max_size=40,
)


@rules(max_examples=60, deadline=None)
@given(happenings=HAPPENINGS)
def test_whatever_happens_to_workers_no_counter_falls(
    happenings: list[tuple[str, int, float, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path_factory.mktemp("run")
    workers = [Worker(run, index) for index in range(3)]
    before: Page = {}
    for what, index, value, name in [*happenings, ("start", 0, 0.0, ""), ("scrape", 0, 0.0, "")]:
        one = workers[index]
        if what == "kill":
            one.figures = None
        elif one.figures is None:
            if what == "start":
                one.start()
        elif what == "count":
            one.count(value, name)
        elif what != "start":
            after = read(scrape(workers, index, (index + 1) % 3 if what == "scrape deaf" else -1), "counter", "histogram")
            assert fallen(before, after) == {}
            before = after


def test_a_successor_goes_on_with_counters_and_histograms_and_not_with_levels(tmp_path: pathlib.Path) -> None:
    workers = [Worker(tmp_path, 0), Worker(tmp_path, 1)]
    for one in workers:
        one.count(0.3, "a")
        one.count(0.3, "gone")
    whole = scrape(workers, 0)
    for _ in range(3):
        workers[1].figures = None
        alone = scrape(workers, 0)
        assert read(alone, "counter", "histogram") == read(whole, "counter", "histogram")
        assert read(alone, "gauge")["sits_inflight", ()] == 2
        assert read(alone, "gauge")["sits_workers", ()] == 1
        assert read(alone, "gauge")["sits_metrics_workers_missing", ()] == 0
        workers[1].start()
    after = read(scrape(workers, 0), "counter", "histogram", "gauge")
    assert after["sits_attempts_total", (("outcome", "ok"), ("target", "a"))] == 2
    # Nobody has that name any more: the successor does not bring it back.
    assert after["sits_attempts_total", (("outcome", "ok"), ("target", "gone"))] == 1
    assert (after["sits_workers", ()], after["sits_inflight", ()]) == (2, 2)
    workers[1].count(0.3, "a")
    assert read(scrape(workers, 1), "counter")["sits_attempts_total", (("outcome", "ok"), ("target", "a"))] == 3


def test_who_lives_and_is_late_counts_as_it_last_told(tmp_path: pathlib.Path) -> None:
    workers = [Worker(tmp_path, 0), Worker(tmp_path, 1)]
    workers[1].count(1.0, "a")
    whole = scrape(workers, 0)
    workers[1].count(1.0, "a")
    late = scrape(workers, 0, deaf=1)
    assert read(late, "counter", "histogram") == read(whole, "counter", "histogram")
    assert read(late, "gauge")["sits_workers", ()] == 1


def test_fractions_add_up_to_the_same_bit_whoever_answers_first() -> None:
    dumps = []
    for name, seconds in (("1-0", 0.1), ("1-1", 0.2), ("1-2", 0.3)):
        one = Registry(50, lambda: ProcessFigures(0, 0.0, 0, 0.0))
        one.worker = name
        one.plugin_seconds.series("p", "filter").value = seconds
        dumps.append(one.dump())
    shuffled = [random.Random(seed).sample(dumps, 3) for seed in range(12)]
    assert len({merge(each) for each in shuffled}) == 1
    assert 0.1 + 0.2 + 0.3 != 0.3 + 0.2 + 0.1


TORN = {
    "empty": b"",
    "cut": b"\x01" + b"\0" * 12,
    "shorter than it says": b"\x01" + b"\0" * 7 + b"\xff" * 20,
    "zeros": b"\0" * 64,
}


@pytest.mark.parametrize("content", TORN.values(), ids=TORN.keys())
def test_a_file_that_cannot_be_read_is_a_worker_that_is_missing_and_a_fresh_start(
    content: bytes, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    workers = [Worker(tmp_path, 0), Worker(tmp_path, 1)]
    workers[1].count(1.0, "a")
    scrape(workers, 0)
    workers[1].figures = None
    for slot in (0, 1):
        (tmp_path / f"figures-{os.getpid()}-1.{slot}").write_bytes(content)
    assert read(scrape(workers, 0), "gauge")["sits_metrics_workers_missing", ()] == 1
    workers[1].start()
    assert "cannot be read: the figures of this worker begin anew" in caplog.text
    assert read(scrape(workers, 0), "gauge")["sits_metrics_workers_missing", ()] == 0


def test_where_nothing_can_be_written_figures_go_on_and_it_is_said_once(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "sits.gateway")
    run = tmp_path / "run"
    run.write_bytes(b"a file in the place of the folder")
    one = Worker(run, 0)
    for _ in range(3):
        one.count(1.0, "a")
        assert read(scrape([one], 0), "counter")["sits_attempts_total", (("outcome", "ok"), ("target", "a"))] > 0
    assert Versions(run / "versions-1")("a" * 64) == 1
    run.unlink()
    one.told()
    assert [(record.levelname, record.message.partition(":")[0]) for record in caplog.records] == [
        ("ERROR", "figures cannot be kept, those since then die with this worker"),
        ("ERROR", "versions cannot be shared, those of other workers may differ"),
        ("INFO", "it is well again"),
    ]
    assert len(list(run.iterdir())) == 1


@rules(max_examples=60, deadline=None)
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=6), cut=st.floats(0, 1))
def test_a_kill_in_the_middle_of_a_write_leaves_what_was_told_before(
    counts: list[int], cut: float, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = tmp_path_factory.mktemp("run")
    workers = [Worker(run, 0), Worker(run, 1)]
    for count in counts:
        for _ in range(count):
            workers[1].count(0.3, "a")
        before = read(scrape(workers, 0), "counter", "histogram")
    workers[1].count(0.3, "a")
    kept = {path: path.read_bytes() for path in run.glob("figures-*-1.*")}
    workers[1].told()
    (written,) = [path for path in run.glob("figures-*-1.*") if path.read_bytes() != kept.get(path)]
    new = written.read_bytes()
    part = new[: int(cut * (len(new) - 1))]
    # Over what was there, as a write that ended early leaves it.
    written.write_bytes(part + kept.get(written, b"")[len(part) :])
    workers[1].figures = None
    after = read(scrape(workers, 0), "counter", "histogram")
    assert fallen(before, after) == {}
    workers[1].start()
    workers[1].count(0.3, "a")
    assert fallen(after, read(scrape(workers, 0), "counter", "histogram")) == {}


def test_what_did_not_change_is_not_written_again(tmp_path: pathlib.Path) -> None:
    one = Worker(tmp_path, 0)
    one.told()
    one.told()
    assert [path.suffix for path in tmp_path.iterdir()] == [".1"]
    one.count(1.0, "a")
    one.told()
    assert {path.suffix: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {".0": 0o600, ".1": 0o600}


def digest(number: int) -> str:
    return sha256(str(number).encode()).hexdigest()


@rules(max_examples=60, deadline=None)
@given(looks=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5)), max_size=30))
def test_the_same_configuration_has_the_same_version_whoever_saw_what_and_when(
    looks: list[tuple[int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("run") / "versions-1"
    workers = [Versions(path) for _ in range(3)]
    order = list(dict.fromkeys(number for _, number in looks))
    for worker, number in looks:
        assert workers[worker](digest(number)) == order.index(number) + 1
    # One that is started again agrees, and so does a gateway of one worker, which has no file.
    again, alone = Versions(path), Versions()
    for number in order:
        assert again(digest(number)) == alone(digest(number)) == order.index(number) + 1


def test_a_worker_that_died_while_it_wrote_costs_a_version_and_no_agreement(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "versions-1"
    one, other = Versions(path), Versions(path)
    assert one(digest(1)) == 1
    with path.open("ab") as file:
        file.write(b"\n" + digest(2)[:20].encode())
    assert [one(digest(3)), other(digest(3)), Versions(path)(digest(3))] == [3, 3, 3]


@pytest.mark.parametrize("more", [1, 5], ids=["shorter than before", "longer than before"])
def test_versions_agree_when_somebody_has_removed_the_file(tmp_path: pathlib.Path, more: int) -> None:
    path = tmp_path / "run" / "versions-1"
    one, other = Versions(path), Versions(path)
    for number in range(3):
        assert one(digest(number)) == other(digest(number)) == number + 1
    path.rename(tmp_path / "away")
    for number in range(3, 3 + more):
        one(digest(number))
    assert [other(digest(2 + more)), one(digest(2 + more)), other(digest(3)), one(digest(3))] == [3 + more, 3 + more, 4, 4]


def test_versions_of_long_ago_are_forgotten_by_all_alike(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "versions-1"
    one, other = Versions(path), Versions(path)
    for number in range(MOST_VERSIONS + 10):
        one(digest(number))
    assert [other(digest(0)), one(digest(0))] == [MOST_VERSIONS + 11, MOST_VERSIONS + 11]
    assert [one(digest(100)), other(digest(100))] == [101, 101]


def test_what_all_workers_see_is_told_by_the_first_and_again_when_it_comes_again(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "run" / "told-1"
    one, other = Told(path), Told(path)
    assert [one.first("错"), other.first("错"), one.first("错"), Told(path).first("错")] == [True, False, False, False]
    assert [other.first("worse"), one.first("worse"), one.first("错"), other.first("错")] == [True, False, True, False]
    assert [Told().first("错"), Told().first("错")] == [True, True], "who is alone tells all"


def test_where_nobody_can_agree_who_tells_each_does(tmp_path: pathlib.Path) -> None:
    (tmp_path / "run").write_text("a file stands where the folder should be")
    path = tmp_path / "run" / "told-1"
    assert [Told(path).first("错"), Told(path).first("错")] == [True, True]


def test_a_start_removes_what_is_left_of_gateways_that_are_gone_and_nothing_else(tmp_path: pathlib.Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    ours, living = os.getpid(), os.getppid()
    kept = [f"figures-{living}-0.1", f"versions-{living}", "worker-1.sock", "figures-", "figures-of-somebody"]
    left = [f"figures-{ours}-0.0", f"figures-{ours}-0.1", f"versions-{ours}", f"figures-{gone.pid}-3.1", f"versions-{gone.pid}"]
    left += [f"told-{ours}", f"told-{gone.pid}"]
    for name in [*kept, *left]:
        (tmp_path / name).write_bytes(b"x")
    clear(tmp_path, ours)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
    clear(tmp_path / "no such folder", ours)


# As users run it


async def page(sits: Sits) -> str:
    """A scrape; one that was given to a worker in its last moment got no answer, and is made again."""
    while True:
        asked = await sits.ask("/metrics")
        if asked.whole:
            assert asked.status == 200
            return asked.body.decode()


async def requests(sits: Sits, count: int) -> None:
    asked = [await sits.begin(PATHS["chat"], request("chat", "one")) for _ in range(count)]
    assert {(await one.ended()).status for one in asked} == {200}


async def never_falling(sits: Sits, before: Page, until: Callable[[Page], bool]) -> Page:
    """Scrape through whichever worker the kernel gives, until something is so; no counter may ever be less than before."""
    async with asyncio.timeout(30):
        while True:
            text = await page(sits)
            after = read(text, "counter", "histogram")
            assert fallen(before, after) == {}
            before = after
            if until(read(text, "gauge")):
                return before


def both(page: Page) -> bool:
    return page["sits_workers", ()] == 2


async def both_refused(sits: Sits) -> None:
    async with asyncio.timeout(30):
        while read(await page(sits), "counter")["sits_config_rejected_total", ()] < 2:
            continue  # Whichever worker answers asks the other: no answer comes at once.


def gone(sits: Sits, pid: int) -> bool:
    return not sits.lives(pid)


def in_force(version: int) -> Callable[[Page], bool]:
    return lambda page: page["sits_config_version", ()] == version


@inside_loop
async def test_over_the_deaths_of_workers_no_counter_falls_and_versions_agree(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server,
        Sits(tmp_path, model("one", server.url), workers=2) as sits,
    ):
        before = await never_falling(sits, {}, both)
        write(tmp_path, model("one", server.url), settings(), {"kind": "Nothing"})
        await both_refused(sits)
        await sits.logged("the configuration was refused")  # a thread writes the log, a little later
        assert sits.log.count("the configuration was refused") == 1, "both refused it, and one of them said so"
        for turn in range(2, 5):
            write(tmp_path, model("one", server.url, version=str(turn)), settings())
            await never_falling(sits, before, in_force(turn))
        for _ in range(2):
            await requests(sits, 20)
            before = await never_falling(sits, before, both)
            # The last one is the youngest: in the second turn, the one that took the place of the first.
            victim = sits.crew()[-1]
            os.kill(victim, signal.SIGKILL)
            before = await never_falling(sits, before, lambda page: not both(page))
            await eventually(partial(gone, sits, victim), "it is gone, and no connection is given to it")
            await requests(sits, 5)
            before = await never_falling(sits, before, both)
            assert victim not in sits.crew()
            for _ in range(8):
                before = await never_falling(sits, before, both)
                assert (await sits.ask("/readyz")).json["config_version"] == 4
            assert read(await page(sits), "gauge")["sits_config_version", ()] == 4
        answered = {labels: value for (name, labels), value in before.items() if name == "sits_requests_total"}
        # What was asked while both lived was told before the kill.
        assert sum(answered.values()) == 50
        await one_is_stopped(sits, before)
        await started_anew(sits)


async def one_is_stopped(sits: Sits, before: Page) -> None:
    """A worker that lives and does not answer counts as it last told, and as missing."""
    victim = sits.crew()[-1]
    os.kill(victim, signal.SIGSTOP)
    # Some of these connections are given to the one that sleeps.
    asked = [await sits.begin("/metrics") for _ in range(12)]
    done = [asyncio.ensure_future(one.ended()) for one in asked]
    first, _ = await asyncio.wait(done, timeout=60, return_when=asyncio.FIRST_COMPLETED)
    seen: list[Asking] = [one.result() for one in first]
    os.kill(victim, signal.SIGCONT)
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.gather(*done), 20)
    assert seen
    for one in seen:
        text = one.body.decode()
        assert fallen(before, read(text, "counter", "histogram")) == {}
        assert read(text, "gauge")["sits_metrics_workers_missing", ()] == 1


async def started_anew(sits: Sits) -> None:
    """A gateway that is started again counts from nothing, whatever lies in its folder, and alone it leaves nothing there."""
    sits.signal(signal.SIGTERM)
    assert await sits.exit_code() == 0
    run = sits.folder / "data" / "run"
    assert {path.stem.split("-")[2] for path in run.glob("figures-*")} == {"0", "1", "crew"}
    await sits.start()
    found = read(await page(sits), "counter")
    assert sum(value for (name, _), value in found.items() if name == "sits_requests_total") == 0
    assert {path.name.split("-")[1] for path in run.glob("figures-*")} == {str(sits.pid)}
