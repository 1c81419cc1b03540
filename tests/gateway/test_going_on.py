"""Answers of /v1/responses can be gone on from, whoever serves them, by the key that asked and by nobody else."""

from __future__ import annotations

import json
import pathlib
from typing import Any

import pytest
from gateway_rig import Gateway, bearer, inside_loop, key, model, route
from gateway_wires import PATHS, WIRES, request, said, streamed

from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer, chunked

PATH = PATHS["responses"]


def responses(*ids: str) -> Any:
    """A server of the responses dialect that gives its answers these ids and tells what it was asked."""
    left = list(ids)

    def respond(received: Received) -> bytes:
        asked = json.loads(received.body)
        turns = asked["input"] if isinstance(asked["input"], list) else [asked["input"]]
        text = f"{len(turns)} items"
        item = {
            "type": "message",
            "id": f"msg_{left[0]}",
            "role": "assistant",
            "status": "completed",
            "content": [{"type": "output_text", "text": text, "annotations": []}],
        }
        whole = {
            "id": left.pop(0),
            "object": "response",
            "created_at": 1,
            "model": "m",
            "status": "completed",
            "output": [item],
            "usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2},
        }
        if not asked.get("stream"):
            return answer(200, json.dumps(whole).encode(), ("content-type", "application/json"))
        events = [
            {"type": "response.created", "response": {**whole, "status": "in_progress", "output": []}},
            {"type": "response.output_item.added", "output_index": 0, "item": {**item, "content": []}},
            {"type": "response.output_text.delta", "item_id": item["id"], "output_index": 0, "content_index": 0, "delta": text},
            {"type": "response.completed", "response": whole},
        ]
        pieces = [f"event: {e['type']}\ndata: {json.dumps(e)}\n\n".encode() for e in events]
        return chunked(200, *pieces, fields=[("content-type", "text/event-stream")])

    return respond


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@inside_loop
async def test_a_conversation_goes_on_over_several_answers_and_branches(stream: bool, tmp_path: pathlib.Path) -> None:
    script = [READ, responses("resp_1", "resp_2", "resp_3", "resp_4"), AGAIN]
    async with ScriptedServer(script) as server, Gateway(tmp_path, model("one", server.url)) as gateway:
        texts = []
        for previous in (None, "resp_1", "resp_2", "resp_1"):
            more = {} if previous is None else {"previous_response_id": previous}
            asked = await gateway.ask(PATH, request("responses", "one", stream=stream, **more))
            assert asked.status == 200, asked
            texts.append(streamed("responses", asked.body) if stream else said("responses", asked.body))
        # Each turn brings its question and the answer before it: 1, 1+1+1, 1+1+1+1+1; the branch starts from the first again.
        assert texts == ["1 items", "3 items", "5 items", "3 items"]
        stored = await gateway.ask("/v1/responses/resp_2")
        assert (stored.status, stored.json["id"], stored.json["previous_response_id"]) == (200, "resp_2", "resp_1")


@inside_loop
async def test_it_works_for_models_that_know_no_conversations(tmp_path: pathlib.Path) -> None:
    wire = WIRES["messages", "anthropic"]
    seen: list[Any] = []

    def remembers(received: Received) -> bytes:
        seen.append(json.loads(received.body)["messages"])
        return wire.answers(f"nummer {len(seen)}")

    async with (
        ScriptedServer([READ, remembers, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "anthropic")) as gateway,
    ):
        first = await gateway.ask(PATH, request("responses", "one"))
        second = await gateway.ask(PATH, request("responses", "one", previous_response_id=first.json["id"]))
        assert (second.status, said("responses", second.body)) == (200, "nummer 2")
        assert [one["role"] for one in seen[1]] == ["user", "assistant", "user"]


@inside_loop
async def test_ids_of_other_keys_and_unknown_ids_are_not_found(tmp_path: pathlib.Path) -> None:
    script = [READ, responses("resp_1", "resp_2"), AGAIN]
    async with (
        ScriptedServer(script) as server,
        Gateway(tmp_path, model("one", server.url), key("a"), key("b")) as gateway,
    ):
        await gateway.ask(PATH, request("responses", "one"), bearer("a"))
        for who, previous in (("b", "resp_1"), ("a", "resp_9")):
            asked = await gateway.ask(PATH, request("responses", "one", previous_response_id=previous), bearer(who))
            assert (asked.status, asked.json["error"]["code"]) == (400, "previous_response_not_found")
            assert (await gateway.ask(f"/v1/responses/{previous}", None, bearer(who))).status == 404
        gone = await gateway.ask("/v1/responses/resp_1", None, bearer("a"), "DELETE")
        assert (gone.status, gone.json["deleted"]) == (200, True)
        asked = await gateway.ask(PATH, request("responses", "one", previous_response_id="resp_1"), bearer("a"))
        assert asked.status == 400


@inside_loop
async def test_what_is_not_to_be_stored_is_not(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, responses("resp_1", "resp_2"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url)) as gateway,
    ):
        await gateway.ask(PATH, request("responses", "one", store=False))
        assert (await gateway.ask("/v1/responses/resp_1")).status == 404


@inside_loop
async def test_a_route_may_leave_conversations_to_its_model_server(tmp_path: pathlib.Path) -> None:
    seen: list[Any] = []

    def respond(received: Received) -> bytes:
        seen.append(json.loads(received.body))
        return WIRES["responses", "openai"].answers("好")

    async with (
        ScriptedServer([READ, respond, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), route("r", "one", conversations="upstream")) as gateway,
    ):
        asked = await gateway.ask(PATH, request("responses", "r", previous_response_id="resp_elsewhere"))
        assert asked.status == 200
        assert seen[0]["previous_response_id"] == "resp_elsewhere"


@inside_loop
async def test_conversations_survive_a_restart(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, responses("resp_1", "resp_2"), AGAIN], [READ, responses("resp_2"), AGAIN]) as server:
        async with Gateway(tmp_path, model("one", server.url)) as gateway:
            await gateway.ask(PATH, request("responses", "one"))
        async with Gateway(tmp_path, model("one", server.url)) as gateway:
            asked = await gateway.ask(PATH, request("responses", "one", previous_response_id="resp_1"))
            assert (asked.status, said("responses", asked.body)) == (200, "3 items")
