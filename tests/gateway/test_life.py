"""The life of the process: changes under load, the orderly end, a worker that dies, secrets that never come out."""

from __future__ import annotations

import asyncio
import os
import pathlib
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import Any

import pytest
from gateway_client import Asking, eventually
from gateway_process import Sits
from gateway_rig import QUICK, Gateway, inside_loop, model, route, settings, write
from gateway_wires import PATHS, WIRES, request, said, streamed, texts

from sits.engines.scripted import AGAIN, LAST_CHUNK, READ, RESET, Received, ScriptedServer, answer, chunk

CHAT = WIRES["chat", "openai"]
PIECES = "".join(texts(5))


def chats(received: Received) -> bytes:
    """A whole answer, or the beginning of a streamed one."""
    return CHAT.head() if b'"stream"' in received.body else CHAT.answers(PIECES) + b""


@asynccontextmanager
async def load(sits: Sits | Gateway, clients: int) -> AsyncIterator[Counter[tuple[int, bool, str]]]:
    """Clients that ask again and again, streamed and not in turn; what they got is counted, and asserted when it is over."""
    seen: Counter[tuple[int, bool, str]] = Counter()
    over = asyncio.Event()

    async def client(number: int) -> None:
        turn = number
        while not over.is_set():
            streams = turn % 2 == 0
            turn += 1
            name = "streamed" if streams else "whole"
            one = await sits.ask(PATHS["chat"], request("chat", name, stream=streams))
            text = (streamed if streams else said)("chat", one.body) if one.status == 200 else str(one)
            seen[one.status, one.whole, text] += 1

    tasks = [asyncio.create_task(client(number)) for number in range(clients)]
    try:
        yield seen
    finally:
        over.set()
        await asyncio.gather(*tasks)


@inside_loop
async def test_a_hundred_reloads_under_load_lose_no_request_and_leave_nothing_behind(tmp_path: pathlib.Path) -> None:
    whole = [READ, CHAT.answers(PIECES), AGAIN]
    flowing = [READ, *CHAT.streams(*texts(5)), AGAIN]
    async with ScriptedServer(whole) as one, ScriptedServer(flowing) as other:

        def resources(turn: int, *, good: bool = True) -> list[dict[str, Any]]:
            models = [model("whole", one.url, version=str(turn)), model("streamed", other.url, headers={"x-turn": str(turn)})]
            bad = [] if good else [route("r", "no-such-model")]
            return [*models, *bad, settings(accessLog=False)]

        async with Gateway(tmp_path, *resources(0)) as gateway:
            node = gateway.node

            def baseline() -> tuple[int, int, int]:
                return len(asyncio.all_tasks()) - one.open - other.open, len(node.fleet._engines), len(node.tables.old)

            await gateway.ask(PATHS["chat"], request("chat", "whole"))
            await eventually(lambda: node.service.live == set())
            before = baseline()
            files = len(os.listdir("/proc/self/fd"))
            versions = [node.service.table.snapshot.version]
            async with load(gateway, 4) as seen:
                for turn in range(1, 101):
                    good = turn % 2 == 1
                    write(tmp_path, *resources(turn, good=good))
                    status = await node.reload()
                    versions.append(node.service.table.snapshot.version)
                    assert bool(status.last_error) is not good
                    if not good:
                        page = (await gateway.ask("/v1/admin/status")).json["config"]
                        assert "no-such-model" in page["error"]
                        assert (page["version"], page["rejected"]) == (versions[-2], turn // 2)
                assert versions == [1 + (turn + 1) // 2 for turn in range(101)]
                metrics = (await gateway.ask("/metrics")).body
                assert b"sits_config_version 51" in metrics
                assert b"sits_config_rejected_total 50" in metrics
                assert b"sits_config_last_reload_success 0" in metrics
            assert set(seen) == {(200, True, PIECES)}
            assert seen.total() > 20
            await node._release()
            await eventually(lambda: baseline() == before, f"tasks, engines, old tables are {before} again")
            await eventually(lambda: one.open + other.open <= 8, "connections of engines that are gone are closed")
            await eventually(lambda: len(os.listdir("/proc/self/fd")) <= files + 2 * 8, "open files are as before")


@inside_loop
async def test_a_file_that_changes_is_taken_or_refused_with_the_reason_in_the_log(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server,
        Sits(tmp_path, model("one", server.url)) as sits,
    ):
        first = (await sits.ask("/v1/admin/status")).json["config"]
        # Warm up, so that what is loaded on first use is in the baseline.
        for turn in range(3):
            write(tmp_path, model("one", server.url, version=str(turn)), settings())
            assert (await sits.ask("/v1/admin/reload", b"")).status == 200
        before = sits.figures()
        write(tmp_path, model("one", server.url), model("two", server.url), settings())
        await sits.logged(r"configuration 5 \(\w+\) is in force")
        assert (await sits.ask(PATHS["chat"], request("chat", "two"))).status == 200
        write(tmp_path, model("one", server.url, endpont="x"), settings())
        await sits.logged(r"the configuration was refused, version 5 stays: .*endpont.*did you mean")
        status = (await sits.ask("/v1/admin/status")).json["config"]
        assert (await sits.ask(PATHS["chat"], request("chat", "two"))).status == 200
        assert (status["version"], first["version"]) == (5, 1)
        assert "endpont" in status["error"]
        refused = await sits.ask("/v1/admin/reload", b"")
        assert (refused.status, refused.code) == (409, "conflict")
        for turn in range(40):
            write(tmp_path, model("one", server.url, version=f"again {turn}"), settings())
            assert (await sits.ask("/v1/admin/reload", b"")).status == 200
            assert (await sits.ask(PATHS["chat"], request("chat", "one"))).status == 200
        await eventually(lambda: sits.figures()["files"] <= before["files"] + 6, "open files are as before")
        after = sits.figures()
        assert after["threads"] <= before["threads"] + 6  # the pool of threads that read files grows to its own cap
        assert after["rss"] - before["rss"] < 8 * 1024, (before, after)


@pytest.mark.parametrize("workers", [1, 2])
@inside_loop
async def test_sigterm_lets_live_streams_finish_and_tells_new_clients_to_go_elsewhere(
    tmp_path: pathlib.Path, workers: int
) -> None:
    go = asyncio.Event()
    head, *rest = CHAT.streams(*texts(5))
    async with (
        ScriptedServer([READ, head, rest[0], go, *rest[1:]]) as server,
        Sits(tmp_path, model("one", server.url), workers=workers) as sits,
    ):
        await eventually(lambda: sits.log.count("Started server process") == workers, "every worker is up")
        streams = [await sits.begin(PATHS["chat"], request("chat", "one", stream=True)) for _ in range(50)]
        for asking in streams:
            await asking.until(lambda one: streamed("chat", one.body) == texts(5)[0])
        crew = sits.crew()
        sits.signal(signal.SIGTERM)
        await eventually(lambda: sits.log.count("draining: ") == workers, "every worker drains")
        for _ in range(4):
            assert (await sits.ask("/readyz")).status == 503
        assert not any(asking.over for asking in streams)
        go.set()
        for asking in streams:
            await asking.ended()
            assert (asking.status, asking.whole, asking.code, streamed("chat", asking.body)) == (200, True, "", PIECES)
        assert await sits.exit_code() == 0
        assert not any(sits.lives(pid) for pid in crew)
    assert len(server.requests) == 50


@pytest.mark.parametrize("workers", [1, 2])
@inside_loop
async def test_what_outlasts_the_grace_is_told_so_in_band(tmp_path: pathlib.Path, workers: int) -> None:
    async with (
        ScriptedServer([READ, *CHAT.streams("一", end=False)]) as server,
        ScriptedServer([READ]) as silent,
        Sits(
            tmp_path, settings(drainSeconds=0.2), model("one", server.url), model("silent", silent.url), workers=workers
        ) as sits,
    ):
        await eventually(lambda: sits.log.count("Started server process") == workers, "every worker is up")
        streams = [await sits.begin(PATHS["chat"], request("chat", "one", stream=True)) for _ in range(50)]
        for asking in streams:
            await asking.until(lambda one: streamed("chat", one.body) == "一")
        waiting = await sits.begin(PATHS["chat"], request("chat", "silent"))
        await silent.until(lambda one: len(one.requests) == 1)
        sits.signal(signal.SIGTERM)
        for asking in streams:
            await asking.ended()
            assert (asking.status, asking.whole, asking.code) == (200, True, "draining")
            assert b"[DONE]" not in asking.body
        await waiting.ended()
        assert (waiting.status, waiting.code, waiting.headers["retry-after"]) == (503, "draining", "1")
        assert await sits.exit_code() == 0


@inside_loop
async def test_a_worker_that_is_killed_is_replaced_while_the_other_serves(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("好"), AGAIN]) as server,
        Sits(tmp_path, model("one", server.url), workers=2) as sits,
    ):
        victim, other = sits.crew()
        # Files that are wrong just now keep the new worker from starting, not the old one from serving.
        (sits.config / "all.json").write_text("[{]")
        os.kill(victim, signal.SIGKILL)
        await eventually(lambda: sits.log.count("the configuration is not valid") >= 1, "the new worker cannot start")
        for _ in range(8):
            assert (await sits.ask(PATHS["chat"], request("chat", "one"))).status == 200
        assert other in sits.crew()
        write(tmp_path, model("one", server.url), settings())

        async def serving() -> float:
            page = (await sits.ask("/metrics")).body
            return float(page.split(b"\nsits_workers ")[1].split(b"\n")[0])

        async with asyncio.timeout(30):
            while await serving() != 2:
                pass
        assert victim not in sits.crew()
        for _ in range(8):
            assert (await sits.ask(PATHS["chat"], request("chat", "one"))).status == 200
        sits.signal(signal.SIGTERM)
        assert await sits.exit_code() == 0


CANARY, CLIENT = "canary-upstream-4711", "canary-client-4712"


@inside_loop
async def test_no_secret_ever_comes_out(tmp_path: pathlib.Path) -> None:
    def parrot(received: Received) -> bytes:
        """Repeats what it was given, in every place where servers repeat it."""
        key = received.headers.get("authorization", "")
        body = b'{"error": {"message": "bad key %b", "code": "%b", "param": "%b", "type": "%b"}}'
        status = int(received.headers.get("x-status", "400"))
        return answer(status, body.replace(b"%b", key.encode()), ("content-type", "application/json"), ("x-key", key))

    fault = chunk(b'data: {"error": {"message": "bad key Bearer %b", "code": "%b"}}\n\n'.replace(b"%b", CANARY.encode()))
    keys = {"sha256": sha256(CLIENT.encode()).hexdigest(), "admin": True}
    statuses = ("400", "401", "403", "404", "429", "500")
    async with (
        ScriptedServer([READ, parrot, AGAIN]) as server,
        ScriptedServer([READ, *CHAT.streams("一", end=False), fault, LAST_CHUNK], [READ, RESET]) as faulty,
        Sits(
            tmp_path,
            *[model(f"m{status}", server.url, apiKey="env:CANARY", headers={"x-status": status}) for status in statuses],
            model("faulty", faulty.url, apiKey="env:CANARY"),
            {"apiVersion": "sits/v1", "kind": "Key", "metadata": {"name": "me"}, "spec": keys},
            settings(logLevel="debug"),
            env={"CANARY": CANARY},
        ) as sits,
    ):
        mine = {"authorization": f"Bearer {CLIENT}", "cookie": f"c={CLIENT}"}
        answers: list[Asking] = []
        for name in [f"m{status}" for status in statuses]:
            for operation in PATHS:
                for streams in (False, True):
                    answers.append(await sits.ask(PATHS[operation], request(operation, name, stream=streams), mine))
        answers += [await sits.ask(PATHS["chat"], request("chat", "faulty", stream=True), mine) for _ in range(2)]
        answers.append(await sits.ask(PATHS["chat"], request("chat", CANARY), mine))
        answers.append(await sits.ask(PATHS["chat"], b"{broken " + CANARY.encode(), mine))
        answers.append(await sits.ask(f"/v1/{CANARY}", None, mine))
        body = {"model_id": "sick", "engine": "openai", "endpoint": server.url, "api_key": "env:CANARY", "deadlines": QUICK}
        answers.append(await sits.ask("/v1/models/register", {**body, "health_check_path": "/x"}, mine))
        assert answers[-1].status == 422
        (sits.config / "more.json").write_text(f'{{"kind": "Model", "apiKey": "{CANARY}"}}')
        answers.append(await sits.ask("/v1/admin/reload", b"", mine))
        assert answers[-1].status == 409
        pages = ["/metrics", "/v1/admin/status", "/v1/admin/records?limit=1000", "/v1/models", "/v1/models/registered"]
        answers += [await sits.ask(path, None, mine) for path in pages]
        records = answers[-3].json["data"]
        answers += [await sits.ask(f"/v1/admin/records/{one['request_id']}", None, mine) for one in records[:20]]
        assert all(asking.status == 200 for asking in answers[-20:])
        sits.signal(signal.SIGTERM)
        assert await sits.exit_code() == 0
        outputs = [repr(asking.headers) + asking.body.decode() for asking in answers] + [sits.log]
    assert len(server.requests) > 40
    assert all(f"Bearer {CANARY}" == one.headers["authorization"] for one in server.requests)
    for output in outputs:
        assert CANARY not in output
        assert CLIENT not in output
    assert "[redacted]" in "".join(outputs)
