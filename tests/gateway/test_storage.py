"""What does not take what the gateway writes: told by the status page, for all that requests are answered."""

from __future__ import annotations

import pathlib
from typing import Any

import msgspec
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, settings
from gateway_wires import OPENAI_CHAT, PATHS, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.gateway.storage import Storage
from sits.inner.stuck import Stuck


class Others:
    """Two more workers: one is well, one is not."""

    async def ask(self, question: str) -> tuple[list[bytes], int]:
        assert question == "storage"
        return [b"[]", msgspec.json.encode([{"what": "ledger", "worker": 2, "since": 5.0, "why": "full"}])], 1


async def told(it: Gateway) -> list[tuple[str, str]]:
    rows = (await it.ask("/v1/admin/status")).json["storage"]
    return [(row["what"], row["why"]) for row in rows]


@inside_loop
async def test_all_workers_tell_what_they_cannot_write_the_oldest_trouble_first() -> None:
    siblings: Any = Others()
    storage = Storage({"ledger": lambda: Stuck(7.0, "满"), "trace": lambda: None}, lambda: siblings, 0)
    assert await storage.rows() == [
        {"what": "ledger", "worker": 2, "since": 5.0, "why": "full"},
        {"what": "ledger", "worker": 0, "since": 7.0, "why": "满"},
    ]


@inside_loop
async def test_a_trace_folder_that_takes_nothing_is_on_the_status_page_until_it_does(tmp_path: pathlib.Path) -> None:
    place = tmp_path / "录制"
    place.write_text("a file stands where the folder should be")
    async with (
        ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("m", server.url), route("r", "m"), settings(trace={"folder": str(place)})) as it,
    ):
        assert await told(it) == []
        assert (await it.ask(PATHS["chat"], request("chat", "r"))).status == 200
        recorder = it.node.routing.recorder
        await eventually(lambda: recorder.stuck is not None, "the trace file is tried")
        why = f"the disk does not take recorded traffic, it stays in memory: {place}: File exists"
        assert await told(it) == [("trace", why)]
        place.unlink()
        await eventually(lambda: recorder.stuck is None, "it is tried again")
        assert await told(it) == []
