"""A shadow is asked behind the answer, with nothing personal, and nobody who asked is touched by it, whatever it does."""

from __future__ import annotations

import asyncio
import json
import logging
import pathlib
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import pytest
from gateway_books import entries
from gateway_client import Asking, eventually
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import EVERY_ANSWER, PATHS, WIRES, request, streamed
from gateway_wires import said as said_by

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer
from sits.gateway.shadowing import LARGEST_REQUEST, ShadowPages
from sits.gateway.siblings import Siblings
from sits.observe.record import Record
from sits.resilience.shadow import Lane
from sits.resilience.shadow.shadows import VOLUME

CHAT = WIRES["chat", "openai"]
PERSONAL = "我是 alice@example.com，电话 13800138000"


def shadowed(name: str = "asked", **shadow: Any) -> dict[str, Any]:
    return route(name, "old", shadow={"model": "new", "share": 1.0, **shadow})


def models(old: str, new: str, engine: str = "openai", **spec: Any) -> list[dict[str, Any]]:
    return [model("old", old, engine), model("new", new, engine, version="2026.1", **spec)]


def saying(text: str, **message: Any) -> list[Any]:
    body = json.loads(CHAT.body(text))
    body["choices"][0]["message"].update(message)
    return [READ, answer(200, json.dumps(body, ensure_ascii=False).encode(), ("content-type", "application/json")), AGAIN]


def lane_of(gateway: Gateway, name: str = "asked") -> Lane:
    found = gateway.node.service.shadowing.shadows.lane(name)
    assert found is not None
    return found


async def over(gateway: Gateway, asked: int, name: str = "asked") -> Lane:
    """Wait until so many shadows were asked, or left out, and have ended."""

    def done() -> bool:
        lane = gateway.node.service.shadowing.shadows.lane(name)
        if lane is None or gateway.node.service.shadowing:
            return False
        tally = lane.tally
        return tally.compared + tally.failed + tally.unread + sum(tally.left_out.values()) == asked

    await eventually(done, f"{asked} shadows are over: {lane_of(gateway, name).tally}")
    return lane_of(gateway, name)


def shadow_records(gateway: Gateway) -> list[Record]:
    return [record for record in gateway.node.service.books.ring if record.requested.startswith("shadow:")]


@EVERY_ANSWER
@inside_loop
async def test_the_other_model_is_asked_the_same_and_the_answers_are_compared(
    operation: str, stream: bool, tmp_path: pathlib.Path
) -> None:
    engine = "anthropic" if operation == "messages" else "openai"
    wire, read = WIRES[operation, engine], streamed if stream else said_by
    steps = wire.streams("好", "的") if stream else [wire.answers("好的")]
    async with (
        ScriptedServer([READ, *steps, AGAIN]) as old,
        ScriptedServer([READ, wire.answers("好的"), AGAIN]) as new,
        Gateway(tmp_path, *models(old.url, new.url, engine), shadowed()) as gateway,
    ):
        written = entries(gateway)
        ask = request(operation, "asked", stream=stream, user="alice")
        fields = {"x-traffic-color": "green", "x-experiment-id": "exp-8", "idempotency-key": "once", "cookie": "c"}
        asking = await gateway.ask(PATHS[operation], ask, fields)
        assert (asking.status, read(operation, asking.body)) == (200, "好的")
        lane = await over(gateway, 1)
        assert (lane.tally.drawn, lane.tally.asked, lane.tally.compared, lane.tally.exact) == (1, 1, 1, 1)
        sent = new.requests[0]
        body = json.loads(sent.body)
        expected = {**request(operation, "new-upstream"), **({"store": False} if operation == "responses" else {})}
        assert {name: value for name, value in body.items() if name != "stream_options"} == expected
        said = {name: sent.headers.get(name) for name in ("x-shadow-version", "x-traffic-color", "x-experiment-id")}
        assert said == {"x-shadow-version": "2026.1", "x-traffic-color": "green", "x-experiment-id": "exp-8"}
        assert not {"idempotency-key", "cookie", "authorization"} & sent.headers.keys()
        assert sent.headers["x-request-id"] != old.requests[0].headers["x-request-id"]
        assert "x-shadow-version" not in old.requests[0].headers
        record = shadow_records(gateway)[0]
        assert (record.target, record.status, record.key, record.stream, record.code) == ("new", 200, None, False, "")
        assert [(one.model, one.key, one.route, one.requested, one.outcome) for one in written] == [
            ("old", "", "asked", "asked", "ok"),
            ("new", "", "asked", "shadow:asked", "ok"),
        ]


@inside_loop
async def test_embeddings_are_compared_as_vectors(tmp_path: pathlib.Path) -> None:
    wire = WIRES["embeddings", "openai"]
    other = wire.body("").replace(b"0.5, -0.25", b"0.5, 0.25")
    async with (
        ScriptedServer([READ, wire.answers(""), AGAIN]) as old,
        ScriptedServer([READ, answer(200, other, ("content-type", "application/json")), AGAIN]) as new,
        Gateway(tmp_path, *models(old.url, new.url), shadowed(distance=0.1)) as gateway,
    ):
        assert (await gateway.ask(PATHS["embeddings"], request("embeddings", "asked"))).status == 200
        lane = await over(gateway, 1)
        assert (lane.tally.differing, lane.reviews[0].distance, lane.reviews[0].structure) == (1, pytest.approx(0.4), ())


@inside_loop
async def test_the_client_waits_for_nothing_and_hears_of_nothing(tmp_path: pathlib.Path) -> None:
    never = asyncio.Event()
    async with (
        ScriptedServer(saying("好")) as old,
        ScriptedServer([READ, never]) as new,
        Gateway(tmp_path, *models(old.url, new.url), shadowed()) as gateway,
    ):
        with_shadow = await gateway.ask(PATHS["chat"], request("chat", "asked"))
        await new.until(lambda one: len(one.requests) == 1)
        without = await gateway.ask(PATHS["chat"], request("chat", "old"))
        told = {"content-type", "x-sits-served", "x-sits-target", "x-sits-attempts", "content-length"}
        assert with_shadow.headers.keys() == without.headers.keys()
        assert [with_shadow.headers[name] for name in told] == [without.headers[name] for name in told]
        assert (len(gateway.node.service.shadowing), lane_of(gateway).under_way) == (1, 1)
        assert await gateway.node.service.drain(5.0) == 0, "nobody waits for a shadow"
        assert (len(gateway.node.service.shadowing), lane_of(gateway).under_way, len(gateway.node.service.live)) == (0, 0, 0)
        await new.until(lambda one: one.gone == 1)
        assert [(one.status, one.code) for one in shadow_records(gateway)] == [(499, "draining")]
        await gateway.ask(PATHS["chat"], request("chat", "asked"))
        assert len(new.requests) == 1, "none is begun any more"


@inside_loop
async def test_what_is_personal_does_not_leave_and_is_the_same_in_question_and_answers(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(saying("写信给 alice@example.com")) as old,
        ScriptedServer(saying("写信给 <EMAIL_1>")) as new,
        Gateway(tmp_path, *models(old.url, new.url), shadowed()) as gateway,
    ):
        ask = {"model": "asked", "messages": [{"role": "user", "content": PERSONAL}], "user": "alice", "metadata": {"a": "b"}}
        await gateway.ask(PATHS["chat"], ask)
        lane = await over(gateway, 1)
        assert json.loads(old.requests[0].body)["messages"][0]["content"] == PERSONAL
        assert json.loads(new.requests[0].body) == {
            "model": "new-upstream",
            "messages": [{"role": "user", "content": "我是 <EMAIL_1>，电话 <PHONE_1>"}],
        }
        assert (lane.tally.exact, lane.tally.differing) == (1, 0)


@inside_loop
async def test_texts_that_people_look_at_are_scrubbed_also_where_the_shadow_was_asked_with_everything(
    tmp_path: pathlib.Path,
) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "mail", "arguments": '{"to":"bob@example.com"}'}}
    async with (
        ScriptedServer(saying("打电话 13800138000")) as old,
        ScriptedServer(saying("bob@example.com", tool_calls=[call])) as new,
        Gateway(tmp_path, *models(old.url, new.url), shadowed(scrub=False)) as gateway,
    ):
        ask = request("chat", "asked", messages=[{"role": "user", "content": PERSONAL}])
        asking = await gateway.ask(PATHS["chat"], ask, {"x-traffic-color": "green"})
        lane = await over(gateway, 1)
        assert json.loads(new.requests[0].body)["messages"][0]["content"] == PERSONAL
        review = lane.reviews[0]
        assert (review.request_id, review.target, review.structure) == (asking.headers["x-request-id"], "old", ("tools",))
        assert (review.first, review.second) == ("打电话 <PHONE_1>", "<EMAIL_1>\n[mail(to)]")
        assert (review.colour, review.experiment) == ("green", "")


def untouched(asking: Asking) -> bool:
    return asking.status == 200 and said_by("chat", asking.body) == "好"


LEFT_OUT = [
    ("too large", {}, {}, {"content": "x" * LARGEST_REQUEST}, "too_large"),
    ("not to be scrubbed", {}, {}, {"content": " ".join(f"{n}@b.org" for n in range(10_001))}, "unscrubbable"),
    ("not able", {"capabilities": ["completions"]}, {}, {}, "unable"),
    ("too dear", {"cost": {"outputPerMillion": 1000.0}}, {"dollarsPerDay": 0.5}, {}, "budget"),
]


@pytest.mark.parametrize(("spec", "shadow", "turn", "reason"), [row[1:] for row in LEFT_OUT], ids=[row[0] for row in LEFT_OUT])
@inside_loop
async def test_what_cannot_be_asked_is_left_out_and_counted(
    spec: dict[str, Any], shadow: dict[str, Any], turn: dict[str, str], reason: str, tmp_path: pathlib.Path
) -> None:
    async with (
        ScriptedServer(saying("好")) as old,
        ScriptedServer(saying("好")) as new,
        Gateway(tmp_path, *models(old.url, new.url, **spec), shadowed(**shadow)) as gateway,
    ):
        ask = request("chat", "asked", messages=[{"role": "user", "content": "q", **turn}])
        assert untouched(await gateway.ask(PATHS["chat"], ask))
        lane = await over(gateway, 1)
        assert (lane.tally.left_out, lane.under_way, new.requests) == ({reason: 1}, 0, [])


@inside_loop
async def test_the_money_of_a_day_is_not_passed_and_is_the_shadows_own(tmp_path: pathlib.Path) -> None:
    # A request may use 1024 tokens of output, and uses 7.
    price = {"outputPerMillion": 100.0}
    spec = {"sha256": sha256(b"sits-a").hexdigest(), "quota": {"requestsPerMinute": 9, "dollarsPerDay": 0.2}}
    key = {"apiVersion": "sits/v1", "kind": "Key", "metadata": {"name": "alice"}, "spec": spec}
    async with (
        ScriptedServer(saying("好")) as old,
        ScriptedServer(saying("好")) as new,
        Gateway(tmp_path, *models(old.url, new.url, cost=price), shadowed(dollarsPerDay=0.1035), key) as gateway,
    ):
        gateway.node.service.wall = lambda: 1_700_000_000.0  # a minute, and a day, that do not end within the test
        for number in range(1, 5):
            asking = await gateway.ask(PATHS["chat"], request("chat", "asked"), {"authorization": "Bearer sits-a"})
            assert (asking.status, asking.headers["x-ratelimit-remaining-requests"]) == (200, str(9 - number))
            lane = await over(gateway, number)
        # After two of 0.0007 dollars there is no room for another that may cost 0.1024.
        assert (lane.tally.compared, lane.tally.left_out) == (2, {"budget": 2})
        assert len(new.requests) == 2


@inside_loop
async def test_so_many_are_under_way_and_no_more_and_none_under_load(tmp_path: pathlib.Path) -> None:
    go, busy = asyncio.Event(), False
    async with (
        ScriptedServer(saying("好")) as old,
        ScriptedServer([READ, go, CHAT.answers("好"), AGAIN]) as new,
        Gateway(tmp_path, *models(old.url, new.url), shadowed(concurrent=2)) as gateway,
    ):
        gateway.node.service.shadowing._busy = lambda: busy
        for _ in range(3):
            assert untouched(await gateway.ask(PATHS["chat"], request("chat", "asked")))
        lane = lane_of(gateway)
        assert (lane.under_way, lane.tally.left_out) == (2, {"busy": 1})
        go.set()
        await over(gateway, 3)
        busy = True
        assert untouched(await gateway.ask(PATHS["chat"], request("chat", "asked")))
        assert (await over(gateway, 4)).tally.left_out == {"busy": 1, "overload": 1}


FAILURES: list[tuple[str, list[Any], str]] = [
    ("an error", [READ, answer(500, b'{"error":{"message":"no"}}'), AGAIN], "failed"),
    ("nonsense", [READ, answer(200, b"<html>"), AGAIN], "failed"),
    ("no answer of its kind", [READ, answer(200, b'{"choices":[{"message":7}]}'), AGAIN], "failed"),
]


@pytest.mark.parametrize(("script", "expected"), [row[1:] for row in FAILURES], ids=[row[0] for row in FAILURES])
@inside_loop
async def test_a_shadow_that_fails_is_no_difference(script: list[Any], expected: str, tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(saying("好")) as old,
        ScriptedServer(script) as new,
        Gateway(tmp_path, *models(old.url, new.url), shadowed()) as gateway,
    ):
        assert untouched(await gateway.ask(PATHS["chat"], request("chat", "asked")))
        lane = await over(gateway, 1)
        assert (lane.tally.failed + lane.tally.unread, lane.tally.compared, lane.under_way) == (1, 0, 0)


@inside_loop
async def test_only_answers_that_clients_got_are_shadowed(tmp_path: pathlib.Path) -> None:
    broken = CHAT.streams("好", end=False)
    async with (
        ScriptedServer([READ, answer(400, b'{"error":{"message":"no"}}'), READ, *broken, asyncio.Event()]) as old,
        ScriptedServer(saying("好")) as new,
        Gateway(tmp_path, *models(old.url, new.url), shadowed()) as gateway,
    ):
        assert (await gateway.ask(PATHS["chat"], request("chat", "asked"))).status == 400
        left = await gateway.begin(PATHS["chat"], request("chat", "asked", stream=True))
        await left.until(lambda one: b"\xe5\xa5\xbd" in one.body)
        left.leave()
        await eventually(lambda: not gateway.node.service.live, "it has gone")
        count = {"model": "asked", "messages": []}
        await gateway.ask("/v1/messages/count_tokens", count)
        assert (lane_of(gateway).tally.drawn, lane_of(gateway).tally.asked, new.requests) == (2, 0, [])


@inside_loop
async def test_the_answer_of_a_shadow_is_in_nobodys_cache(tmp_path: pathlib.Path) -> None:
    resources = route("asked", "old", shadow={"model": "new", "share": 1.0}, cache={})
    async with (
        ScriptedServer(saying("旧")) as old,
        ScriptedServer(saying("新")) as new,
        Gateway(tmp_path, *models(old.url, new.url), resources) as gateway,
    ):
        for expected in ("miss", "hit", "hit"):
            asking = await gateway.ask(PATHS["chat"], request("chat", "asked"))
            assert (asking.headers["x-sits-cache"], said_by("chat", asking.body)) == (expected, "旧")
        await over(gateway, 1)
        assert (len(new.requests), len(gateway.node.caches.own)) == (1, 1)


@inside_loop
async def test_too_many_differences_are_an_alarm_once_and_hold_up_a_switch(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        ScriptedServer(saying("好")) as old,
        ScriptedServer(saying("", content='{"好": 1}')) as new,
        Gateway(tmp_path, *models(old.url, new.url), shadowed()) as gateway,
    ):
        shadowing = gateway.node.service.shadowing
        heard: list[tuple[str, float]] = []
        counted: list[tuple[str, str]] = []
        shadowing._alarmed = lambda lane, rate: heard.append((lane.route, rate))
        shadowing._counted = lambda route, outcome: counted.append((route, outcome))
        with caplog.at_level(logging.WARNING, "sits.gateway"):
            for number in range(1, VOLUME + 3):
                await gateway.ask(PATHS["chat"], request("chat", "asked"))
                await over(gateway, number)
                assert shadowing.alarm("new") is (number >= VOLUME)
        assert (shadowing.compared("new"), shadowing.alarm("old")) == ((VOLUME + 2, VOLUME + 2), False)
        assert (heard, counted) == ([("asked", 1.0)], [("asked", "differs")] * (VOLUME + 2))
        assert [line.message for line in caplog.records if "shadow" in line.message] == [
            f"shadow new of route asked: {VOLUME} of {VOLUME} answers of the last hour differ, more than the 0.005 allowed"
        ]
        assert list(shadowing.figures()) == [("asked", "new", 1.0, True)]


async def shown(gateway: Gateway, path: str) -> dict[str, Any]:
    found = await gateway.ask(path)
    assert found.status == 200, found
    value: dict[str, Any] = found.json
    return value


@inside_loop
async def test_the_pages_show_what_came_of_it(tmp_path: pathlib.Path) -> None:
    texts = ["一", "二"]
    async with (
        ScriptedServer(saying("好")) as old,
        ScriptedServer([READ, in_turn(*(saying(text, refusal="no")[1] for text in texts)), AGAIN]) as new,
        Gateway(tmp_path, *models(old.url, new.url), shadowed(), shadowed("other/one")) as gateway,
    ):
        for number in (1, 2):
            await gateway.ask(PATHS["chat"], request("chat", "asked"))
            await over(gateway, number)
        await gateway.ask(PATHS["chat"], request("chat", "other/one"))
        await over(gateway, 1, "other/one")
        listed = await shown(gateway, "/v1/admin/shadows")
        assert [
            (one["route"], one["model"], one["version"], one["compared"], one["rate"], one["alarm"]) for one in listed["data"]
        ] == [
            ("asked", "new", "2026.1", 2, 1.0, False),
            ("other/one", "new", "2026.1", 1, 1.0, False),
        ]
        assert (listed["workers_missing"], "reviews" in listed["data"][0]) == (0, False)
        one = await shown(gateway, "/v1/admin/shadows/asked")
        assert [(review["second"], review["structure"]) for review in one["reviews"]] == [
            ("二", ["refusal"]),
            ("一", ["refusal"]),
        ]
        assert (await shown(gateway, "/v1/admin/shadows/other/one"))["route"] == "other/one"
        nothing = await gateway.ask("/v1/admin/shadows/none")
        assert (nothing.status, nothing.code) == (404, "not_found")


def in_turn(*answers: bytes) -> Callable[[Received], bytes]:
    left = list(answers)
    return lambda received: left.pop(0) if len(left) > 1 else left[0]


@inside_loop
async def test_the_figures_of_all_workers_are_one(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(saying("好")) as old,
        ScriptedServer(saying("好", refusal="no")) as new,
        Gateway(tmp_path, *models(old.url, new.url), shadowed()) as gateway,
    ):
        await gateway.ask(PATHS["chat"], request("chat", "asked"))
        await over(gateway, 1)
        pages = ShadowPages(gateway.node.service.shadowing, lambda: other)
        other = Siblings(tmp_path / "run", {"shadows": pages.here})
        # Its socket is another worker's for whoever asks.
        other._path = other._path.with_name("worker-0.sock")
        await other.start()
        asking = Siblings(tmp_path / "run", {})
        await asking.start()
        try:
            lanes, missing = await ShadowPages(gateway.node.service.shadowing, lambda: asking)._lanes()
        finally:
            await asking.aclose()
            await other.aclose()
        lane = lanes[0]
        seen: Mapping[str, Any] = {name: lane[name] for name in ("compared", "differing", "rate", "alarms")}
        assert (len(lanes), missing, seen) == (1, 0, {"compared": 2, "differing": 2, "rate": 1.0, "alarms": 0})
        assert (lane["tally"]["drawn"], len(lane["reviews"])) == (2, 2)


@inside_loop
async def test_embeddings_say_what_is_the_same_in_other_words_where_they_are_installed(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer(saying("The capital of France is Paris.")) as old,
        ScriptedServer([READ, in_turn(saying("Paris is the capital of France.")[1], saying("I bake bread.")[1]), AGAIN]) as new,
        Gateway(tmp_path, *models(old.url, new.url), shadowed()) as gateway,
    ):
        shadowing = gateway.node.service.shadowing
        await eventually(lambda: shadowing.trouble == "", "the embedder is loaded")
        for number in (1, 2):
            await gateway.ask(PATHS["chat"], request("chat", "asked"))
            lane = await over(gateway, number)
        assert (lane.tally.compared, lane.tally.exact, lane.tally.differing) == (2, 0, 1)
        assert lane.reviews[0].second == "I bake bread."
