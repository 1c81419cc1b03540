"""The pages of sessions and of stored answers, by HTTP, and `sitsctl sync verify` against a service."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pathlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from click.testing import CliRunner
from gateway_rig import Gateway, inside_loop, key, model
from gateway_rig import bearer as by

from sits.cli.sync import sync
from sits.gateway.conversations import Conversations, ResponsePages
from sits.gateway.sessions import SessionPages
from sits.ports.store.base import Delete
from sits.ports.store.memory import MemoryStore
from sits.security.keys import KeyIdentity
from sits.state.sessions import Sessions, open_pending
from sits.state.sessions.terms import Terms


@asynccontextmanager
async def gateway_with_sessions(folder: pathlib.Path) -> AsyncIterator[tuple[Gateway, MemoryStore, Conversations]]:
    resources = [model("m", "http://127.0.0.1:1"), key("mine"), key("yours"), key("boss", admin=True)]
    async with Gateway(folder, *resources) as gateway:
        store = MemoryStore(time.time)
        pending = await open_pending(folder / "data", "n1", Terms())
        sessions = Sessions("n1", store, None, pending, wall=time.time, token=lambda: os.urandom(12).hex())
        conversations = Conversations(sessions, store)
        SessionPages(sessions, time.time).add_to(gateway.node._pages)
        ResponsePages(conversations).add_to(gateway.node._pages)
        await sessions.start()
        try:
            yield gateway, store, conversations
        finally:
            await sessions.aclose()


def b64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@inside_loop
async def test_a_session_is_made_changed_read_and_removed_by_its_key_and_by_no_other(tmp_path: pathlib.Path) -> None:
    async with gateway_with_sessions(tmp_path) as (gateway, _, _):
        made = await gateway.ask("/v1/sessions", {"rules": [{"path": "said", "rule": "append"}], "ttl_seconds": 60}, by("mine"))
        assert (made.status, made.json["version"], made.json["state"], made.json["owner"]) == (201, 0, "synced", "n1")
        path = f"/v1/sessions/{made.json['id']}"
        delta = {"session_id": made.json["id"], "version": 1, "updates": {"said": b64('["你好"]'), "笔记": b64("\u0000原样")}}
        kept = await gateway.ask(f"{path}/deltas", delta, by("mine"))
        assert kept.json == {
            "session_id": made.json["id"],
            "version": 1,
            "clock": {"n1": 1},
            "state": "synced",
            "repeated": False,
            "conflict": None,
        }
        assert (await gateway.ask(f"{path}/deltas", delta, by("mine"))).json == {**kept.json, "repeated": True}
        packed = msgspec.msgpack.encode({"session_id": made.json["id"], "version": 1, "updates": {"said": b'["2"]'}, "id": "x"})
        fields = {"content-type": "application/msgpack", "accept": "application/msgpack"}
        forked = await gateway.ask(f"{path}/deltas", packed, by("boss", **fields))
        answer = msgspec.msgpack.decode(forked.body)
        assert (answer["version"], [one["outcome"] for one in answer["conflict"]["paths"]]) == (2, ["both"])
        read = await gateway.ask(f"{path}?fresh=true", None, by("mine"))
        assert read.json["context"] == {"said": b64('["你好","2"]'), "笔记": b64("\u0000原样")}
        assert (read.json["version"], read.json["clock"], read.json["forks"]) == (2, {"n1": 2}, 1)
        deltas = await gateway.ask(f"{path}/deltas?after=1&reader=me", None, by("mine"))
        assert [(one["version"], one["updates"], one["fork"]) for one in deltas.json["deltas"]] == [
            (2, {"said": b64('["2"]')}, True)
        ]
        conflicts = await gateway.ask(f"{path}/conflicts", None, by("mine"))
        assert [one["version"] for one in conflicts.json["data"]] == [2]
        for method, where, body in (("GET", path, None), ("DELETE", path, None), ("POST", f"{path}/deltas", delta)):
            refused = await gateway.ask(where, body, by("yours"), method)
            assert (refused.status, refused.code) == (404, "not_found"), (method, where)
        assert (await gateway.ask(path, None)).status == 401
        assert (await gateway.ask(path, None, by("boss"))).json["version"] == 2
        gone = await gateway.ask(path, None, by("mine"), "DELETE")
        assert gone.json == {"id": made.json["id"], "object": "session", "deleted": True}
        assert (await gateway.ask(path, None, by("mine"))).status == 404


@inside_loop
async def test_what_is_wrong_with_a_change_is_said_with_its_place(tmp_path: pathlib.Path) -> None:
    async with gateway_with_sessions(tmp_path) as (gateway, _, _):
        id = (await gateway.ask("/v1/sessions", {}, by("mine"))).json["id"]
        path = f"/v1/sessions/{id}/deltas"
        good = {"session_id": id, "version": 1, "updates": {"a": b64("1")}}
        rows = {
            "not JSON": (b"{", 400, "invalid_request", None),
            "no version": ({"session_id": id, "updates": {}}, 400, "invalid_request", "version"),
            "not base64": ({**good, "updates": {"a": "?"}}, 400, "invalid_request", "updates"),
            "another session": ({**good, "session_id": "sess_x"}, 400, "invalid_request", "session_id"),
            "no updates": ({**good, "updates": {}}, 400, "invalid_request", "updates"),
            "a jump": ({**good, "version": 4}, 409, "conflict", "version"),
            "a version beyond all": ({**good, "version": 10**30}, 400, "invalid_request", "version"),
        }
        for what, (body, status, code, param) in rows.items():
            refused = await gateway.ask(path, body, by("mine"))
            assert (what, refused.status, refused.code) == (what, status, code), refused
            assert (what, refused.json["error"]["param"]) == (what, param)
        jump = (await gateway.ask(path, {**good, "version": 4}, by("mine"))).json
        assert {name: jump[name] for name in ("session_id", "known", "missing", "reason")} == {
            "session_id": id,
            "known": 0,
            "missing": [1, 3],
            "reason": "ahead",
        }
        packed = await gateway.ask(path, b"\xc1", by("mine", **{"content-type": "application/msgpack"}))
        assert (packed.status, packed.json["error"]["message"][:23]) == (400, "the body is not msgpack")
        for where, status in (
            (f"/v1/sessions/{id}/nothing", 404),
            (f"/v1/sessions/{id}?fresh=maybe", 400),
            (f"/v1/sessions/{id}/deltas?after=x", 400),
            (f"/v1/sessions/{id}/deltas?after=", 400),
            (f"/v1/sessions/{id}/deltas?reader=a/b", 400),
            (f"/v1/sessions/{id}/conflicts?limit=0", 400),
            (f"/v1/sessions/{id}/conflicts?limit=1001", 400),
            ("/v1/sessions/%2e", 404),
        ):
            assert (await gateway.ask(where, None, by("mine"))).status == status
        for method, where, allowed in (("POST", f"/v1/sessions/{id}", "DELETE, GET"), ("DELETE", path, "GET, POST")):
            refused = await gateway.ask(where, good, by("mine"), method)
            assert (refused.status, refused.headers["allow"]) == (405, allowed)
        assert (await gateway.ask("/v1/sessions", {"rules": [{"path": "a", "rule": "best"}]}, by("mine"))).status == 400


@inside_loop
async def test_sitsctl_sync_verify_asks_the_service(tmp_path: pathlib.Path) -> None:
    async with gateway_with_sessions(tmp_path) as (gateway, store, _):
        id = (await gateway.ask("/v1/sessions", {}, by("mine"))).json["id"]
        await gateway.ask(f"/v1/sessions/{id}/deltas", {"session_id": id, "version": 1, "updates": {"a": ""}}, by("mine"))
        assert (await gateway.ask("/v1/admin/sync/verify", None, by("mine"))).status == 403

        async def verify(*options: str) -> Any:
            command = ["verify", "--url", f"http://127.0.0.1:{gateway.port}", "--key", "secret-of-boss", *options]
            return await asyncio.to_thread(CliRunner().invoke, sync, command)

        sound = await verify("--session", id, "--json")
        assert (sound.exit_code, json.loads(sound.stdout)["sound"], json.loads(sound.stdout)["deltas"]) == (0, True, 1)
        assert "the sessions are sound" in (await verify()).output
        await store.commit([Delete(f"session/d/{id}/000000000001")])
        broken = await verify("--json")
        assert (broken.exit_code, {one["kind"] for one in json.loads(broken.stdout)["faults"]}) == (1, {"hole", "hash"})


@inside_loop
async def test_stored_answers_are_fetched_listed_and_deleted_by_their_key(tmp_path: pathlib.Path) -> None:
    async with gateway_with_sessions(tmp_path) as (gateway, _, conversations):
        mine = KeyIdentity("mine")
        response = {"id": "resp_1", "object": "response", "status": "completed", "output": [], "previous_response_id": None}
        items = [{"role": "user", "content": "一"}, {"type": "function_call_output", "id": "fco", "call_id": "c", "output": "二"}]
        await conversations.keep(json.dumps({"input": "零"}).encode(), json.dumps({**response, "id": "resp_0"}).encode(), mine)
        body = json.dumps({"input": items, "previous_response_id": "resp_0"}).encode()
        assert await conversations.keep(body, json.dumps(response).encode(), mine)
        path = "/v1/responses/resp_1"
        assert (await gateway.ask(path, None, by("mine"))).json == {**response, "previous_response_id": "resp_0"}
        listed = (await gateway.ask(f"{path}/input_items?order=asc", None, by("mine"))).json
        assert listed["data"] == [{"id": "item_resp_1_0", **items[0], "type": "message"}, items[1]]
        page = (await gateway.ask(f"{path}/input_items?limit=1", None, by("mine"))).json
        assert (page["data"], page["first_id"], page["last_id"], page["has_more"]) == ([items[1]], "fco", "fco", True)
        rest = (await gateway.ask(f"{path}/input_items?limit=1&after=fco", None, by("mine"))).json
        assert ([one["id"] for one in rest["data"]], rest["has_more"]) == (["item_resp_1_0"], False)
        for limit in ("0", "101", "0001999", ""):
            assert (await gateway.ask(f"{path}/input_items?limit={limit}", None, by("mine"))).status == 400
        assert (await gateway.ask(f"{path}/nothing", None, by("mine"))).status == 404
        for method in ("GET", "DELETE"):
            foreign = await gateway.ask(path, None, by("yours"), method)
            assert (foreign.status, foreign.json["error"]["message"]) == (404, "Response with id 'resp_1' not found.")
        gone = await gateway.ask(path, None, by("mine"), "DELETE")
        assert gone.json == {"id": "resp_1", "object": "response", "deleted": True}
        assert (await gateway.ask(path, None, by("mine"))).status == 404
