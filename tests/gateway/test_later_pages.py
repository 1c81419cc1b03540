"""An answer that is made later is the one that the request would have had, for whoever asked, by poll or by call."""

from __future__ import annotations

import asyncio
import json
import pathlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from time import perf_counter
from typing import Any

import pytest
from gateway_client import Asking, eventually
from gateway_rig import Gateway, inside_loop, model, route, settings, write
from gateway_wires import PATHS, PROMPT, WIRES, request, said, streamed

from sits import dialects
from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer
from sits.gateway import spine
from sits.gateway.exchange import Exchange
from sits.gateway.later_pages import LaterPages, lines
from sits.gateway.making_later import Callbacks, Gathered, Making, room
from sits.gateway.promise import promise, take_on, wanted
from sits.gateway.renewal import Nowhere
from sits.gateway.wire import Request
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.resilience.later import Later, Made, Wanted
from sits.resilience.qos.gate import SERVED, Gate, Waiter
from sits.resources.reliability import QosSpec

CHAT = WIRES["chat", "openai"]
ALICE, BOB = {"authorization": "Bearer sits-alice"}, {"authorization": "Bearer sits-bob"}
OPERATIONS: list[Operation] = ["chat", "completions", "responses", "messages", "embeddings"]


def key(name: str, **spec: Any) -> dict[str, Any]:
    spec = {"sha256": sha256(f"sits-{name}".encode()).hexdigest(), **spec}
    return {"apiVersion": "sits/v1", "kind": "Key", "metadata": {"name": name}, "spec": spec}


def calling(*prefixes: str) -> dict[str, Any]:
    """Settings that allow these callbacks."""
    return settings(qos={"callbacks": list(prefixes)})


class Rig:
    """What the node does with answers that are made later."""

    def __init__(self, gateway: Gateway, owner: str = "one") -> None:
        node = gateway.node
        self.gateway = gateway
        self.making = Making(node.service, dialects.client)
        self.callbacks = Callbacks(node.loop, node.sweep, {})
        self.waits: list[float] = []
        self.later = Later(
            node.store,
            self.making.ask,
            self.callbacks.call,
            owner=owner,
            token=lambda: secrets.token_urlsafe(24),
            sleep=self._sleep,
        )
        LaterPages(self.later).add_to(node._pages)

    async def _sleep(self, seconds: float) -> None:
        """Waits are noted, and over at the next turn."""
        self.waits.append(seconds)
        await asyncio.sleep(0)

    def exchange(self, operation: Operation, body: dict[str, Any], headers: dict[str, str]) -> Exchange:
        """A request that has come as far as its plan."""
        path, fields = PATHS[operation].encode(), {name.encode(): value.encode() for name, value in headers.items()}
        asked = Request(b"POST", path, b"", fields, json.dumps(body, ensure_ascii=False).encode(), "", perf_counter())
        x = Exchange(self.gateway.node.service, asked, Nowhere(), operation, dialects.client(operation))
        spine.admit(x)
        spine.understand(x)
        spine.plan(x)
        return x

    async def accept(self, operation: Operation, body: dict[str, Any], headers: dict[str, str] | None = None) -> str:
        x = self.exchange(operation, body, headers or {})
        return await self.later.accept(wanted(x, 60.0))

    async def poll(self, id: str, headers: dict[str, str] | None = None) -> Asking:
        return await self.gateway.ask("/v1/later/" + id, headers=headers)

    async def made(self, id: str, headers: dict[str, str] | None = None) -> Asking:
        await eventually(lambda: not len(self.later), "everything is made")
        return await self.poll(id, headers)


@asynccontextmanager
async def rigged(folder: pathlib.Path, *resources: dict[str, Any]) -> AsyncIterator[Rig]:
    async with Gateway(folder, *resources) as gateway:
        rig = Rig(gateway)
        try:
            yield rig
        finally:
            await rig.later.aclose()
            await rig.callbacks.aclose()


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("operation", OPERATIONS)
@inside_loop
async def test_the_answer_is_the_one_that_the_request_would_have_had(
    operation: Operation, stream: bool, tmp_path: pathlib.Path
) -> None:
    if stream and operation == "embeddings":
        stream = False  # They have none: asked a second time.
    engine, go = "anthropic" if operation == "messages" else "openai", asyncio.Event()
    wire = WIRES[operation, engine]
    steps = wire.streams("好", "的") if stream else [wire.answers("好的")]
    async with (
        ScriptedServer([READ, *steps, READ, go, *steps]) as server,
        rigged(tmp_path, model("one", server.url, engine), route("asked", "one")) as rig,
    ):
        body = request(operation, "asked", stream=stream)
        fields = {"x-traffic-color": "green", "x-request-id": "mine-7"}
        at_once = await rig.gateway.ask(PATHS[operation], body, fields)
        id = await rig.accept(operation, body, fields)
        await server.until(lambda one: len(one.requests) == 2)
        pending = await rig.poll(id)
        assert (pending.status, pending.json) == (
            202,
            {"id": id, "object": "later", "status": "pending", "url": f"/v1/later/{id}"},
        )
        assert (pending.headers["retry-after"], pending.headers["x-sits-later-status"]) == ("2", "pending")
        go.set()
        later = await rig.made(id)
        same = ("content-type", "x-sits-served", "x-sits-target", "x-sits-requested", "x-sits-attempts", "x-traffic-color")
        assert [later.headers[name] for name in same] == [at_once.headers[name] for name in same]
        assert (later.status, later.headers["x-sits-later-status"]) == (200, "done")
        read = streamed if stream else said
        assert read(operation, later.body) == read(operation, at_once.body)
        first, second = server.requests
        assert (second.body, second.headers["x-traffic-color"]) == (first.body, "green")
        record = rig.gateway.record(at_once)
        assert (record.request_id, record.status, record.target) == ("mine-7", 200, "one"), "one id explains both"


@inside_loop
async def test_only_the_key_that_asked_finds_it(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server,
        rigged(tmp_path, model("one", server.url), key("alice"), key("bob"), key("root", admin=True)) as rig,
    ):
        id = await rig.accept("chat", request("chat", "one"), ALICE)
        assert (await rig.made(id, ALICE)).status == 200
        root = {"authorization": "Bearer sits-root"}
        for fields, where in (
            (BOB, id),
            (root, id),
            (ALICE, "no-such-answer-anywhere"),
            (ALICE, "../admin/status"),
            (ALICE, "x"),
        ):
            found = await rig.poll(where, fields)
            assert (found.status, found.code) == (404, "not_found")
        assert (await rig.poll(id)).status == 401
        kept = [entry.value for entry in await rig.gateway.node.store.scan("later/")]
        assert not any(b"sits-alice" in value for value in kept), "a credential is kept nowhere"


FAILED = [
    ("a fault of the request", answer(400, b'{"error":{"message":"no such thing","code":"odd"}}'), 1, 400, "upstream_rejected"),
    ("a server that stays broken", answer(500, b'{"error":{"message":"no"}}'), 3, 502, "upstream_error"),
]


@pytest.mark.parametrize(
    ("said_by_server", "asked", "status", "code"), [row[1:] for row in FAILED], ids=[row[0] for row in FAILED]
)
@pytest.mark.parametrize("operation", ["chat", "messages"])
@inside_loop
async def test_what_fails_for_good_is_410_with_the_error_that_the_request_would_have_had(
    operation: Operation, said_by_server: bytes, asked: int, status: int, code: str, tmp_path: pathlib.Path
) -> None:
    engine = "anthropic" if operation == "messages" else "openai"
    async with (
        ScriptedServer([READ, said_by_server, AGAIN]) as server,
        rigged(tmp_path, model("one", server.url, engine)) as rig,
    ):
        at_once = await rig.gateway.ask(PATHS[operation], request(operation, "one"))
        id = await rig.accept(operation, request(operation, "one"))
        found = await rig.made(id)
        assert (found.status, found.code, len(server.requests)) == (410, code, asked + 1)
        told = [found.headers[name] for name in ("x-sits-error", "x-sits-status", "x-sits-later-status")]
        assert told == [code, str(status), "failed"] == [at_once.headers["x-sits-error"], str(at_once.status), "failed"]

        def plain(one: Asking) -> Any:
            return json.loads(one.body.replace(one.headers["x-request-id"].encode(), b"").replace(record_id.encode(), b""))

        record_id = next(iter(rig.gateway.node.service.books.ring)).request_id
        assert plain(found)["error"]["message"] == plain(at_once)["error"]["message"]


@inside_loop
async def test_a_stream_that_broke_is_begun_again_and_nobody_sees_its_half(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, *CHAT.streams("坏", end=False)], [READ, *CHAT.streams("好")]) as server,
        rigged(tmp_path, model("one", server.url, deadlines={"idle": 1.0})) as rig,
    ):
        id = await rig.accept("chat", request("chat", "one", stream=True))
        found = await rig.made(id)
        assert (found.status, streamed("chat", found.body), len(server.requests)) == (200, "好", 2)


@inside_loop
async def test_the_real_answer_is_made_also_where_one_is_kept_and_kept_in_its_place(tmp_path: pathlib.Path) -> None:
    def in_turn(received: Received) -> bytes:
        return CHAT.answers("旧" if len(server.requests) == 1 else "新")

    async with (
        ScriptedServer([READ, in_turn, AGAIN]) as server,
        rigged(tmp_path, model("one", server.url), route("asked", "one", cache={})) as rig,
    ):
        ask = request("chat", "asked")
        await rig.gateway.ask(PATHS["chat"], ask)
        found = await rig.made(await rig.accept("chat", ask))
        assert (said("chat", found.body), found.headers["x-sits-cache"]) == ("新", "miss")
        after = await rig.gateway.ask(PATHS["chat"], ask)
        assert (after.headers["x-sits-cache"], said("chat", after.body)) == ("hit", "新")


KEYS = [
    ("gone", [], "unauthenticated"),
    ("disabled", [key("alice", disabled=True)], "unauthenticated"),
    ("expired", [key("alice", expires="2020-01-01T00:00:00Z")], "unauthenticated"),
    ("not allowed any more", [key("alice", models=["other"])], "forbidden"),
]


@pytest.mark.parametrize(("declared", "code"), [row[1:] for row in KEYS], ids=[row[0] for row in KEYS])
@inside_loop
async def test_a_key_that_may_not_ask_when_its_turn_comes_gets_nothing(
    declared: list[dict[str, Any]], code: str, tmp_path: pathlib.Path
) -> None:
    resources = [model("one", "http://127.0.0.1:9"), model("other", "http://127.0.0.1:9"), key("root", admin=True), *declared]
    async with rigged(tmp_path, *resources) as rig:
        job = Wanted("chat", b"/v1/chat/completions", [], json.dumps(request("chat", "one")).encode(), "alice", "one", 60.0)
        made = await rig.making.ask(job)
        assert (made.code, made.good) == (code, False)
        nobody = await rig.making.ask(Wanted(*[*_fields(job)[:4], None, *_fields(job)[5:]]))
        assert nobody.code == "unauthenticated"


def _fields(job: Wanted) -> list[Any]:
    return [getattr(job, name) for name in job.__struct_fields__]


@inside_loop
async def test_tokens_are_the_keys_own_and_where_they_are_used_up_it_waits(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server,
        rigged(tmp_path, model("one", server.url), key("alice", quota={"requestsPerMinute": 1, "tokensPerDay": 1055})) as rig,
    ):
        rig.gateway.node.service.wall = lambda: 1_700_000_000.0  # a day that does not end within the test
        body = request("chat", "one")
        first = await rig.gateway.ask(PATHS["chat"], body, ALICE)
        assert first.status == 200
        id = await rig.accept("chat", body, ALICE)
        await eventually(lambda: len(rig.waits) > 3, "it waits for its quota, and is asked again and again")
        assert (await rig.poll(id, ALICE)).status == 202
        assert len(server.requests) == 1


@inside_loop
async def test_whoever_wants_to_be_called_is_called_with_the_answer(tmp_path: pathlib.Path) -> None:
    statuses = [answer(503), answer(302, b"", ("location", "http://127.0.0.1:9/elsewhere")), answer(204)]
    async with (
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server,
        ScriptedServer([READ, statuses[0], READ, statuses[1], READ, statuses[2]]) as hook,
        rigged(tmp_path, model("one", server.url), calling(f"{hook.url}/sits/")) as rig,
    ):
        headers = {"x-sits-callback": f"{hook.url}/sits/in?job=7", "x-traffic-color": "green"}
        id = await rig.accept("chat", request("chat", "one"), headers)
        found = await rig.made(id)
        assert [(one.method, one.path) for one in hook.requests] == [("POST", "/sits/in?job=7")] * 3, "no redirect is followed"
        assert {one.body for one in hook.requests} == {found.body}
        sent = hook.requests[0].headers
        told = ("content-type", "x-sits-later-id", "x-sits-later-status", "x-sits-status", "x-sits-target", "x-traffic-color")
        assert [sent[name] for name in told] == ["application/json", id, "done", "200", "one", "green"]
        assert "authorization" not in sent
        assert (rig.later.tally.called, rig.waits) == (1, [1.0, 2.0])


@inside_loop
async def test_a_callback_that_goes_nowhere_is_given_up_and_the_answer_stays(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, answer(400, b'{"error":{"message":"no"}}')]) as server,
        rigged(tmp_path, model("one", server.url), calling("http://127.0.0.1:9/")) as rig,
    ):
        id = await rig.accept("chat", request("chat", "one"), {"x-sits-callback": "http://127.0.0.1:9/in"})
        assert (await rig.made(id)).status == 410
        assert rig.later.tally.uncalled == 1


@inside_loop
async def test_a_failure_is_told_to_whoever_is_called(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, answer(200)]) as hook, rigged(tmp_path, model("one", "http://127.0.0.1:9")) as rig:
        made = Made(404, b"application/json", b"{}", [], "model_not_found")
        assert await rig.callbacks.call(hook.url, "id-7", made)
        sent = hook.requests[0]
        told = [sent.headers[name] for name in ("x-sits-later-id", "x-sits-later-status", "x-sits-status", "x-sits-error")]
        assert (sent.path, told) == ("/", ["id-7", "failed", "404", "model_not_found"])


@inside_loop
async def test_what_is_kept_of_a_request_has_no_credentials_and_its_callback_is_one_that_may_be_called(
    tmp_path: pathlib.Path,
) -> None:
    hook = "https://hooks.example.com/in"
    async with rigged(tmp_path, model("one", "http://127.0.0.1:9"), key("alice"), calling("https://hooks.example.com/")) as rig:
        headers = {**ALICE, "cookie": "c=1", "x-request-id": "mine", "anthropic-beta": "b", "cache-control": "max-age=1"}
        x = rig.exchange("chat", request("chat", "one"), {**headers, "x-sits-callback": hook})
        job = wanted(x, 60.0)
        assert (job.callback, job.key, job.route, job.keep, PROMPT in json.loads(job.body)["messages"][0]["content"]) == (
            (hook, "alice", "one", 60.0, True)
        )
        assert dict(job.headers) == {b"x-request-id": b"mine", b"anthropic-beta": b"b"}
        x.request.headers[b"x-sits-callback"] = b"https://evil.example.com/"
        with pytest.raises(SitsError) as refused:
            wanted(x, 60.0)
        assert (refused.value.code, refused.value.param) == (Code.INVALID_REQUEST, "x-sits-callback")


@pytest.mark.parametrize("operation", OPERATIONS)
@inside_loop
async def test_a_callback_that_may_not_be_called_is_refused_also_where_nothing_is_put_off(
    operation: Operation, tmp_path: pathlib.Path
) -> None:
    engine = "anthropic" if operation == "messages" else "openai"
    async with ScriptedServer([READ, WIRES[operation, engine].answers("好")]) as server:
        one, said = model("one", server.url, engine), request(operation, "one")
        async with Gateway(tmp_path, one, calling("https://hooks.example.com/")) as gateway:
            told = {}
            for url in ("https://evil.example.com/", "nowhere", "https://hooks.example.com/in"):
                asked = await gateway.ask(PATHS[operation], said, {"x-sits-callback": url})
                told[url] = (asked.status, asked.json["error"]["message"] if asked.status != 200 else "")
            assert told == {
                "https://evil.example.com/": (
                    400, "x-sits-callback: it begins with none of the URLs under `qos.callbacks` in Settings"
                ),
                "nowhere": (400, "x-sits-callback: wanted http:// or https:// and a host"),
                "https://hooks.example.com/in": (200, ""),
            }  # fmt: skip
            assert len(server.requests) == 1
            write(gateway.folder, one)
            await gateway.node.reload()
            asked = await gateway.ask(PATHS[operation], said, {"x-sits-callback": "https://hooks.example.com/in"})
            assert (asked.status, asked.headers["x-sits-error"]) == (400, "invalid_request")


@inside_loop
async def test_the_end_of_the_process_ends_what_is_under_way_and_leaves_it_to_the_next(tmp_path: pathlib.Path) -> None:
    never = asyncio.Event()
    async with (
        ScriptedServer([READ, never], [READ, CHAT.answers("好")]) as server,
        rigged(tmp_path, model("one", server.url)) as rig,
    ):
        id = await rig.accept("chat", request("chat", "one"))
        await server.until(lambda one: len(one.requests) == 1)
        await rig.later.aclose()
        await eventually(lambda: not rig.gateway.node.service.live, "the exchange has ended")
        await server.until(lambda one: one.gone == 1)
        following = Rig(rig.gateway, "two")
        await following.later.start()
        try:
            assert (await following.made(id)).status == 200
        finally:
            await following.later.aclose()


@inside_loop
async def test_a_client_is_told_where_its_answer_will_be_once_that_is_certain(tmp_path: pathlib.Path) -> None:
    go = asyncio.Event()
    async with (
        ScriptedServer([READ, go, CHAT.answers("好")]) as server,
        rigged(tmp_path, model("one", server.url)) as rig,
    ):
        x = rig.exchange("chat", request("chat", "one"), {"x-traffic-color": "green"})
        x.wire = wire = Gathered(rig.gateway.node.loop.create_future())
        id = await take_on(x, rig.later, QosSpec())
        promise(x, id)
        fields = dict(wire.fields)
        told = [fields[name.encode()].decode() for name in ("x-sits-later", "retry-after", "x-traffic-color", "content-type")]
        assert (wire.status, told) == (202, [f"/v1/later/{id}", "2", "green", "application/json"])
        assert json.loads(wire.body) == (await rig.poll(id)).json
        go.set()
        assert (await rig.made(id)).status == 200
        refused = rig.exchange("chat", request("chat", "one"), {})
        refused.request.headers[b"x-sits-callback"] = b"https://evil.example.com/"
        with pytest.raises(SitsError) as error:
            await take_on(refused, rig.later, QosSpec())
        assert (error.value.code, refused.more) == (Code.INVALID_REQUEST, b"")


@inside_loop
async def test_there_is_room_when_whoever_comes_would_go_in_at_once() -> None:
    gate, looks = Gate("one", QosSpec(start=1, least=1, most=1), 0.0), 0
    inside = Waiter(0, "")
    assert gate.enter(inside, 0.0)

    async def look(seconds: float) -> None:
        nonlocal looks
        looks += 1
        if looks == 3:
            gate.leave(inside, 1.0, 0.5, SERVED)

    await room({"one": gate}, "one", look)
    await room({"one": gate}, "another", look)
    assert looks == 3


def test_the_first_answer_says_where_the_later_one_is() -> None:
    assert lines("abc") == b"x-sits-later: /v1/later/abc\r\n"
