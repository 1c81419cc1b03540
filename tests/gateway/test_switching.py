"""A model is replaced by another while requests run: no request fails, and a roll back is at once."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pathlib
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import pytest
from click.testing import CliRunner, Result
from gateway_client import Asking, eventually
from gateway_process import Sits
from gateway_rig import Gateway, inside_loop, model, route, settings, write
from gateway_wires import PATHS, WIRES, request, said, streamed

from granted import Granted
from sits.cli.switch import switch as command
from sits.engines.scripted import AGAIN, LAST_CHUNK, READ, Received, ScriptedServer, Step, answer, chunk
from sits.ports.servers.nats import NatsServer

CHAT = WIRES["chat", "openai"]
SWITCHES = "/v1/admin/switches"
QUICKLY = {"steps": [0.5, 1.0], "stepSeconds": 0, "drainSeconds": 0.2}


def switch(name: str = "s", old: str = "a", new: str = "b", **spec: Any) -> dict[str, Any]:
    spec = {"from": old, "to": new, "pace": QUICKLY, "gates": {"volume": 5}, **spec}
    return {"apiVersion": "sits/v1", "kind": "Switch", "metadata": {"name": name}, "spec": spec}


class Upstream(ScriptedServer):
    """A model server that says its name, until it is told otherwise."""

    def __init__(self, name: str) -> None:
        super().__init__([READ, self._say, AGAIN])
        self.name = name
        self.text = name
        self.status = 200

    def _say(self, received: Received) -> bytes:
        if self.status != 200:
            return answer(self.status, b'{"error":{"message":"out of memory"}}')
        return CHAT.answers(self.text)

    @property
    def asked(self) -> int:
        return len(self.requests)


@contextlib.asynccontextmanager
async def two() -> AsyncIterator[tuple[Upstream, Upstream]]:
    old, new = Upstream("a"), Upstream("b")
    async with old, new:
        yield old, new


def declared(old: Upstream, new: Upstream, *more: Any, **spec: Any) -> list[Any]:
    return [model("a", old.url), model("b", new.url), route("r", "a"), switch(**spec), *more]


@contextlib.asynccontextmanager
async def serving(folder: pathlib.Path, *resources: Any) -> AsyncIterator[Gateway]:
    async with Gateway(folder, *resources) as gateway:
        gateway.node.reliability.switching.settle = 0.1
        yield gateway


class Load:
    """Requests one after another, as long as the block lasts; `answers` are what clients got."""

    def __init__(self, *gateways: Any, name: str = "r", pause: float = 0.004) -> None:
        self._gateways = gateways
        self._name = name
        self._pause = pause
        self.answers: list[str] = []
        self.failed: list[Asking] = []

    async def __aenter__(self) -> Load:
        self._tasks = [asyncio.create_task(self._client(one)) for one in self._gateways for _ in range(2)]
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _client(self, gateway: Any) -> None:
        while True:
            asking = await gateway.ask(PATHS["chat"], request("chat", self._name))
            if asking.status == 200:
                self.answers.append(said("chat", asking.body))
            else:
                self.failed.append(asking)
            await asyncio.sleep(self._pause)


async def look(gateway: Any, name: str = "s") -> dict[str, Any]:
    found: dict[str, Any] = (await gateway.ask(f"{SWITCHES}/{name}")).json["switch"]
    return found


async def tell(gateway: Any, action: str, name: str = "s", body: Any = None) -> Asking:
    asking: Asking = await gateway.ask(f"{SWITCHES}/{name}/{action}", body, None, "POST")
    return asking


async def until(gateway: Any, met: Callable[[dict[str, Any]], bool], name: str = "s", seconds: float = 30.0) -> dict[str, Any]:
    """The switch, as soon as that is true of it."""
    last: dict[str, Any] = {}

    async def looked() -> bool:
        nonlocal last
        last = await look(gateway, name)
        return met(last)

    try:
        await soon(looked, seconds)
    except TimeoutError:
        raise AssertionError(f"not within {seconds} s: {json.dumps(last, indent=1)}") from None
    return last


async def soon(met: Callable[[], Awaitable[bool]], seconds: float) -> None:
    """Ask again and again until it is so.

    Raises:
        TimeoutError: it does not become so.
    """
    async with asyncio.timeout(seconds):
        while not await met():  # noqa: ASYNC110 - what is asked is in another process, or sends no event
            await asyncio.sleep(0.02)


def over(found: dict[str, Any]) -> bool:
    return bool(found["over"])


def at(state: str) -> Callable[[dict[str, Any]], bool]:
    return lambda found: bool(found["state"] == state)


async def ask(gateway: Any, name: str = "r") -> str:
    asking = await gateway.ask(PATHS["chat"], request("chat", name))
    assert asking.status == 200, asking
    return said("chat", asking.body)


@inside_loop
async def test_a_switch_goes_through_its_phases_while_requests_run_and_none_fails(tmp_path: pathlib.Path) -> None:
    async with two() as (old, new), serving(tmp_path, *declared(old, new)) as gateway, Load(gateway) as load:
        begun = await tell(gateway, "start", body={"why": "B is better"})
        assert (begun.status, begun.json["state"], begun.json["generation"]) == (200, "prepare", 1)
        ended = await until(gateway, over)
        assert (ended["state"], ended["share"], ended["paused"]) == ("retired", 1.0, False)
        events = [(event["event"], event["who"]) for event in ended["history"]]
        me = gateway.node.reliability.switching.me
        assert events == [
            ("start", "anybody"),
            *((phase, me) for phase in ("warm", "verify", "shift, step 1", "shift, step 2", "drain", "retire")),
        ]
        assert ended["history"][0]["why"] == "B is better"
        before = old.asked
        assert [await ask(gateway) for _ in range(5)] == ["b"] * 5
        assert await ask(gateway, "a") == "b"
        assert old.asked == before
    assert load.failed == []
    assert {"a", "b"} == set(load.answers)


@inside_loop
async def test_the_audit_outlives_generations_and_is_told_by_the_page(tmp_path: pathlib.Path) -> None:
    async with two() as (old, new), serving(tmp_path, *declared(old, new)) as gateway:
        for why in ("一", "二"):
            await tell(gateway, "start", body={"why": why})
            await tell(gateway, "abort", body={"why": f"not {why}"})
        audit = (await gateway.ask(f"{SWITCHES}/s")).json["audit"]
        told = [(event["generation"], event["event"], event["why"]) for event in audit]
        assert told == [(1, "start", "一"), (1, "abort", "not 一"), (2, "start", "二"), (2, "abort", "not 二")]
        listed = (await gateway.ask(SWITCHES)).json["data"]
        assert [(one["name"], one["state"], one["why"]) for one in listed] == [("s", "aborted", "rolled back by anybody: not 二")]


@inside_loop
async def test_a_roll_back_by_hand_is_in_force_when_it_is_answered(tmp_path: pathlib.Path) -> None:
    held = {"steps": [0.5, 1.0], "stepSeconds": 60, "drainSeconds": 1}
    async with two() as (old, new), serving(tmp_path, *declared(old, new, pace=held)) as gateway, Load(gateway) as load:
        await tell(gateway, "start")
        await until(gateway, at("shift"))
        await eventually(lambda: "b" in load.answers, "some requests go to the new model")
        assert (await tell(gateway, "abort", body={"why": "wrong language"})).json["state"] == "aborted"
        assert {await ask(gateway) for _ in range(20)} == {"a"}
        assert (await look(gateway))["why"] == "rolled back by anybody: wrong language"
    assert load.failed == []


@inside_loop
async def test_a_new_model_that_breaks_is_rolled_back_by_the_gate_and_no_client_notices(tmp_path: pathlib.Path) -> None:
    async with two() as (old, new):
        resources = declared(old, new, gates={"volume": 20}, pace={"steps": [0.5, 1.0], "stepSeconds": 30, "drainSeconds": 1})
        breaker = settings(breaker={"enabled": False})
        async with serving(tmp_path, *resources, breaker) as gateway, Load(gateway) as load:
            await tell(gateway, "start")
            await until(gateway, at("shift"))
            new.status = 500
            ended = await until(gateway, over)
            assert (ended["state"], ended["history"][-1]["event"]) == ("aborted", "abort")
            assert ended["why"].startswith(
                f"rolled back by {gateway.node.reliability.switching.me}: the gate of the errors broke:"
            )
            assert {await ask(gateway) for _ in range(10)} == {"a"}
        assert load.failed == []


REFUSALS = {
    "one that answers with nothing": (
        lambda new: setattr(new, "text", ""),
        "answered 'What is 2+2? Answer with a number.' with nothing",
    ),
    "one that is broken": (lambda new: setattr(new, "status", 500), "b does not answer"),
}


@pytest.mark.parametrize(("spoil", "why"), REFUSALS.values(), ids=REFUSALS.keys())
@inside_loop
async def test_a_new_model_that_cannot_answer_gets_no_request(
    tmp_path: pathlib.Path, spoil: Callable[[Upstream], None], why: str
) -> None:
    async with two() as (old, new), serving(tmp_path, *declared(old, new)) as gateway:
        spoil(new)
        await tell(gateway, "start")
        ended = await until(gateway, over)
        assert ended["state"] == "aborted"
        assert why in ended["why"]
        assert ended["observed"]["new"]["requests"] == 0
        assert await ask(gateway) == "a"


@inside_loop
async def test_a_new_model_that_lacks_what_the_old_one_is_declared_to_do_is_refused(tmp_path: pathlib.Path) -> None:
    async with two() as (old, new):
        resources = [
            model("a", old.url, capabilities=["chat", "tools"]),
            model("b", new.url, capabilities=["chat"]),
            route("r", "a"),
            switch(),
        ]
        async with serving(tmp_path, *resources) as gateway:
            await tell(gateway, "start")
            assert "b cannot do tools, which a is declared to do" in (await until(gateway, over))["why"]
        assert new.asked == 0


@inside_loop
async def test_a_canary_stays_until_it_is_promoted_and_a_pause_until_it_is_resumed(tmp_path: pathlib.Path) -> None:
    pace = {"steps": [0.5], "stepSeconds": 0, "drainSeconds": 0}
    async with two() as (old, new), serving(tmp_path, *declared(old, new, pace=pace)) as gateway, Load(gateway):
        await tell(gateway, "start")
        held = await until(gateway, lambda found: "until it is promoted" in str(found["why"]))
        assert (held["state"], held["share"], held["steps"]) == ("shift", 0.5, [0.5, 1.0])
        assert (await tell(gateway, "pause", body={"why": "lunch"})).json["paused"]
        await tell(gateway, "promote")
        await until(gateway, lambda found: found["why"] == "paused by anybody: lunch")
        assert not (await tell(gateway, "resume")).json["paused"]
        assert (await until(gateway, over))["state"] == "retired"


@inside_loop
async def test_a_gateway_that_comes_back_goes_on_where_it_was_and_a_retired_model_stays_retired(tmp_path: pathlib.Path) -> None:
    held = {"steps": [1.0], "stepSeconds": 60, "drainSeconds": 0}
    async with two() as (old, new):
        async with serving(tmp_path, *declared(old, new, pace=held)) as gateway:
            await tell(gateway, "start")
            before = await until(gateway, at("shift"))
        async with serving(tmp_path, *declared(old, new, pace=held)) as gateway:
            found = await look(gateway)
            assert (found["state"], found["share"], found["history"]) == ("shift", 1.0, before["history"])
            await eventually(lambda: gateway.node.standing.switches.live, "it has seen for itself that the new model answers")
            assert await ask(gateway) == "b"
            write(tmp_path, *declared(old, new, settings()))
            await gateway.node.reload()
            async with Load(gateway):
                assert (await until(gateway, over))["state"] == "retired"
        asked = old.asked
        async with serving(tmp_path, *declared(old, new)) as gateway:
            assert await ask(gateway) == "b"
            refused = await tell(gateway, "abort")
            assert (refused.status, refused.code) == (409, "conflict")
            write(tmp_path, *declared(old, new)[:3], settings())
            await gateway.node.reload()
            assert await ask(gateway) == "a"
        assert old.asked == asked + 1


@inside_loop
async def test_families_follow_each_other(tmp_path: pathlib.Path) -> None:
    c = Upstream("c")
    async with two() as (a, b), c:
        resources = [*declared(a, b), model("c", c.url), switch("t", "b", "c", start="auto", pace={**QUICKLY, "stepSeconds": 0})]
        async with serving(tmp_path, *resources[:4]) as gateway, Load(gateway) as load:
            await tell(gateway, "start")
            assert (await until(gateway, over))["state"] == "retired"
            write(tmp_path, *resources, settings())
            await gateway.node.reload()
            assert (await until(gateway, over, "t"))["state"] == "retired"
            assert {await ask(gateway) for _ in range(10)} == {"c"}
        assert load.failed == []
        assert set(load.answers) == {"a", "b", "c"}


COMMANDS = {
    "a switch that is not there": ("start", "nope", None, 404, "not_found"),
    "an abort of what was never started": ("abort", "s", None, 409, "conflict"),
    "a body that is none": ("start", "s", {"because": 1}, 400, "invalid_request"),
    "a reason that is a novel": ("start", "s", {"why": "x" * 501}, 400, "invalid_request"),
}


@inside_loop
async def test_commands_that_cannot_be_obeyed_are_refused_with_a_reason(tmp_path: pathlib.Path) -> None:
    async with two() as (old, new):
        resources = declared(old, new, model("c", new.url), switch("t", "a", "c"))
        async with serving(tmp_path, *resources) as gateway:
            for action, name, body, status, code in COMMANDS.values():
                refused = await tell(gateway, action, name, body)
                assert (refused.status, refused.code) == (status, code), refused
            assert (await gateway.ask(f"{SWITCHES}/nope")).status == 404
            await tell(gateway, "start", "s")
            other = await tell(gateway, "start", "t")
            assert (other.status, other.code) == (409, "conflict")
            assert (await tell(gateway, "start", "s")).json["generation"] == 1


DRAINS = {
    "a route that continues": ({"onBrokenStream": "continue"}, "vllm", True),
    "a new model that cannot go on in the middle": ({"onBrokenStream": "continue"}, "openai", False),
    "a route that does not": ({}, "vllm", False),
}


@pytest.mark.parametrize(("made", "engine", "goes_on"), DRAINS.values(), ids=DRAINS.keys())
@inside_loop
async def test_when_the_drain_is_over_streams_go_on_elsewhere_or_to_their_end(
    tmp_path: pathlib.Path, made: dict[str, Any], engine: str, goes_on: bool
) -> None:
    finish = asyncio.Event()
    pieces = [chunk(CHAT.text(text)) for text in ("one ", "two ")]
    ending: list[Step] = [finish, chunk(CHAT.text("three")), chunk(CHAT.closing), LAST_CHUNK, AGAIN]

    def by_new(received: Received) -> bytes:
        if not json.loads(received.body).get("stream"):
            return CHAT.answers("b")
        return b"".join(one for one in CHAT.streams("three of b") if isinstance(one, bytes))

    async with ScriptedServer([READ, CHAT.head(), *pieces, *ending]) as old, ScriptedServer([READ, by_new, AGAIN]) as new:
        resources = [
            model("a", old.url),
            model("b", new.url, engine),
            route("r", "a", **made),
            route("x", "b"),
            switch(pace={"steps": [1.0], "stepSeconds": 0, "drainSeconds": 0.3}, gates={"volume": 1, "shadow": None}),
        ]
        async with serving(tmp_path, *resources) as gateway:
            stream = await gateway.begin(PATHS["chat"], request("chat", "r", stream=True))
            await stream.until(lambda one: b"two " in one.body)
            await tell(gateway, "start")
            await until(gateway, at("shift"))
            assert await ask(gateway) == "b"
            await until(gateway, lambda found: found["history"][-1]["event"] in ("drain", "retire"))
            if not goes_on:
                held = await until(gateway, lambda found: found["gateways"][0]["busy"] == 1)
                assert held["state"] == "drain"
                await until(gateway, lambda found: found["seconds"] > 0.6)
                assert (await look(gateway))["state"] == "drain"
                finish.set()
            await stream.ended()
            assert (await until(gateway, over))["state"] == "retired"
        text = streamed("chat", stream.body)
        assert text == ("one two three of b" if goes_on else "one two three")
        assert stream.body.count(b"[DONE]") == 1


# Several gateways


@pytest.fixture(scope="module")
def nats(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    server = NatsServer(tmp_path_factory.mktemp("switch-nats"))
    with server:
        yield server


@contextlib.asynccontextmanager
async def pair(server: NatsServer, folder: pathlib.Path, name: str, *resources: Any) -> AsyncIterator[list[Gateway]]:
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for number in range(2):
            place = folder / f"node{number}"
            place.mkdir()
            shared = settings(bus=server.address, cluster={"name": name})
            made.append(await stack.enter_async_context(serving(place, *resources, shared)))
        yield made


@inside_loop
async def test_gateways_on_one_bus_go_together_and_roll_back_together_within_a_second(
    nats: NatsServer, tmp_path: pathlib.Path
) -> None:
    pace = {"steps": [0.5], "stepSeconds": 0, "drainSeconds": 0.2}  # half of the requests, until somebody promotes it
    async with (
        two() as (old, new),
        pair(nats, tmp_path, "together", *declared(old, new, pace=pace)) as (first, second),
        Load(first, second) as load,
    ):
        await tell(first, "start", body={"why": "一起"})
        both = await until(second, lambda found: found["state"] == "shift" and len(found["gateways"]) == 2)
        assert both["history"][0]["why"] == "一起"
        assert {one["id"] for one in both["gateways"]} == {
            first.node.reliability.switching.me,
            second.node.reliability.switching.me,
        }
        await eventually(lambda: second.node.standing.switches.live, "the second one moves requests too")
        async with Granted() as waited:
            await tell(second, "abort", body={"why": "不"})
            await eventually(lambda: not first.node.standing.switches.live, "the first one has rolled back")
        assert waited.seconds < 1.0
        asked = new.asked
        assert {await ask(one) for one in (first, second) for _ in range(10)} == {"a"}
        assert new.asked == asked
        await tell(second, "start")
        await until(second, lambda found: "until it is promoted" in str(found["why"]))
        await tell(second, "promote")
        assert (await until(first, lambda found: found["generation"] == 2 and found["over"]))["state"] == "retired"
        assert (await until(second, over))["state"] == "retired"
        assert {await ask(one) for one in (first, second) for _ in range(5)} == {"b"}
    assert load.failed == []


@inside_loop
async def test_workers_without_a_bus_hear_of_each_other_by_the_store_also_one_that_was_killed(tmp_path: pathlib.Path) -> None:
    held = {"steps": [1.0], "stepSeconds": 60, "drainSeconds": 0.2}
    async with two() as (old, new), Sits(tmp_path, *declared(old, new, pace=held), workers=2) as sits:
        await tell(sits, "start")
        await until(sits, at("shift"))

        async def by_new(count: int) -> int:
            asked = [await sits.ask(PATHS["chat"], request("chat", "r")) for _ in range(count)]
            # Of a worker that was killed clients hear nothing, for as long as their connections lead to it.
            return sum(one.status == 200 and said("chat", one.body) == "b" for one in asked)

        async def all_by_new() -> bool:
            return await by_new(20) == 20

        async def none_by_new() -> bool:
            return await by_new(20) == 0

        await soon(all_by_new, 30.0)
        os.kill(sits.crew()[0], signal.SIGKILL)
        await sits.ready()
        await soon(all_by_new, 30.0)
        await tell(sits, "abort")
        async with Granted() as waited:
            await soon(none_by_new, 30.0)
        assert waited.seconds < 1.5


# The command


@inside_loop
async def test_sitsctl_switch_starts_waits_and_tells_by_its_exit_code(tmp_path: pathlib.Path) -> None:
    async with two() as (old, new), serving(tmp_path, *declared(old, new)) as gateway:

        async def run(*words: str) -> Result:
            line = [*words, "--url", f"http://127.0.0.1:{gateway.port}"]
            return await asyncio.to_thread(CliRunner().invoke, command, line)

        listed = await run("status")
        assert (listed.exit_code, "idle" in listed.stdout) == (0, True)
        assert (await run("abort", "s")).exit_code == 1
        assert (await run("start", "nope")).exit_code == 1
        assert (await run("start")).exit_code == 2
        assert (await run("status", "--wait")).exit_code == 2
        slow = await run("start", "s", "--why", "慢", "--wait", "--seconds", "0.3")
        assert slow.exit_code == 3
        async with Load(gateway):
            watched = await run("status", "s", "--watch")
        assert watched.exit_code == 0, watched.output
        assert watched.stdout.splitlines()[-2].startswith("a -> b [########################] 100% retired")
        shown = await run("status", "s")
        assert "慢" in shown.stdout
        told = await run("status", "s", "--json")
        assert json.loads(told.stdout)["switch"]["state"] == "retired"
        new.text = ""
        again = await run("start", "s", "--wait", "--json")
        assert (again.exit_code, json.loads(again.stdout)["state"]) == (1, "aborted")
        assert (await run("status", "s")).exit_code == 1
