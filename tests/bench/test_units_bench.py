"""The bench of units: every token is counted, its load passes the thresholds, its figures judge."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from sits.bench.figure import exit_code
from sits.bench.page import render
from sits.bench.units import FULL, QUICK, _Stage
from sits.bench.units_client import Ask, Load, Took, _Reading, _wire, answer
from sits.bench.units_found import Read, Round, Spread, State, Story, figures, misplaced, outcome, spread
from sits.bench.units_load import Loads, Phase, _Said, folded
from sits.bench.units_rig import AWAY, MERGE, PARKED, RESTED, SAVING, SPLIT, SPREAD, STAYS, USUAL, Rig, Row
from sits.resources.reading import read
from sits.resources.snapshot import compile_reading
from sits.routing.units import prompt_tokens

# The client


def event(**more: Any) -> bytes:
    return b"data: " + msgspec.json.encode({"choices": [], **more}) + b"\n\n"


def token(text: str, finish: str | None = None) -> bytes:
    named = {"content": [{"token": text}]} if text else None
    return event(choices=[{"index": 0, "delta": {"content": text}, "logprobs": named, "finish_reason": finish}])


def usage(made: int, prompt: int = 30, known: int = 12) -> bytes:
    details = {"cached_tokens": known}
    return event(usage={"completion_tokens": made, "prompt_tokens": prompt, "prompt_tokens_details": details})


DONE = b"data: [DONE]\n\n"
TWO = token("看") + token("b")
ANSWERS = {
    # Body, then: tokens that came, tokens that were made, whether it is whole.
    "as long as it may be": (TWO + token("", "length") + usage(2) + DONE, (2, 2, True)),
    "ended by the model, whose last token nobody is sent": (TWO + token("", "stop") + usage(3) + DONE, (2, 2, True)),
    "a token is lost": (TWO + token("", "length") + usage(3) + DONE, (2, 3, True)),
    "a token comes twice": (TWO + TWO + token("", "length") + usage(3) + DONE, (4, 3, True)),
    "without its end": (TWO + token("", "length") + usage(2), (2, 2, False)),
    "without its count": (TWO + token("", "length") + DONE, (2, -1, False)),
    "an error in its midst": (token("a") + event(error={"message": "broken"}) + DONE, (1, -1, False)),
}


def wire(body: bytes, status: int = 200) -> bytes:
    head = f"HTTP/1.1 {status} X\r\nX-Sits-Target: two\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


def fed(whole: bytes, size: int) -> Took:
    async def story() -> Took:
        took, reader = Took("any", 0.0), asyncio.StreamReader()
        reading = asyncio.create_task(_Reading(took).read(reader))
        for at in range(0, len(whole), size):
            reader.feed_data(whole[at : at + size])
            await asyncio.sleep(0)
        reader.feed_eof()
        await reading
        return took

    return uvloop.run(story())


@pytest.mark.parametrize("size", [1, 7, 100_000], ids=["byte by byte", "in pieces", "whole"])
@pytest.mark.parametrize(("body", "wanted"), ANSWERS.values(), ids=ANSWERS.keys())
def test_the_tokens_of_an_answer_are_counted_however_it_is_cut(body: bytes, wanted: tuple[int, int, bool], size: int) -> None:
    took = fed(wire(body), size)
    assert (took.seen, took.made, took.ok) == wanted
    assert took.target == "two"
    if took.made >= 0:
        assert (took.prompt, took.read) == (30, 18)


@pytest.mark.parametrize("whole", [wire(b"no room", 503), wire(TWO)[:-5], b""], ids=["refused", "cut", "nothing"])
def test_what_is_no_whole_answer_has_failed_and_says_why(whole: bytes) -> None:
    took = fed(whole, 7)
    assert (took.ok, bool(took.error)) == (False, True)


def test_a_load_sends_streams_and_keeps_how_they_went() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        asked = json.loads(await reader.readexactly(size))
        assert (asked["stream"], asked["max_tokens"], asked["messages"][0]["content"]) == (True, 2, "问")
        writer.write(wire(ANSWERS["as long as it may be"][0]))
        writer.close()

    async def story() -> list[Took]:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with Load(port, 1) as load:
            load.send(Ask("pair", "问", 2))
            load.send(Ask("pair", "问", 2))
            await load.settled()
        server.close()
        await server.wait_closed()
        return [*load.took, await answer(port, Ask("pair", "问", 2))]

    first, second, lonely = uvloop.run(story())
    assert (first.ok, second.ok, lonely.ok) == (True, True, False)
    assert first.sent <= first.first <= first.over


# The gateway


def test_what_is_declared_can_be_served_and_the_load_passes_its_thresholds(tmp_path: Path) -> None:
    rig = Rig(tmp_path, tmp_path / "models")
    reading = read(rig.gateway.config)
    assert [str(problem) for problem in reading.problems] == []
    routes = compile_reading(reading, 1).routes
    assert set(routes) == {PARKED, RESTED, SAVING, SPREAD, USUAL}
    sent: list[Ask] = []

    class Noted(Load):
        def send(self, ask: Ask) -> Any:
            sent.append(ask)

    stage = _Stage(rig, Noted(0, 1))
    for _ in range(5):
        stage.question()
    questions = [prompt_tokens(_wire(ask).partition(b"\r\n\r\n")[2]) for ask in sent]
    stage.documents()
    everything = [prompt_tokens(_wire(ask).partition(b"\r\n\r\n")[2]) for ask in sent]
    # Two questions more ask for the unit that came back; the next documents must merge beside them too.
    crowded = sum([*everything, *questions[:2]]) / (len(everything) + 2)
    assert (max(questions) < SPLIT["promptTokens"], crowded > MERGE["promptTokens"]) == (True, True)
    assert (len(questions) / 5 < SPLIT["qps"], len(everything) / 5 > MERGE["qps"]) == (True, True)


PAGES: dict[str, tuple[State, list[tuple[str, list[str]]], bool]] = {
    "it sleeps until the split": ("asleep", [("merged", [AWAY]), ("splitting", [AWAY]), ("split", [])], False),
    "it is woken before": ("asleep", [("merged", [AWAY]), ("merged", []), ("split", [])], True),
    "it was never asleep": ("loaded", [("merged", []), ("splitting", []), ("split", [])], False),
}


@pytest.mark.parametrize(("state", "pages", "early"), PAGES.values(), ids=PAGES.keys())
def test_a_unit_that_is_woken_before_the_split_is_noticed(
    tmp_path: Path, state: State, pages: list[tuple[str, list[str]]], early: bool
) -> None:
    coming = iter(pages)

    class Told(Rig):
        async def rows(self) -> list[Row]:
            now, asleep = next(coming)
            raw = {"route": PARKED, "state": now, "asleep": asleep, "failures": 0}
            return [msgspec.convert({**raw, "timing": {"merge": 0.1, "drain": None, "split": None}}, Row)]

    stage = _Stage(Told(tmp_path, tmp_path / "models"), Load(0, 1))
    until, woken = uvloop.run(stage._calm(state))
    assert woken == early
    assert (until > 0.0) == ([now for now, _ in pages].count("merged") > 1), "what was so when it was asked may be over by now"
    with pytest.raises(StopIteration):
        next(coming)


# What was found


def test_a_spread_is_of_the_values_that_were_seen() -> None:
    assert spread([]) is None
    assert spread([3.0]) == Spread(3.0, 3.0, 3.0, 3.0, 1)
    assert spread(map(float, range(10, 0, -1))) == Spread(1.0, 5.5, 9.0, 10.0, 10)


def test_phases_of_a_load_are_told_each_without_those_before_it() -> None:
    said = [_Said([("a", 0.01, 0.02), ("b", 0.04, 0.05)], 3 << 20), _Said([("a", 0.02, 0.04), ("b", 0.03, 0.09)], 1 << 20)]
    found = folded([*said, said[1]])
    assert (found.spare, found.count) == (1.0, 3)
    spent = {one.name: (one.cpu, one.wall) for one in found.phases}
    assert spent == {"a": (pytest.approx(20.0), pytest.approx(40.0)), "b": (pytest.approx(10.0), pytest.approx(50.0))}


def a_round(state: State, split: float = 0.01, *, merge: float = 0.005, early: bool = False) -> Round:
    return Round(state, RESTED, merge, 0.4, split, 0.2, 100.0, 110.0, 80.0, 43.0, early)


def took(sent: float, target: str = AWAY, **more: Any) -> Took:
    return Took(**{"name": RESTED, "sent": sent, "target": target, "status": 200, "seen": 8, "made": 8, "done": True, **more})


def test_who_is_merged_away_is_asked_by_nobody_while_it_is_surely_so() -> None:
    there = [took(99.9), took(110.1), took(105.0, STAYS), took(105.0, name=PARKED)]
    assert misplaced([a_round("asleep")], there) == 0
    assert misplaced([a_round("asleep")], [*there, took(100.0), took(110.0)]) == 2


def story(*rounds: Round, seen: list[Took] | None = None, failures: int = 0, merged: int = 100) -> Story:
    reads = [
        Read(SAVING, 400, merged, {STAYS: 16, AWAY: 0}, 3.0),
        Read(SPREAD, 400, 200, {STAYS: 8, AWAY: 8}, 2.0),
        Read(USUAL, 400, 110, {STAYS: 8, AWAY: 8}, 2.0),
    ]
    return Story(list(rounds), [took(1.0)] if seen is None else seen, reads, failures, 200.0)


LOADS = Loads([Phase("Python", 10.0, 12.0), Phase("the model", 250.0, 300.0)], 11.0, 5)
ALL = tuple(a_round(state) for state in ("loaded", "asleep", "unloaded"))  # type: ignore[arg-type]
VERDICTS = {
    "all is well": (story(*ALL), set()),
    "a split took too long": (story(*ALL, a_round("asleep", 0.0431)), {"units_split_asleep_ms"}),
    "a merge took too long": (story(*ALL, a_round("loaded", merge=0.128)), {"units_merge_loaded_ms"}),
    "a state was not seen": (story(*ALL[:2]), {"units_merge_unloaded_ms", "units_split_unloaded_ms"}),
    "woken before, so that its split says nothing": (
        story(*ALL[:2], a_round("unloaded", early=True)),
        {"units_split_unloaded_ms"},
    ),
    "a request failed": (story(*ALL, seen=[took(1.0, done=False, error="gone")]), {"units_failed"}),
    "a token is lost": (story(*ALL, seen=[took(1.0, made=9)]), {"units_tokens_lost"}),
    "one lost is not made up for by one doubled": (
        story(*ALL, seen=[took(1.0, made=9), took(1.0, made=7)]),
        {"units_tokens_lost", "units_tokens_doubled"},
    ),
    "a request went where none should go": (story(*ALL, seen=[took(105.0)]), {"units_misplaced"}),
    "a change failed": (story(*ALL, failures=1), {"units_changes_failed"}),
    "nothing is saved": (story(*ALL, merged=200), {"units_computed_vs_spread"}),
}


@pytest.mark.parametrize(("told", "broken"), VERDICTS.values(), ids=VERDICTS.keys())
def test_the_figures_judge(told: Story, broken: set[str]) -> None:
    found = figures(told)
    assert {one.name for one in found if one.ok is False} == broken
    assert exit_code(found) == (1 if broken else 0)


def test_the_page_tells_each_state_with_its_spread() -> None:
    told = story(*ALL, a_round("unloaded", 1.6), seen=[took(110.2)])
    found = outcome(told, LOADS, "Four documents.", ("Load", "0.1"), {"xllamacpp": "1"}, quick=True)
    text = render(found.page, found.figures)["performance-units.md"]
    for part in (
        "| split | unloaded | 2 | 43 | 10 | 805 | 1,600 | 1,600 |",
        "| merged | 400 | 100 | 16 | 0 | 3 |",
        "The figures are not for quoting",
        "would save 10 of 260 ms and hold 11\nMiB",
        "| together | 260 | 312 |",
        "sits bench units --out docs --quick",
        "[units.md](units.md)",
    ):
        assert part in text
    assert all(QUICK.rounds[state] <= FULL.rounds[state] for state in FULL.rounds)
