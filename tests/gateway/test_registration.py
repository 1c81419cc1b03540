"""Models that come and go while requests run."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import signal
from typing import Any

import pytest
from gateway_client import eventually
from gateway_process import Sits
from gateway_rig import QUICK, Gateway, inside_loop, model, route
from gateway_wires import PATHS, WIRES, request, streamed

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer

REGISTER = "/v1/models/register"
CHAT = WIRES["chat", "openai"]


def well(received: Received) -> bytes:
    """A server that is well: answers its health check and chats."""
    return answer(200, b"{}") if received.method == "GET" else CHAT.answers("好")


def flat(name: str, endpoint: str, **more: Any) -> dict[str, Any]:
    return {"model_id": name, "engine": "openai", "endpoint": endpoint, "deadlines": QUICK, **more}


@inside_loop
async def test_a_registered_model_serves_at_once_while_others_run_and_goes_when_it_is_deleted(tmp_path: pathlib.Path) -> None:
    go = asyncio.Event()
    head, *rest = CHAT.streams("一", "二")
    script = [READ, well, READ, head, rest[0], go, *rest[1:], AGAIN]
    async with (
        ScriptedServer([READ, head, rest[0], go, *rest[1:]]) as declared,
        ScriptedServer(script, [READ, well, AGAIN]) as added,
        Gateway(tmp_path, model("one", declared.url)) as gateway,
    ):
        running = await gateway.begin(PATHS["chat"], request("chat", "one", stream=True))
        await running.until(lambda one: streamed("chat", one.body) == "一")
        before = gateway.node.service.table.snapshot.version
        made = await gateway.ask(REGISTER, flat("新", added.url))
        assert (made.status, made.code) == (400, "invalid_request")  # names are ASCII
        made = await gateway.ask(REGISTER, flat("new", added.url, domain_tags=["法律"], latency_p95_ms=900))
        assert (made.status, made.json["id"], made.json["version"]) == (201, "new", before + 1)
        listed = await gateway.ask("/v1/models")
        assert [one["id"] for one in listed.json["data"]] == ["new", "one"]
        last = await gateway.begin(PATHS["chat"], request("chat", "new", stream=True))
        await last.until(lambda one: streamed("chat", one.body) == "一")
        stored = await gateway.ask("/v1/models/registered")
        assert stored.json["data"][0]["resource"]["spec"]["domains"] == ["法律"]
        gone = await gateway.ask("/v1/models/new", None, None, "DELETE")
        assert (gone.status, gone.json["deleted"]) == (200, True)
        after = await gateway.ask(PATHS["chat"], request("chat", "new"))
        assert (after.status, after.code) == (404, "model_not_found")
        await gateway.node._release()
        go.set()
        for asking in (running, last):
            await asking.ended()
            assert (asking.whole, asking.code, streamed("chat", asking.body)) == (True, "", "一二")
        again = await gateway.ask("/v1/models/new", None, None, "DELETE")
        assert (again.status, again.code) == (404, "not_found")
        assert (await gateway.ask("/v1/models/one", None, None, "DELETE")).status == 404


REFUSED: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "no name": ({"model_id": None}, 400, "invalid_request", "model_id is missing"),
    "two names": ({"name": "other"}, 400, "invalid_request", "model_id and name differ"),
    "an unknown field, with the nearest": ({"endpont": "x"}, 400, "invalid_request", 'did you mean "endpoint"?'),
    "a wrong type": ({"context_window": "many"}, 400, "invalid_request", "spec.contextWindow"),
    "an unknown engine": ({"engine": "opnai"}, 400, "invalid_request", "openai"),
    "no endpoint": ({"endpoint": None}, 422, "registration_refused", "base URL"),
    "a bad schema": ({"input_schema": {"type": "nonsense"}}, 422, "registration_refused", "inputSchema"),
    "no OpenAPI": ({"openapi": {"swagger": "2.0"}}, 422, "registration_refused", "openapi is no OpenAPI 3 document"),
    "the name of a declared model": ({"model_id": "one"}, 422, "registration_refused", '"one"'),
    "the name of a route": ({"model_id": "r"}, 422, "registration_refused", '"r"'),
    "a header on two lines": ({"headers": {"x-a": "1\r\nx-b: 2"}}, 422, "registration_refused", "one line"),
    "a model id on two lines": ({"upstream_model": "a\r\nset-cookie: b"}, 422, "registration_refused", "upstreamModel"),
    "a secret in the clear": ({"api_key": "sk-live-0123456789abcdef"}, 400, "invalid_request", "never the secret itself"),
    "a health check that fails": ({"health_check_path": "/sick"}, 422, "registration_refused", "GET /sick"),
    "nobody there": ({"endpoint": "http://127.0.0.1:1"}, 422, "registration_refused", "health check failed"),
}


@pytest.mark.parametrize("what", REFUSED)
@inside_loop
async def test_what_cannot_be_admitted_is_refused_with_the_reason(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("KEY", "upstream-secret")
    change, status, code, reason = REFUSED[what]

    def sick(received: Received) -> bytes:
        # As careless servers do, it repeats the credential that it was given.
        return answer(503, received.headers.get("authorization", "").encode()) if received.path == "/sick" else well(received)

    async with (
        ScriptedServer([READ, sick, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), route("r", "one")) as gateway,
    ):
        body = {**flat("new", server.url, api_key="env:KEY"), **change}
        asking = await gateway.ask(REGISTER, {name: value for name, value in body.items() if value is not None})
        version = gateway.node.service.table.snapshot.version
        names = [one["id"] for one in (await gateway.ask("/v1/models")).json["data"]]
        stored = (await gateway.ask("/v1/models/registered")).json["data"]
    assert (asking.status, asking.code) == (status, code), asking
    assert reason in asking.json["error"]["message"]
    assert b"upstream-secret" not in asking.body
    assert b"sk-live" not in asking.body
    assert (version, names, stored) == (1, ["one", "r"], [])


@inside_loop
async def test_a_registration_is_refused_when_it_is_there_already_or_is_no_json(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, well, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url)) as gateway,
    ):
        first = await gateway.ask(REGISTER, flat("new", server.url))
        second = await gateway.ask(REGISTER, flat("new", server.url))
        nonsense = [await gateway.ask(REGISTER, body) for body in (b"{", b"[]", b'"x"', b"\xff", b"[" * 100_000)]
        resource = await gateway.ask(REGISTER, model("whole", server.url))
    assert (first.status, second.status, second.code) == (201, 409, "conflict")
    assert [(one.status, one.code) for one in nonsense] == [(400, "invalid_request")] * 5
    assert resource.status == 201


@inside_loop
async def test_a_registration_is_seen_by_every_worker_and_outlives_a_kill(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, well, AGAIN]) as server,
        Sits(tmp_path, model("one", server.url), workers=2) as sits,
    ):

        async def statuses(name: str) -> set[int]:
            """What several fresh connections get, so that both workers are among those who answer."""
            asked = await asyncio.gather(*[sits.ask(PATHS["chat"], request("chat", name)) for _ in range(16)])
            return {one.status for one in asked}

        async def all_say(name: str, status: int) -> None:
            # How soon it is, the bench of the state tells: on a machine full of tests a second says nothing.
            async with asyncio.timeout(30.0):
                while await statuses(name) != {status}:  # noqa: ASYNC110 - other processes send no event
                    await asyncio.sleep(0.02)

        assert (await sits.ask(REGISTER, flat("new", server.url))).status == 201
        await all_say("new", 200)
        gone = await sits.ask(REGISTER, flat("gone", server.url))
        assert gone.status == 201
        assert (await sits.ask("/v1/models/gone", None, None, "DELETE")).status == 200
        await all_say("gone", 404)
        for pid in [sits.pid, *sits.crew()]:  # the parent first: it would tell of the others
            os.kill(pid, signal.SIGKILL)
        await sits.exit_code()
        await sits.start()
        assert await statuses("new") == {200}
        assert await statuses("gone") == {404}
        assert json.loads((await sits.ask("/v1/models/registered")).body)["data"][0]["id"] == "new"
        await eventually(lambda: len(sits.crew()) == 2)
        assert [line for line in sits.lines if line["level"] == "error"] == []
