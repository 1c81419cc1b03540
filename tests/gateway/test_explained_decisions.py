"""What a decision came to is in its record and in the tree, the same in both: rules that were passed over, plugins that said
nothing, prompts that were read in pieces, and who was put in somebody's place."""

from __future__ import annotations

import json
import pathlib
from time import perf_counter
from typing import Any

import pytest
from gateway_client import Asking, eventually
from gateway_rig import Gateway, bearer, inside_loop, key, llama2, model, route, settings
from gateway_wires import OPENAI_CHAT, PATHS, request

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer
from sits.observe.explain import LATER
from sits.observe.record import Passed, PieceRead, Record, Split, from_json, to_json
from sits.routing.rule_watch import FEWEST, SECONDS
from sits.routing.scheduling.away import Away

GOOD = [READ, OPENAI_CHAT.answers("好"), AGAIN]
BAD = [READ, answer(503, b'{"error":{"message":"overloaded"}}', ("content-type", "application/json")), AGAIN]


async def explained(gateway: Gateway, asked: Asking) -> tuple[Record, str]:
    """The record as JSON tells of it, and the tree beside it."""
    id = asked.headers["x-request-id"]
    told = (await gateway.ask(f"/v1/admin/records/{id}", None, bearer("root"), method="GET")).json
    tree = told.pop("explanation")
    record = from_json(json.dumps(told).encode())
    assert from_json(to_json(gateway.record(asked))) == record
    return record, tree


def with_route(*resources: dict[str, Any], **spec: Any) -> tuple[dict[str, Any], ...]:
    return (*resources, key("root", admin=True), settings(**spec))


async def chat(gateway: Gateway, name: str, text: str = "请总结这份合同。", headers: dict[str, str] | None = None) -> Asking:
    body = {**request("chat", name), "messages": [{"role": "user", "content": text}]}
    return await gateway.ask(PATHS["chat"], body, bearer("root", **(headers or {})))


# Rules

SHIFT = {
    "name": "us-west",
    "match": {"region": ["us-west"]},
    "backends": [{"model": "west"}],
    "while": {"p99BelowMs": 1200, "adapterLoadsAbove": 0.9995},
}


@inside_loop
async def test_a_rule_that_is_passed_over_is_told_with_each_clause_its_figure_and_its_limit(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    later = 0.0
    monkeypatch.setattr("sits.gateway.facts.perf_counter", lambda: perf_counter() + later)
    async with ScriptedServer(GOOD) as server:
        models = [model(name, server.url) for name in ("home", "west")]
        async with Gateway(tmp_path, *with_route(*models, route("r", "home", rules=[SHIFT]))) as gateway:
            west = {"x-sits-region": "us-west"}
            follows, tree = await explained(gateway, await chat(gateway, "r", headers=west))
            assert (follows.rule, follows.passed, "passed over" in tree) == ("us-west", (), False)

            watch = gateway.node.standing.rules["r", "us-west"]
            for _ in range(40):
                watch.note(1.34, perf_counter())
            for ok in (True, False):
                watch.note_load(ok, perf_counter())
            over, tree = await explained(gateway, await chat(gateway, "r", headers=west))
            assert (over.rule, over.target) == ("", "home")
            assert over.passed == (
                Passed("us-west", "p99BelowMs", 1340.0, 1200.0, 41),
                Passed("us-west", "adapterLoadsAbove", 0.5, 0.9995, 2),
            )
            assert "passed over rule us-west: p99 is 1,340 ms, must be below 1,200 (p99BelowMs; of 41 answers)\n" in tree
            assert "passed over rule us-west: 50.00% of adapter loads went well, must be above 99.95%" in tree
            elsewhere, _ = await explained(gateway, await chat(gateway, "r"))
            assert elsewhere.passed == (), "the rule is none of its business"

            later = 11 * SECONDS  # all is forgotten, and a few requests try again
            for _ in range(FEWEST):
                assert watch.takes(perf_counter() + later)
            trying, tree = await explained(gateway, await chat(gateway, "r", headers=west))
            assert trying.passed == (Passed("us-west", "again", 0.0, FEWEST),)
            assert f"it did not hold, {FEWEST} requests try it again, and 0 of them have come back" in tree


# Plugins

NIGHT = """
from sits.routing.scheduling.base import Filter

class Night(Filter):
    name = "night"
    def __init__(self, made):
        pass
    def keep(self, facts, candidate):
        return "夜间不回答" if candidate.name == "a" else ""
"""
MOOD = """
from sits.routing.scheduling.base import Score

class Mood(Score):
    name = "mood"
    varies = "{varies}"
    def __init__(self, made):
        pass
    def score(self, facts, candidates):
        if facts.requested == "{bad_at}":
            raise KeyError("坏了")
        return [0.0 for _ in candidates]
"""
PLUGGED = {"filters": [{"name": "night"}], "scores": [{"name": "mood"}, {"name": "load"}, {"name": "lost"}]}
LOST = Away("score", "lost", "is not there")


def put(folder: pathlib.Path, **files: str) -> pathlib.Path:
    plugins = folder / "config" / "plugins"
    plugins.mkdir(parents=True, exist_ok=True, mode=0o755)
    for name, text in files.items():
        (plugins / f"{name}.py").write_text(text)
    return plugins


@inside_loop
async def test_filters_and_scores_that_are_away_are_told_with_the_reason_and_since_when(tmp_path: pathlib.Path) -> None:
    plugins = put(tmp_path, night=NIGHT, mood=MOOD.format(varies="request", bad_at="nothing"))
    async with ScriptedServer(GOOD) as server:
        models = [model(name, server.url) for name in ("a", "b", "c")]
        all_ = with_route(*models, route("r", "a", "b", "c", **PLUGGED), plugins="plugins")
        async with Gateway(tmp_path, *all_) as gateway:
            there, tree = await explained(gateway, await chat(gateway, "r"))
            assert there.away == (LOST,), "points of 0 are something that is said"
            assert there.filtered == [("a", "夜间不回答")]
            assert "score lost said nothing, and did not count: is not there\n" in tree
            assert "mood 0.0" in tree

            before = gateway.node.wall()
            (plugins / "night.py").unlink()
            await eventually(lambda: "night" not in gateway.node.standing.plugins.filters, "it is gone")
            gone, tree = await explained(gateway, await chat(gateway, "r"))
            night, *others = gone.away
            assert ((night.kind, night.name, night.why), others) == (("filter", "night", "is not there"), [LOST])
            assert before <= night.since <= gone.time
            assert "filter night said nothing, and did not count: is not there, since 20" in tree
            assert gone.filtered == []

            put(tmp_path, night="import no_such_thing")
            await eventually(lambda: "no_such_thing" in gateway.node.standing.plugins.gone("filter", "night")[0], "it is read")
            broken, _ = await explained(gateway, await chat(gateway, "r"))
            assert "night.py" in broken.away[0].why
            assert "no_such_thing" in broken.away[0].why
            assert broken.away[0].since == night.since


@pytest.mark.parametrize("varies", ["request", "tick"])
@inside_loop
async def test_a_score_in_trouble_is_told_at_once_and_with_the_time_once_it_is_fenced_off(
    tmp_path: pathlib.Path, varies: str
) -> None:
    put(tmp_path, night=NIGHT, mood=MOOD.format(varies=varies, bad_at="r"))
    async with ScriptedServer(GOOD) as server:
        models = [model(name, server.url) for name in ("a", "b", "c")]
        all_ = with_route(*models, route("r", "a", "b", "c", **PLUGGED), plugins="plugins")
        async with Gateway(tmp_path, *all_) as gateway:
            first, tree = await explained(gateway, await chat(gateway, "r"))
            assert [(one.name, one.since) for one in first.away] == [("lost", 0.0), ("mood", 0.0)]
            assert first.away[1].why.startswith("raised KeyError: '坏了' (mood.py, line ")
            assert "mood nothing" in tree
            if varies == "tick":
                kept, _ = await explained(gateway, await chat(gateway, "r"))
                assert [one.name for one in kept.away] == ["lost", "mood"], "what is kept for a tick is nothing, too"
                return
            for _ in range(3):
                last = await chat(gateway, "r")
            fenced, tree = await explained(gateway, last)
            mood = fenced.away[1]
            assert mood.why.startswith("is fenced off: raised KeyError: '坏了'")
            assert first.time <= mood.since <= fenced.time
            assert "score mood said nothing, and did not count: is fenced off: raised KeyError: '坏了'" in tree


@inside_loop
async def test_where_all_plugins_speak_nothing_is_made_for_it(tmp_path: pathlib.Path) -> None:
    put(tmp_path, night=NIGHT, mood=MOOD.format(varies="request", bad_at="nothing"))
    spec = {**PLUGGED, "scores": PLUGGED["scores"][:2]}
    async with ScriptedServer(GOOD) as server:
        models = [model(name, server.url) for name in ("a", "b", "c")]
        async with Gateway(tmp_path, *with_route(*models, route("r", "a", "b", "c", **spec), plugins="plugins")) as gateway:
            record, _ = await explained(gateway, await chat(gateway, "r"))
            pool = gateway.node.service.table.names["r"].pool
            assert record.away == ()
            assert pool.scheduler is not None
            assert pool.scheduler._away == ()


WISH = """
from sits.routing.scheduling.base import Filter

class Wish(Filter):
    name = "wish"
    strict = False
    def __init__(self, made):
        pass
    def keep(self, facts, candidate):
        return "is not what was wished for"
"""


@inside_loop
async def test_a_filter_that_would_have_left_nobody_is_told(tmp_path: pathlib.Path) -> None:
    put(tmp_path, wish=WISH)
    async with ScriptedServer(GOOD) as server:
        models = [model(name, server.url) for name in ("a", "b")]
        wished = route("r", "a", "b", filters=[{"name": "wish"}])
        async with Gateway(tmp_path, *with_route(*models, wished, plugins="plugins")) as gateway:
            record, tree = await explained(gateway, await chat(gateway, "r"))
            assert (record.filtered, record.waived, record.away) == ([], ("wish",), ())
            assert "filter wish would have left nobody, and did not count\n" in tree


# Pieces

EXACT = {"source": llama2(), "normalises": "none", "frame": {"message": "<s>{content}", "answer": ""}}
TOWN = "\n\n".join(
    [
        "请总结小镇的历史。",
        *(f"在{1900 + year}年，小镇在河边建造了{year + 2}座房屋，还修了一条路。" for year in range(40)),
        "建造了什么？",
    ]
)
PIECES = {
    "most": 700,
    "oversize": "split",
    "notes": 64,
    "stages": [{"kind": "reason"}],
    "services": {"s": {"headroom": 100}},
    "service": "s",
}


def notes(received: Received) -> bytes:
    whole = json.loads(OPENAI_CHAT.body("笔记"))
    used = {"prompt_tokens": 300, "completion_tokens": 20, "total_tokens": 320}
    return answer(200, json.dumps({**whole, "usage": used}).encode(), ("content-type", "application/json"))


@inside_loop
async def test_a_prompt_that_is_read_in_pieces_is_told_piece_by_piece(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, notes, AGAIN]) as server, ScriptedServer(BAD) as bad:
        models = [
            model("one", server.url, "vllm", contextWindow=700, tokenizer=EXACT),
            model("sick", bad.url, "vllm", contextWindow=700, tokenizer=EXACT),
            model("narrow", server.url, "vllm", contextWindow=500, tokenizer=EXACT),
        ]
        backends = (("sick", 1.0), ("one", 0.0), ("narrow", 0.0))
        async with Gateway(tmp_path, *with_route(*models, route("r", *backends, context=PIECES))) as gateway:
            tokens = gateway.node.service.tokens
            assert tokens is not None
            await tokens.texts(gateway.node.service.table.targets["one"], ["warm"])
            record, tree = await explained(gateway, await chat(gateway, "r", TOWN))
            split = record.split
            assert split is not None
            count, ring = len(split.pieces), {one.request_id: one for one in gateway.node.service.books.ring}
            assert count > 2
            assert split == Split("oversize", 700, 100, 64, split.size, split.pieces, split.asked)
            assert all(0 < size <= split.size for size in split.pieces)
            for number, one in enumerate(split.asked, 1):
                failed = ("sick",) if number == 1 else ()
                assert one == PieceRead(number, one.request_id, "one", "ok", 300, 20, False, one.ms, failed)
                of_piece = ring[one.request_id]
                assert (of_piece.behind, of_piece.trace_id, of_piece.key) == ("piece", record.trace_id, "root")
                assert f"piece {number} of {count}: one{' after sick failed' if failed else ''}: 300 tokens asked, " in tree
            assert len(split.asked) == count - 1
            assert "20 tokens of notes carried on to piece 2" in tree
            assert f"piece {count} of {count}: {split.pieces[-1]:,} tokens, with the notes of all before" in tree
            assert (
                "narrow",
                "its window of 500 is smaller than the 700 by which the prompt is read in pieces",
            ) in record.filtered
            sent = json.dumps({**request("chat", "r"), "messages": [{"role": "user", "content": TOWN}]}, ensure_ascii=False)
            assert record.bytes_in > len(sent.encode()) // 2, "of what the client sent, not of the last ask"


@inside_loop
async def test_what_nobody_has_room_for_is_told_with_the_figures_of_everybody(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ]) as server:
        one = model("one", server.url, "vllm", contextWindow=700, tokenizer=EXACT)
        async with Gateway(tmp_path, *with_route(one, route("r", "one", context={**PIECES, "oversize": "refuse"}))) as gateway:
            tokens = gateway.node.service.tokens
            assert tokens is not None
            await tokens.texts(gateway.node.service.table.targets["one"], ["warm"])
            record, tree = await explained(gateway, await chat(gateway, "r", TOWN))
            assert record.code == "context_length_exceeded"
            [(name, why)] = record.filtered
            assert (name, why.startswith("has no room: a prompt of ")) == ("one", True)
            assert "in a window of 700: " in tree
            assert "took one: there was nobody else to choose from; then it was left out\n" in tree


# Others

HASHED = {"policy": "hash", "hash": {"by": "session"}}
KINDS = {
    "its session": ({"x-sits-session": "会话-7"}, "session", "where its session is"),
    "the key of who says none": ({}, "key", "where its API key is"),
}


@pytest.mark.parametrize(("headers", "by", "told"), list(KINDS.values()), ids=list(KINDS))
@inside_loop
async def test_a_place_on_the_ring_is_told_with_what_it_is_made_from(
    tmp_path: pathlib.Path, headers: dict[str, str], by: str, told: str
) -> None:
    async with ScriptedServer(GOOD) as server:
        models = [model(name, server.url) for name in ("a", "b", "c")]
        async with Gateway(tmp_path, *with_route(*models, route("r", "a", "b", "c", **HASHED))) as gateway:
            record, tree = await explained(gateway, await chat(gateway, "r", headers=headers))
            assert record.draw is not None
            assert record.draw.by == by
            assert f"on the ring, {told} (steps: " in tree


@inside_loop
async def test_who_answered_and_who_did_not_is_told_truly(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer(GOOD) as server, ScriptedServer(BAD) as bad:
        models = [model("good", server.url), model("sick", bad.url)]
        routes = [
            route("kept", "good", cache={"ttlSeconds": 60}),
            route("away", "sick"),
            route("next", "sick", fallbacks=("good",)),
        ]
        async with Gateway(tmp_path, *with_route(*models, *routes)) as gateway:
            await chat(gateway, "kept")
            _, again = await explained(gateway, await chat(gateway, "kept"))
            assert "├─ answered by the cache; " in again
            _, failed = await explained(gateway, await chat(gateway, "away"))
            assert "├─ ended with upstream_error; sick as sick-upstream was asked last; " in failed
            _, fell = await explained(gateway, await chat(gateway, "next"))
            assert "├─ answered by good as good-upstream, finish stop; " in fell


@inside_loop
async def test_who_is_put_in_the_place_of_another_by_a_switch_is_told(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer(GOOD) as old, ScriptedServer(GOOD) as new:
        pace = {"steps": [1.0], "stepSeconds": 0, "drainSeconds": 0}
        spec = {"from": "a", "to": "b", "pace": pace, "gates": {"volume": 1}}
        switch = {"apiVersion": "sits/v1", "kind": "Switch", "metadata": {"name": "s"}, "spec": spec}
        models = [model("a", old.url), model("b", new.url), route("r", "a"), switch]
        async with Gateway(tmp_path, *with_route(*models)) as gateway:
            gateway.node.reliability.switching.settle = 0.1
            begun = await gateway.ask("/v1/admin/switches/s/start", {"why": "better"}, bearer("root"), method="POST")
            assert begun.status == 200
            switches = gateway.node.standing.switches
            await eventually(lambda: any(move.share >= 1.0 for move in switches._moves), "all requests go to the new one")
            record, tree = await explained(gateway, await chat(gateway, "r"))
            assert record.target == "b"
            # Until the switch has retired it, it is there for what the new one cannot answer.
            assert [(name, why.removeprefix(LATER)) for name, why in record.filtered] == [
                ("a", "a switch has this request asked of b")
            ]
            assert " a: a switch has this request asked of b\n" in tree
