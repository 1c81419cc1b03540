"""What is gone on with or read in pieces is as safe as a plain request: a part or a piece that fails is another target's, and the
client's answer is what it would have been."""

from __future__ import annotations

import asyncio
import contextlib
import json
import pathlib
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

import pytest
import uvloop
from gateway_books import booked
from gateway_client import Asking, eventually
from gateway_rig import QUICK, Gateway, bearer, inside_loop, key, model, route
from gateway_wires import JSON, PATHS, SSE, WIRES, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from resuming_kit import TEXT, WORDS, Counting, begun, ending, resumable, text_of

from sits.engines.scripted import AGAIN, CLOSE, LAST_CHUNK, READ, Received, ScriptedServer, Step, answer, chunked
from sits.observe.record import Record

OPERATIONS = ("chat", "messages")
WAYS = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
EACH = pytest.mark.parametrize("operation", OPERATIONS)
HASTY = {**QUICK, "headers": 1.0, "firstToken": 1.0}
"""For a target that answers its first part and is late with its second: it must be in time for the first."""
OK, ERROR, LIMITED, LOST, CUT, LATE = (
    "ok", "upstream_error", "upstream_rate_limited", "upstream_unreachable", "upstream_broken", "upstream_timeout",
)  # fmt: skip
FAULTS = {
    "refused": LOST,
    "500": ERROR,
    "429, come again in a minute": LIMITED,
    "cut before content": CUT,
    "cut in mid content": CUT,
    "timeout": LATE,
}
"""What happens to the second ask -> how its attempt ends, where nothing of it was passed on."""


def fails(fault: str, mid: Step) -> list[Step]:
    """The rest of a script in which the next ask, whose content begins with `mid`, fails."""
    if fault == "500":
        return [READ, answer(500, b"{}")]
    if fault.startswith("429"):
        return [READ, answer(429, b"{}", ("retry-after", "60"))]
    if fault == "timeout":
        return [READ, asyncio.Event()]
    if fault == "cut in mid content":
        return [READ, mid, CLOSE]
    return [READ, CLOSE]


class Closing:
    """Answers once, and then nobody listens at its address any more."""

    def __init__(self, speaks: Any) -> None:
        self.speaks = speaks
        self.server: ScriptedServer | None = None

    def __call__(self, received: Received) -> bytes:
        assert self.server is not None
        assert self.server._server is not None
        self.server._server.close()
        said: bytes = self.speaks(received)
        return said.replace(b" Scripted\r\n", b" Scripted\r\nconnection: close\r\n", 1)


@contextlib.asynccontextmanager
async def failing(fault: str, speaks: Any, mid: Step) -> Any:
    """A server that says its first part, and then fails in this way."""
    once = Closing(speaks) if fault == "refused" else speaks
    script = [READ, once, *([CLOSE] if fault == "refused" else fails(fault, mid))]
    async with ScriptedServer(script) as server:
        if isinstance(once, Closing):
            once.server = server
        yield server


def asking(operation: str, *, stream: bool, **fields: Any) -> dict[str, Any]:
    usage = {"stream_options": {"include_usage": True}} if stream and operation == "chat" else {}
    roomy = {"max_tokens": 4000} if operation == "messages" else {}
    return request(operation, "r", stream=stream, **{**usage, **roomy, **fields})


def tries(record: Record) -> list[tuple[str, str, str]]:
    return [(one.target, one.kind, one.outcome) for one in record.attempts]


def idle(gateway: Gateway) -> bool:
    """Nothing is under way, by any account."""
    table = gateway.node.service.table
    return not gateway.node.service.live and all(target.state.outstanding == 0 for target in table.targets.values())


def half(whole: bytes) -> bytes:
    """A whole answer that breaks off in its middle."""
    return whole[: len(whole) - 40]


# The second part of an answer.


def beginning(counting: Counting, *, stream: bool) -> Any:
    """The first two words of a part, and no end of it."""

    def speaks(received: Received) -> bytes:
        return counting.begin(received) if stream else half(counting(received))

    return speaks


@pytest.mark.parametrize("fault", FAULTS)
@WAYS
@EACH
@inside_loop
async def test_a_part_that_fails_is_another_targets(tmp_path: pathlib.Path, operation: str, stream: bool, fault: str) -> None:
    first, second = Counting(15), Counting(15)
    async with (
        failing(fault, first, beginning(first, stream=stream)) as bad,
        ScriptedServer([READ, second, AGAIN]) as well,
        Gateway(
            tmp_path,
            model("one", bad.url, "vllm", deadlines=HASTY if fault == "timeout" else QUICK),
            model("two", well.url, "vllm"),
            resumable("one", fallbacks=("two",)),
        ) as gateway,
    ):
        asked = await gateway.ask(PATHS[operation], asking(operation, stream=stream))
        assert (asked.status, asked.code, asked.whole) == (200, "", True)
        assert text_of(operation, asked.body, stream=stream) == TEXT
        assert ending(operation, asked.body, stream=stream) == ("stop", 100, 40)
        passed_on = stream and fault == "cut in mid content"
        went = [("one", "first", OK), ("one", "continuation", "stream_broken" if passed_on else FAULTS[fault])]
        went += [("two", "continuation", OK)] * 2
        record = gateway.record(asked)
        assert tries(record) == went
        assert (record.status, record.code, record.target, record.finish) == (200, "", "two", "stop")
        assert begun(second.asked[0]) == "".join(WORDS[: 17 if passed_on else 15]).rstrip()
        await eventually(lambda: idle(gateway), "nothing is under way")
        assert not bad.faults
    assert booked(tmp_path, "request_id", "model", "outcome") == [(record.request_id, target, end) for target, _, end in went]


@WAYS
@inside_loop
async def test_each_part_may_be_another_targets_and_who_cannot_go_on_is_passed_over(tmp_path: pathlib.Path, stream: bool) -> None:
    speakers = [Counting(8) for _ in range(4)]
    down = answer(500, b"{}")
    async with contextlib.AsyncExitStack() as rig:
        servers = [await rig.enter_async_context(ScriptedServer([READ, one, READ, down, CLOSE])) for one in speakers[:2]]
        servers.append(await rig.enter_async_context(ScriptedServer([READ, speakers[2], READ, down, CLOSE])))
        servers.append(await rig.enter_async_context(ScriptedServer([READ, speakers[3], AGAIN])))
        names = ("one", "plain", "two", "narrow", "three")
        where = [servers[0].url, servers[1].url, servers[2].url, servers[1].url, servers[3].url]
        models = [model(name, url, "openai" if name == "plain" else "vllm") for name, url in zip(names, where, strict=True)]
        models[3]["spec"]["contextWindow"] = 110
        gateway = await rig.enter_async_context(Gateway(tmp_path, *models, resumable("one", fallbacks=names[1:], attempts=5)))
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=stream))
        assert text_of("chat", asked.body, stream=stream) == TEXT
        record = gateway.record(asked)
        assert [(name, outcome) for name, _, outcome in tries(record)] == [
            ("one", OK), ("one", ERROR), ("two", OK), ("two", ERROR), ("three", OK), ("three", OK), ("three", OK),
        ]  # fmt: skip
        assert record.filtered == [
            ("plain", "cannot be given the beginning of an answer"),
            ("narrow", "has no room for more of the answer"),
        ]
        assert not [one for one in servers[1].requests if "chat" in one.path]
        await eventually(lambda: idle(gateway), "nothing is under way")


@inside_loop
async def test_a_server_that_refuses_to_go_on_is_replaced_though_its_client_is_not_at_fault(tmp_path: pathlib.Path) -> None:
    counting = Counting(15)
    refusal = answer(400, b'{"error": {"message": "continue_final_message is not supported", "type": "invalid_request_error"}}')
    for stream in (False, True):
        async with (
            ScriptedServer([READ, counting, READ, refusal, AGAIN]) as odd,
            ScriptedServer([READ, counting, AGAIN]) as well,
            Gateway(
                tmp_path, model("one", odd.url, "vllm"), model("two", well.url, "vllm"), resumable("one", fallbacks=("two",))
            ) as gateway,
        ):
            asked = await gateway.ask(PATHS["chat"], asking("chat", stream=stream))
            assert text_of("chat", asked.body, stream=stream) == TEXT
            assert tries(gateway.record(asked))[1] == ("one", "continuation", "upstream_rejected")


@WAYS
@inside_loop
async def test_a_server_that_wants_to_be_asked_again_soon_is_where_the_route_says_so(
    tmp_path: pathlib.Path, stream: bool
) -> None:
    counting = Counting(15)
    busy = answer(429, b"{}", ("retry-after", "0"))
    retry = {"same": 1, "pauseSeconds": 0.01, "floor": 10}
    async with (
        ScriptedServer([READ, counting, READ, busy, READ, counting, READ, counting, AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, "vllm"), resumable("one", retry=retry)) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=stream))
        assert text_of("chat", asked.body, stream=stream) == TEXT
        assert [outcome for *_, outcome in tries(gateway.record(asked))] == [OK, LIMITED, OK, OK]
        keys = [one.headers["idempotency-key"] for one in server.requests]
        assert keys[1] == keys[2], "the same part once more"
        assert len(set(keys)) == 3, "each part is another question"


@WAYS
@inside_loop
async def test_nothing_is_handed_on_for_a_client_that_wants_no_fallback_or_that_has_gone(
    tmp_path: pathlib.Path, stream: bool
) -> None:
    counting, never = Counting(15), asyncio.Event()
    down = answer(500, b"{}")
    async with (
        ScriptedServer([READ, counting, READ, down, AGAIN]) as bad,
        ScriptedServer([READ, never]) as slow,
        Gateway(
            tmp_path, model("one", bad.url, "vllm"), model("two", slow.url, "vllm"), resumable("one", fallbacks=("two",))
        ) as gateway,
    ):
        alone = await gateway.ask(PATHS["chat"], asking("chat", stream=stream), {"x-sits-fallback": "off"})
        assert ending("chat", alone.body, stream=stream) == ("length", 100, 15)
        asked = await gateway.begin(PATHS["chat"], asking("chat", stream=stream))
        await slow.until(lambda one: len(one.requests) == 1)
        asked.leave()
        await slow.until(lambda one: one.gone == 1)
        await eventually(lambda: idle(gateway), "nothing is under way")
        record = gateway.record()
        assert (record.status, record.code) == (499, "client_closed_request")
        assert tries(record)[-1] == ("two", "continuation", "client_closed_request")


@inside_loop
async def test_a_part_that_breaks_off_is_gone_on_with_up_to_what_the_client_allowed(tmp_path: pathlib.Path) -> None:
    first, second = Counting(15), Counting(15)
    async with (
        ScriptedServer([READ, first, READ, first.begin, CLOSE]) as dying,
        ScriptedServer([READ, second, AGAIN]) as well,
        Gateway(
            tmp_path, model("one", dying.url, "vllm"), model("two", well.url, "vllm"), resumable("one", fallbacks=("two",))
        ) as gateway,
    ):
        asked = await gateway.ask(PATHS["chat"], asking("chat", stream=True, max_tokens=31))
        # Two of the 16 words that were left came before the break; what is left then is said, be it ever so little.
        assert text_of("chat", asked.body, stream=True) == "".join(WORDS[:31])
        assert ending("chat", asked.body, stream=True) == ("length", 100, 31)
        assert second.allowed == [14]


# The second piece of a prompt.

STORY = "\n\n".join([
    "Summarise the story of the town.",
    *(f"In the year {1900 + year} the town built {year + 2} houses by the river. 小镇在河边。" for year in range(40)),
    "What did the town build?",
])  # fmt: skip
SPLIT = {
    "most": 700,
    "oversize": "split",
    "notes": 64,
    "stages": [{"kind": "reason"}],
    "services": {"summary": {"headroom": 100}},
    "service": "summary",
}
OPENAI = WIRES["chat", "openai"]


class Reading:
    """A server whose notes and answers follow from what it is asked, and from nothing else."""

    def __init__(self) -> None:
        self.asked: list[list[dict[str, Any]]] = []

    def __call__(self, received: Received) -> bytes:
        asked = json.loads(received.body)
        self.asked.append(asked["messages"])
        said = sha256(json.dumps(asked["messages"]).encode()).hexdigest()
        if asked.get("stream"):
            return b"".join(step for step in OPENAI.streams(said[:30], said[30:]) if isinstance(step, bytes))
        return OPENAI.answers(said)


def town(deadlines: Mapping[str, float] = QUICK, **urls: str) -> list[dict[str, Any]]:
    """Models at these addresses and a route over them; `deadlines` are those of the one that is called `one`."""
    counted = {"source": "file:nowhere.json", "normalises": "none", "longest": 4}
    models = [
        model(name, url, "vllm", contextWindow=700, tokenizer=counted, deadlines=deadlines if name == "one" else QUICK)
        for name, url in urls.items()
    ]
    first, *others = urls
    return [*models, route("r", first, fallbacks=tuple(others), context=SPLIT)]


def long(operation: str, *, stream: bool) -> dict[str, Any]:
    return {**asking(operation, stream=stream, max_tokens=80), "messages": [{"role": "user", "content": STORY}]}


async def read_well(folder: pathlib.Path, body: dict[str, Any], operation: str) -> tuple[Asking, Reading]:
    """The answer that an untroubled server gives, and what it was asked for it."""
    reading = Reading()
    async with ScriptedServer([READ, reading, AGAIN]) as server, Gateway(folder, *town(two=server.url)) as gateway:
        return await gateway.ask(PATHS[operation], body), reading


@pytest.fixture
def elsewhere(tmp_path: pathlib.Path) -> pathlib.Path:
    """For the gateway of an untroubled server."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("fault", FAULTS)
@WAYS
@EACH
@inside_loop
async def test_a_piece_that_fails_is_another_targets(
    tmp_path: pathlib.Path, elsewhere: pathlib.Path, operation: str, stream: bool, fault: str
) -> None:
    body = long(operation, stream=stream)
    untroubled, all_well = await read_well(elsewhere, body, operation)
    first, second = Reading(), Reading()
    async with (
        failing(fault, first, half(OPENAI.answers("no more than a beginning"))) as bad,
        ScriptedServer([READ, second, AGAIN]) as well,
        Gateway(tmp_path, *town(HASTY if fault == "timeout" else QUICK, one=bad.url, two=well.url)) as gateway,
    ):
        asked = await gateway.ask(PATHS[operation], body)
        assert (asked.status, asked.code, asked.whole) == (200, "", True)
        said = text_of(operation, asked.body, stream=stream)
        assert said == text_of(operation, untroubled.body, stream=stream)
        assert len(said) == 64
        assert [*first.asked, *second.asked] == all_well.asked, "each piece is read once, with the notes on those before it"
        answered, *pieces = gateway.node.service.books.ring
        went = [tries(piece) for piece in reversed(pieces)]
        assert went[:2] == [[("one", "first", OK)], [("one", "first", FAULTS[fault]), ("two", "next", OK)]]
        assert went[2:] == [[("two", "first", OK)]] * (len(all_well.asked) - 3)
        assert tries(answered) == [("two", "first", OK)], "who failed is asked no more"
        assert {piece.trace_id for piece in pieces} == {answered.trace_id}
        await eventually(lambda: idle(gateway), "nothing is under way")
    entries = booked(tmp_path, "model", "outcome")
    assert entries == [(target, end) for piece in [*went, tries(answered)] for target, _, end in piece]


@inside_loop
async def test_a_piece_without_notes_is_another_targets_and_what_all_of_them_used_is_paid_once(
    tmp_path: pathlib.Path, elsewhere: pathlib.Path
) -> None:
    body = long("chat", stream=False)
    untroubled, all_well = await read_well(elsewhere, body, "chat")
    reading = Reading()
    async with (
        ScriptedServer([READ, OPENAI.answers(" "), READ, answer(500, b"{}"), AGAIN]) as bad,
        ScriptedServer([READ, reading, AGAIN]) as well,
        Gateway(tmp_path, *town(one=bad.url, two=well.url), key("a", quota={"tokensPerMinute": 100_000})) as gateway,
    ):
        gateway.node.service.wall = lambda: 1_700_000_000.0  # a minute that does not end within the test
        asked = await gateway.ask(PATHS["chat"], body, bearer("a"))
        assert text_of("chat", asked.body, stream=False) == text_of("chat", untroubled.body, stream=False)
        await eventually(lambda: not gateway.node.caches._behind, "it is settled")
        small = request("chat", "two", max_tokens=10)
        last = await gateway.ask(PATHS["chat"], small, bearer("a"))
        reserved = len(json.dumps(small, ensure_ascii=False).encode()) // 3 + 1 + 10
        used = 12 * (len(all_well.asked) + 1)  # the one that made no notes is billed, too
        assert int(last.headers["x-ratelimit-remaining-tokens"]) == 100_000 - used - reserved


@WAYS
@inside_loop
async def test_a_piece_is_handed_on_for_nobody_who_has_gone_or_wants_no_fallback(tmp_path: pathlib.Path, stream: bool) -> None:
    never, down = asyncio.Event(), answer(500, b"{}")
    async with (
        ScriptedServer([READ, down, AGAIN]) as bad,
        ScriptedServer([READ, never]) as slow,
        Gateway(tmp_path, *town(one=bad.url, two=slow.url)) as gateway,
    ):
        alone = await gateway.ask(PATHS["chat"], long("chat", stream=stream), {"x-sits-fallback": "off"})
        assert (alone.status, alone.code) == (502, ERROR)
        late = await gateway.ask(PATHS["chat"], long("chat", stream=stream), {"x-request-timeout": "1s"})
        assert (late.status, late.code) == (504, LATE)
        asked = await gateway.begin(PATHS["chat"], long("chat", stream=stream))
        await slow.until(lambda one: len(one.requests) == 2)
        asked.leave()
        await slow.until(lambda one: one.gone == 2)
        await eventually(lambda: idle(gateway), "nothing is under way")
        record, piece, *_ = gateway.node.service.books.ring
        assert (record.status, record.attempts) == (499, [])
        assert [(name, outcome) for name, _, outcome in tries(piece)] == [("one", ERROR), ("two", "client_closed_request")]


# Whatever happens.

GARBAGE = b"SSH-2.0-OpenSSH_9.2\r\n\r\n"
HAPPENS = ("", "500", "429", "garbage", "nothing", "mid", "refusal")


class Faulty:
    """Says the words as `Counting` does, but for what is to happen to its requests, by number."""

    def __init__(self) -> None:
        self.counting = Counting(9)
        self.happens: Sequence[str] = ()
        self.asked = 0

    def begin(self, most: int, happens: Sequence[str]) -> None:
        self.counting.most, self.happens, self.asked = most, happens, 0

    def __call__(self, received: Received) -> bytes:
        what = self.happens[self.asked] if self.asked < len(self.happens) else ""
        self.asked += 1
        asked = json.loads(received.body)
        first, stream = not begun(asked), bool(asked.get("stream"))
        if what == "500":
            return answer(500, b"{}")
        if what == "429":
            return answer(429, b"{}", ("retry-after", "30"))
        if what == "refusal" and not first:
            return answer(400, b'{"error": {"message": "no such thing", "type": "invalid_request_error"}}')
        if what == "nothing":
            return chunked(200, b"", fields=[("content-type", SSE if stream else JSON)])[:-5] + LAST_CHUNK
        if what in ("garbage", "refusal"):
            return GARBAGE
        if what == "mid":
            if not stream:
                return chunked(200, b'{"choices": [', fields=[("content-type", JSON)], end=False) + b"ZZ\r\n"
            # Before the first part came to its end it is a broken stream like any other, and those have their own rule.
            return GARBAGE if first else self.counting.begin(received) + b"ZZ\r\n"
        return self.counting(received)


def test_the_answer_is_whole_as_long_as_one_target_stays_well(tmp_path: pathlib.Path) -> None:
    faulty = [Faulty() for _ in range(3)]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        rig = contextlib.AsyncExitStack()

        async def start() -> Gateway:
            servers = [await rig.enter_async_context(ScriptedServer([READ, one, AGAIN])) for one in faulty]
            models = [
                model(f"m{number}", server.url, "vllm", breaker={"enabled": False}) for number, server in enumerate(servers)
            ]
            return await rig.enter_async_context(Gateway(tmp_path, *models, resumable("m0", fallbacks=("m1", "m2"))))

        gateway = runner.run(start())
        trouble = st.lists(st.sampled_from(HAPPENS), max_size=4)

        @settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
        @given(st.lists(trouble, min_size=3, max_size=3), st.integers(0, 2), st.integers(5, 30), *[st.booleans()] * 2)
        def holds(happens: list[list[str]], well: int, most: int, stream: bool, anthropic: bool) -> None:
            operation = "messages" if anthropic else "chat"
            for number, one in enumerate(faulty):
                one.begin(most, () if number == well else happens[number])
            asked = runner.run(gateway.ask(PATHS[operation], asking(operation, stream=stream)))
            assert (asked.status, asked.code, asked.whole) == (200, "", True)
            assert text_of(operation, asked.body, stream=stream) == TEXT
            assert ending(operation, asked.body, stream=stream) == ("stop", 100, 40)
            assert len(gateway.record(asked).attempts) == sum(one.asked for one in faulty)
            assert idle(gateway)

        try:
            holds()
        finally:
            runner.run(rig.aclose())
