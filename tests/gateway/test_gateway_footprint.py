"""What a process holds in memory that serves, and for how long: nothing of bodies, and nothing that few ask for."""

from __future__ import annotations

import gc
import json
import pathlib
import subprocess
import sys

import msgspec
import pytest
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer

MOST_BYTES = 2048
"""Of a record, with all that it alone holds: 4096 of them are kept."""
LARGE = 33_000


def weighed(root: object, seen: set[int]) -> int:
    """Bytes of an object and of all that is reached from it and was not seen yet; types are left out, they lead everywhere."""
    bytes_, front = 0, [root]
    while front:
        one = front.pop()
        if id(one) in seen or isinstance(one, type):
            continue
        seen.add(id(one))
        bytes_ += sys.getsizeof(one)
        # The collector knows nothing of what such structs hold.
        front += (
            [getattr(one, name) for name in one.__struct_fields__] if isinstance(one, msgspec.Struct) else gc.get_referents(one)
        )
    return bytes_


@pytest.mark.parametrize("text", ["", "然" * (LARGE // 3)], ids=["a short request", "a request of 33 kB"])
@inside_loop
async def test_a_record_holds_nothing_of_a_body(tmp_path: pathlib.Path, text: str) -> None:
    body = request("chat", "r")
    body["messages"] = [{"role": "user", "content": f"{text}?"}]
    async with (
        ScriptedServer([READ, WIRES["chat", "openai"].answers(f"{text}!"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url), route("r", "one")) as gateway,
    ):
        first, second = [gateway.record(await gateway.ask(PATHS["chat"], body)) for _ in range(2)]
    assert (second.status, second.bytes_in > len(text.encode())) == (200, True)
    seen: set[int] = set()
    weighed(first, seen)
    assert weighed(second, seen) < MOST_BYTES
    assert second.requested is second.route is first.route
    assert second.filtered is first.filtered


def test_a_gateway_starts_without_what_few_configurations_ask_for() -> None:
    wanted = ("jsonschema_rs", "numpy", "tokenizers", "redis", "asyncpg", "pymilvus", "usearch", "nats", "aiokafka", "grpc")
    code = (
        f"import json, sys, sits.gateway.serve, sits.gateway.node; print(json.dumps([n for n in {wanted} if n in sys.modules]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
