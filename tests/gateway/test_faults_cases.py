"""What users of such systems suffer from, on the running product: a real gateway process, numbered servers, one row a claim.

The large table of model servers that fail is `sits bench faults`; here is what it has no room for: retries, hedges, deadlines,
opt-outs, continuing over several targets, breakers, and the end of a process.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvloop

from sits.bench.declared import resource
from sits.bench.faults_cells import OWN, PATHS, Operation
from sits.bench.faults_client import Answer, ask
from sits.bench.faults_judge import TEXT, Booked
from sits.bench.faults_rig import LONG, body, ledger_of, record_of, running, write
from sits.bench.faults_wire import Said, read, read_error
from sits.bench.state_gateway import GatewayProcess
from sits.chaos.script import Fault
from sits.chaos.server import NumberedServer

TIMEOUT, OVER, RATE = "upstream_timeout", "upstream_error", "upstream_rate_limited"
QUICK, HALF = {"headers": 1.0}, {"headers": 2.0}
"""Deadlines of all three targets, so that those that do answer must have time to on a busy machine too."""
ONCE_503 = Fault("error", status=503, headers={"retry-after": "0"}, times=1)
ONCE_429_LATER = Fault("error", status=429, headers={"retry-after": "30"}, times=1)
BAD_REQUEST = Fault(
    "error", status=400, body={"error": {"message": "too hot", "type": "invalid_request_error", "code": "invalid_value"}}
)
SAME = {"same": 2, "pauseSeconds": 0.01, "share": 1}


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One request, who fails how, and what must come of it. Targets are called a, b, c."""

    name: str
    route: dict[str, Any] = {}
    a: tuple[Fault, ...] = ()
    b: tuple[Fault, ...] = ()
    c: tuple[Fault, ...] = ()
    slow: float = 0.0
    """Seconds before the first token of a."""
    model: dict[str, Any] = {}
    """Of all three."""
    headers: dict[str, str] = {}
    operation: Operation = "chat"
    streamed: bool = False
    status: int = 200
    code: str = ""
    tried: str
    """Targets in the order of the record; the one that was answered with is the last."""
    outcomes: list[str]
    kinds: list[str] | None = None
    text: str = TEXT


STALLED, BROKEN = "stream_stalled", "stream_broken"
GOES_ON: dict[str, Any] = {"onBrokenStream": "continue"}
ABLE: dict[str, Any] = {"capabilities": ["chat", "completions", "prefill"], "engine": "vllm"}
ROWS = (
    Row(
        name="4: a silent target is not asked again, the next one is",
        route={"retry": SAME}, a=(Fault("stall"),), model={"deadlines": QUICK}, tried="ab", outcomes=[TIMEOUT, "ok"],
    ),
    Row(
        name="4: one deadline stands over all attempts",
        route={"total": 3.0}, a=(Fault("stall"),), b=(Fault("stall"),), c=(Fault("stall"),), model={"deadlines": HALF},
        status=504, code=TIMEOUT, tried="ab", outcomes=[TIMEOUT, TIMEOUT], text="",
    ),
    Row(
        name="4: a client's own deadline counts too",
        headers={"x-request-timeout": "3000ms"}, a=(Fault("stall"),), b=(Fault("stall"),), model={"deadlines": HALF},
        status=504, code=TIMEOUT, tried="ab", outcomes=[TIMEOUT, TIMEOUT], text="",
    ),
    *(
        Row(
            name=f"5: {operation} may opt out of fallbacks before the first content",
            operation=operation, streamed=True, headers={"x-sits-fallback": "off"}, a=(Fault("error", status=503),),
            status=502, code=OVER, tried="a", outcomes=[OVER], text="",
        )
        for operation in PATHS
    ),
    Row(
        name="5: who opts out of fallbacks in the middle is gone on with by the same target",
        streamed=True, headers={"x-sits-fallback": "off"}, route=GOES_ON, a=(Fault("reset", at=40, times=1),), tried="aa",
        outcomes=[BROKEN, "ok"], kinds=["first", "continuation"],
    ),
    Row(
        name="5: and by nobody else",
        streamed=True, headers={"x-sits-fallback": "off"}, route=GOES_ON, a=(Fault("reset", at=40),), code=BROKEN, tried="aa",
        outcomes=[BROKEN, "upstream_broken"], text=TEXT[: TEXT.index(" w41")],
    ),
    Row(
        name="7: what was refused as a bad request is asked nowhere again",
        route={"retry": SAME}, a=(BAD_REQUEST,), status=400, code="upstream_rejected", tried="a",
        outcomes=["upstream_rejected"], text="",
    ),
    Row(
        name="8: tries are as many as the plan says, in one place",
        route={"retry": {**SAME, "same": 1}, "attempts": 2}, a=(Fault("error", status=503),), b=(Fault("error", status=503),),
        status=502, code=OVER, tried="aab", outcomes=[OVER, OVER, OVER], kinds=["first", "again", "next"], text="",
    ),
    Row(
        name="8: a server that is back soon is asked again",
        route={"retry": SAME}, a=(ONCE_503,), tried="aa", outcomes=[OVER, "ok"], kinds=["first", "again"],
    ),
    Row(
        name="8: nobody waits for a server that is back late while another can be asked",
        route={"retry": SAME}, a=(ONCE_429_LATER,), tried="ab", outcomes=[RATE, "ok"], kinds=["first", "next"],
    ),
    Row(
        name="8: a route without a share of retries has none",
        route={"retry": {**SAME, "share": 0, "floor": 0}}, a=(ONCE_503,), tried="ab", outcomes=[OVER, "ok"],
    ),
    Row(
        name="9: where a resend could be billed twice, it is not made",
        route={"retry": {"resend": "unstarted"}}, a=(Fault("stall"),), model={"deadlines": QUICK},
        status=504, code=TIMEOUT, tried="a", outcomes=[TIMEOUT], text="",
    ),
    Row(
        name="9: what the server refused to begin is sent elsewhere all the same",
        route={"retry": {"resend": "unstarted"}}, a=(Fault("error", status=503),), tried="ab", outcomes=[OVER, "ok"],
    ),
    Row(
        name="28: a policy may list an outcome after which another is asked",
        route={"retry": {"also": ["upstream_rejected"]}}, a=(BAD_REQUEST,), tried="ab", outcomes=["upstream_rejected", "ok"],
    ),
    *(
        Row(
            name=f"a late target is raced, the loser is cancelled and in the books ({'streamed' if streamed else 'whole'})",
            route={"hedge": {"afterMs": 60, "share": 1}}, slow=60.0, streamed=streamed, tried="ab", outcomes=["outrun", "ok"],
            kinds=["first", "hedge"],
        )
        for streamed in (False, True)
    ),
    Row(
        name="a target in time is raced by nobody",
        route={"hedge": {"afterMs": 60_000, "share": 1}}, streamed=True, tried="a", outcomes=["ok"],
    ),
    Row(
        name="a hedge that fails takes nothing from the first one",
        route={"hedge": {"afterMs": 60, "share": 1}}, slow=2.0, b=(Fault("error", status=503),), tried="ba",
        outcomes=[OVER, "ok"],
    ),
    Row(
        name="an answer goes on over three targets",
        route=GOES_ON, model=ABLE, streamed=True, a=(Fault("reset", at=20),), b=(Fault("close", at=15),), tried="abc",
        outcomes=[BROKEN, BROKEN, "ok"], kinds=["first", "continuation", "continuation"],
    ),
    Row(
        name="an answer is said again over three targets",
        route=GOES_ON, streamed=True, a=(Fault("reset", at=20),), b=(Fault("close", at=35),), tried="abc",
        outcomes=[BROKEN, BROKEN, "ok"], kinds=["first", "continuation", "continuation"],
    ),
    Row(
        name="one that breaks off before it says anything new is passed over",
        route=GOES_ON, streamed=True, a=(Fault("reset", at=20),), b=(Fault("close", at=10),), tried="abc",
        outcomes=[BROKEN, "upstream_broken", "ok"],
    ),
    Row(
        name="one that refuses the continuation as a bad request ends the answer",
        route=GOES_ON, model=ABLE, streamed=True, a=(Fault("reset", at=40),), b=(BAD_REQUEST,), code="upstream_rejected",
        tried="ab", outcomes=[BROKEN, "upstream_rejected"], text=TEXT[: TEXT.index(" w41")],
    ),
    Row(
        name="a stall and then a quota error still come to a whole answer",
        route=GOES_ON, model={**ABLE, "deadlines": {"idle": 2.0}}, streamed=True, a=(Fault("stall", at=5),),
        b=(Fault("error_event", at=5, word="insufficient_quota"),), tried="abc", outcomes=[STALLED, BROKEN, "ok"],
    ),
)  # fmt: skip


class Came(msgspec.Struct):
    """What came of a row."""

    answer: Answer
    said: Said
    record: dict[str, Any]
    requests: list[int]
    keys: list[set[str]]
    """Values of `idempotency-key` that each server got."""
    open: int
    """Answers that servers still give once the client has its own."""
    booked: list[Booked] = []


def targets(number: int) -> list[str]:
    return [f"row{number}.{letter}" for letter in "abc"]


async def _servers(number: int, row: Row) -> list[NumberedServer]:
    servers = [NumberedServer(name, first=row.slow if place == 0 else 0.0) for place, name in enumerate(targets(number))]
    for server, faults in zip(servers, (row.a, row.b, row.c), strict=True):
        server.script(*faults)
        await server.listen()
    return servers


def _declared(number: int, row: Row, servers: Sequence[NumberedServer]) -> Iterator[dict[str, Any]]:
    for server in servers:
        spec = {"engine": OWN[row.operation], "endpoint": server.url, "upstreamModel": server.name, **row.model}
        yield resource("Model", server.name, **spec)
    a, b, c = targets(number)
    yield resource("Route", f"row{number}", backends=[{"model": a}], fallbacks=[b, c], **row.route)


async def _one(port: int, number: int, row: Row, servers: Sequence[NumberedServer]) -> Came:
    name = f"row{number}"
    headers = {"x-request-id": name, "idempotency-key": f"key-{name}", **row.headers}
    answer = await ask(port, PATHS[row.operation], body(row.operation, name, streamed=row.streamed), headers)
    said = read(row.operation, answer.body, streamed=row.streamed) if answer.status == 200 else read_error("chat", answer.body)
    end = asyncio.get_running_loop().time() + 20.0
    while any(server.figures.open for server in servers) and asyncio.get_running_loop().time() < end:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    keys = [{heads.get("idempotency-key", "") for heads in server.heads} for server in servers]
    requests = [server.figures.requests for server in servers]
    return Came(answer, said, await record_of(port, name), requests, keys, sum(server.figures.open for server in servers))


async def _all(folder: Path) -> list[Came]:
    servers = [await _servers(number, row) for number, row in enumerate(ROWS)]
    gateway = GatewayProcess(folder)
    resources = [one for number, row in enumerate(ROWS) for one in _declared(number, row, servers[number])]
    write(gateway, [{"apiVersion": "sits/v1", "kind": "Settings", "spec": {"deadlines": LONG}}, *resources])
    try:
        async with running(gateway):
            came = await asyncio.gather(*(_one(gateway.port, number, row, servers[number]) for number, row in enumerate(ROWS)))
    finally:
        for each in servers:
            for server in each:
                await server.__aexit__()
    booked = ledger_of(gateway.data)
    for number, one in enumerate(came):
        one.booked = booked[f"row{number}"]
    return list(came)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> list[Came]:
    return uvloop.run(_all(tmp_path_factory.mktemp("faults")))


@pytest.mark.parametrize("number", range(len(ROWS)), ids=[row.name for row in ROWS])
def test_it_comes_out_right(number: int, found: list[Came]) -> None:
    row, came = ROWS[number], found[number]
    names = dict(zip("abc", targets(number), strict=True))
    attempts = came.record["attempts"]
    assert [one["outcome"] for one in attempts] == row.outcomes, attempts
    assert [one["target"] for one in attempts] == [names[letter] for letter in row.tried]
    assert row.kinds is None or [one.get("kind") for one in attempts] == row.kinds
    assert (came.answer.status, came.said.code, came.said.wrong, came.answer.fault) == (row.status, row.code, [], "")
    assert came.said.text == row.text
    assert came.requests == [row.tried.count(letter) for letter in "abc"]
    assert (came.record["status"], came.record.get("code", "")) == (row.status, row.code)
    assert came.open == 0, "nobody goes on for a client that has its answer"
    last = len(attempts)
    assert [(one.attempt, one.final) for one in came.booked] == [(place, place == last) for place in range(1, last + 1)]
    assert [one.model for one in came.booked] == [one["target"] for one in attempts]


def test_all_tries_of_a_target_bear_one_idempotency_key(found: list[Came]) -> None:
    again = [number for number, row in enumerate(ROWS) if row.kinds is not None and "again" in row.kinds]
    for number in again:
        keys = [key for key in found[number].keys if key]
        assert all(len(each) == 1 and each != {""} for each in keys), keys


# Breakers


async def breakers(port: int) -> dict[str, dict[str, Any]]:
    listed = msgspec.json.decode((await ask(port, "/v1/admin/breakers")).body)
    return {row["name"]: row for row in listed["data"]}


async def _ask(port: int, route: str, **options: Any) -> Answer:
    return await ask(port, PATHS["chat"], body("chat", route, streamed=options.pop("streamed", False)), **options)


def pair(name: str, a: NumberedServer, b: NumberedServer, **breaker: Any) -> list[dict[str, Any]]:
    engine = {"engine": "openai", "breaker": breaker}
    return [
        resource("Model", f"{name}.a", endpoint=a.url, upstreamModel=a.name, **engine),
        resource("Model", f"{name}.b", endpoint=b.url, upstreamModel=b.name, **engine),
        resource("Route", name, backends=[{"model": f"{name}.a"}], fallbacks=[f"{name}.b"]),
    ]


def test_only_what_a_target_is_at_fault_for_takes_it_out_and_it_comes_back(tmp_path: Path) -> None:
    async def story() -> None:
        async with (
            NumberedServer("bad") as bad,
            NumberedServer("silent") as silent,
            NumberedServer("sick") as sick,
            NumberedServer("well") as well,
        ):
            bad.script(BAD_REQUEST)
            silent.script(Fault("stall"))
            sick.script(Fault("error", status=500))
            gateway = GatewayProcess(tmp_path)
            soon = {"openSeconds": 3.0, "row": 5, "proofs": 2}
            write(
                gateway,
                [
                    {"apiVersion": "sits/v1", "kind": "Settings", "spec": {"deadlines": LONG}},
                    *pair("refused", bad, well, **soon),
                    *pair("left", silent, well, **soon),
                    *pair("broken", sick, well, **soon),
                ],
            )
            async with running(gateway):
                port = gateway.port
                refused = [(await _ask(port, "refused")).status for _ in range(25)]
                assert refused == [400] * 25
                assert (bad.figures.requests, well.figures.requests) == (25, 0), "each was asked once, and nobody else"
                await asyncio.gather(*(_ask(port, "left", leave=0.1, streamed=True) for _ in range(25)))
                failed = [await _ask(port, "broken") for _ in range(10)]
                assert [one.status for one in failed] == [200] * 10
                assert [one.headers["x-sits-attempts"] for one in failed] == ["2"] * 5 + ["1"] * 5
                assert sick.figures.requests == 5, "five failures in a row open it"
                held = await breakers(port)
                states = {name: held[f"{name}.a"]["state"] for name in ("refused", "left", "broken")}
                assert states == {"refused": "closed", "left": "closed", "broken": "open"}
                sick.script()
                async with asyncio.timeout(30):
                    while (await breakers(port))["broken.a"]["state"] == "open":  # noqa: ASYNC110
                        await asyncio.sleep(0.02)
                back = [(await _ask(port, "broken")).headers["x-sits-target"] for _ in range(4)]
                assert back == ["broken.a"] * 4
                assert (await breakers(port))["broken.a"]["state"] == "closed"

    uvloop.run(story())


def test_a_target_that_is_alone_is_asked_however_ill_it_is(tmp_path: Path) -> None:
    async def story() -> None:
        async with NumberedServer("sick") as sick:
            sick.script(Fault("error", status=500))
            gateway = GatewayProcess(tmp_path)
            model = resource("Model", "alone", engine="openai", endpoint=sick.url, upstreamModel="sick")
            write(gateway, [{"apiVersion": "sits/v1", "kind": "Settings", "spec": {}}, model])
            async with running(gateway):
                came = [(await _ask(gateway.port, "alone")).status for _ in range(12)]
                sick.script()
                well = (await _ask(gateway.port, "alone")).status
            assert (came, sick.figures.requests, well) == ([502] * 12, 13, 200)

    uvloop.run(story())


# The end of a process


POLICIES = ("error", "continue")
"""After a stream that breaks; all wait out one grace."""


def test_sigterm_lets_streams_finish_and_tells_what_outlasts_the_grace(tmp_path: Path) -> None:
    async def story() -> None:
        async with NumberedServer("slow", delay=0.005) as slow, NumberedServer("endless", delay=1.0) as endless:
            gateway = GatewayProcess(tmp_path)
            settings = {"deadlines": LONG, "drainSeconds": 4.0}
            write(
                gateway,
                [
                    {"apiVersion": "sits/v1", "kind": "Settings", "spec": settings},
                    *(
                        resource("Model", one.name, engine="openai", endpoint=one.url, upstreamModel=one.name)
                        for one in (slow, endless)
                    ),
                    *(
                        resource("Route", f"{name}-{policy}", backends=[{"model": one}], fallbacks=[other], onBrokenStream=policy)
                        for name, one, other in (("short", "slow", "endless"), ("long", "endless", "slow"))
                        for policy in POLICIES
                    ),
                ],
            )
            async with running(gateway):
                names = [f"{name}-{policy}" for name in ("short", "long") for policy in POLICIES]
                asked = [asyncio.ensure_future(_ask(gateway.port, name, streamed=True)) for name in names]
                while endless.figures.tokens < len(POLICIES) or slow.figures.requests < len(POLICIES):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                os.kill(gateway.pid, signal.SIGTERM)
                answers = [read("chat", (await one).body, streamed=True) for one in asked]
            requests = (slow.figures.requests, endless.figures.requests)
            assert requests == (len(POLICIES), len(POLICIES)), "nobody is asked to go on for a gateway that ends"
            for short in answers[: len(POLICIES)]:
                assert (short.text, short.end, short.wrong) == (TEXT, "complete", [])
            for long in answers[len(POLICIES) :]:
                assert (long.end, long.code, long.wrong) == ("error", "draining", [])
                assert long.text
                assert TEXT.startswith(long.text)

    uvloop.run(story())
