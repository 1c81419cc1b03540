"""Counting that never fails a request: what is kept, what is reused, what becomes an estimate, and what servers are asked."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokens_kit import ask_of, llama2_file, smol_file, target_of

from sits.engines.base import Call, Deadlines, Outgoing, Reply
from sits.inner.ask import Ask
from sits.inner.errors import Code, SitsError
from sits.inner.estimate import ask_tokens
from sits.resources.context import FrameSpec, TokenizerSpec
from sits.state.tokens.base import Count
from sits.state.tokens.kept import Kept, digest_of
from sits.state.tokens.tokens import REST_SECONDS, TOLD_SECONDS, Tokens

HELLO = ask_of(("user", "Hello world"))
UNBELIEVED = "estimate: m says that a prompt has less than no tokens, or more than 1099511627776 (count)"


class Scripted:
    """A model server that answers each path with what is scripted for it, and remembers what it was asked."""

    def __init__(self, **answers: Any) -> None:
        self.answers = {f"/{path}": answer for path, answer in answers.items()}
        self.asked: list[tuple[str, Any]] = []
        self.hold: asyncio.Event | None = None

    def send(self, request: Outgoing, reply: Reply, deadlines: Deadlines) -> Call:
        self.asked.append((request.path.decode(), json.loads(request.body)))
        answer = self.answers.get(request.path.decode())
        task = asyncio.get_running_loop().create_task(self._answer(reply, answer))
        return _Call(task)

    async def _answer(self, reply: Reply, answer: Any) -> None:
        if self.hold is not None:
            await self.hold.wait()
        if isinstance(answer, SitsError):
            reply.fail(answer)
            return
        reply.head(404 if answer is None else 200, [])
        reply.data(b"no such path" if answer is None else answer if isinstance(answer, bytes) else json.dumps(answer).encode())
        reply.end()


class _Call:
    connect_time, reused, started = 0.0, True, True

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def cancel(self) -> None:
        self._task.cancel()

    def pause(self) -> None: ...

    def resume(self) -> None: ...


def inside(story: Callable[[Tokens, list[float]], Coroutine[Any, Any, None]], spec: TokenizerSpec | None = None) -> None:
    """Run a story with counters of its own and a clock that it moves."""
    now = [0.0]

    async def told() -> None:
        tokens = Tokens(lambda _: spec, clock=lambda: now[0])
        try:
            await story(tokens, now)
        finally:
            await tokens.aclose()

    asyncio.run(told())


@pytest.mark.parametrize(
    ("kind", "answers", "asked"),
    [
        pytest.param(
            "llamacpp",
            {"apply-template": {"prompt": "<u>Hello world"}, "tokenize": {"tokens": [1] * 7}},
            [
                ("/apply-template", {"messages": [{"role": "user", "content": "Hello world"}]}),
                ("/tokenize", {"content": "<u>Hello world", "add_special": True, "parse_special": True}),
            ],
            id="llama.cpp",
        ),
        pytest.param(
            "vllm",
            {"tokenize": {"count": 7, "max_model_len": 4096, "tokens": [1] * 7}},
            [
                (
                    "/tokenize",
                    {"model": "m", "messages": [{"role": "user", "content": "Hello world"}], "add_generation_prompt": True},
                )
            ],
            id="vllm",
        ),
        pytest.param(
            "tgi",
            {"chat_tokenize": {"tokenize_response": [{"id": 1}] * 7, "templated_text": ""}},
            [("/chat_tokenize", {"model": "m", "messages": [{"role": "user", "content": "Hello world"}]})],
            id="tgi",
        ),
    ],
)
def test_each_family_of_servers_is_asked_its_own_way(kind: str, answers: dict[str, Any], asked: list[Any]) -> None:
    server = Scripted(**answers)

    async def story(tokens: Tokens, _: list[float]) -> None:
        target = target_of("m", server, kind, endpoint="http://m")
        assert await tokens.count(target, HELLO) == Count(7, True, "upstream")
        assert server.asked == asked
        assert await tokens.count(target, HELLO) == Count(7, True, "upstream")
        assert len(server.asked) == len(asked), "the second time it is known"

    inside(story)


def test_anthropic_counts_by_its_own_endpoint() -> None:
    server = Scripted(**{"v1/messages/count_tokens": {"input_tokens": 12}})

    async def story(tokens: Tokens, _: list[float]) -> None:
        target = target_of("m", server, "anthropic", endpoint="http://m")
        assert await tokens.count(target, ask_of(("user", "Hello world"), max_tokens=5)) == Count(12, True, "upstream")
        (path, body), *more = server.asked
        assert not more
        assert path == "/v1/messages/count_tokens"
        assert body["messages"] == [{"role": "user", "content": "Hello world"}]
        assert "max_tokens" not in body

    inside(story)


def test_plain_texts_are_counted_without_anything_around_them() -> None:
    server = Scripted(tokenize={"count": 3, "tokens": [1, 2, 3]})

    async def story(tokens: Tokens, _: list[float]) -> None:
        target = target_of("m", server, "vllm", endpoint="http://m")
        assert await tokens.texts(target, ["a b c", "a b c"]) == [3, 3]
        assert server.asked == [("/tokenize", {"model": "m", "prompt": "a b c", "add_special_tokens": False})]
        ask = Ask("completions", "m", prompts=("a b c",))
        assert await tokens.count(target, ask) == Count(3, True, "upstream")
        assert server.asked[1:] == [("/tokenize", {"model": "m", "prompt": "a b c"})]

    inside(story)


def test_the_log_says_once_in_a_while_of_a_model_that_its_tokens_are_estimated_and_how_often(
    caplog: pytest.LogCaptureFixture,
) -> None:
    servers = {name: Scripted(tokenize=SitsError(Code.UPSTREAM_UNREACHABLE, f"nobody is at {name}")) for name in "mn"}

    async def story(tokens: Tokens, now: list[float]) -> None:
        for _ in range(50):
            for name, server in servers.items():
                await tokens.count(target_of(name, server, "vllm", endpoint="http://m"), HELLO)
            now[0] += 1.0
        now[0] = TOLD_SECONDS + REST_SECONDS
        await tokens.count(target_of("m", servers["m"], "vllm", endpoint="http://m"), HELLO)
        assert tokens.estimates == 101

    with caplog.at_level("INFO", "sits.gateway"):
        inside(story)
    assert [record.getMessage() for record in caplog.records if "estimated" in record.getMessage()] == [
        "m: tokens are estimated: nobody is at m",
        "n: tokens are estimated: nobody is at n",
        "m: tokens are estimated, 49 times since this was last said: nobody is at m",
    ]


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        pytest.param(None, "estimate: POST /tokenize of m answered 404: no such path", id="an old server"),
        pytest.param(b"<html>", "estimate: m answered a count that cannot be read (/tokenize)", id="no JSON"),
        pytest.param({"tokens": 5}, "estimate: m answered a count that cannot be read (count)", id="no count"),
        pytest.param(b"\xff\xfe", "estimate: m answered a count that cannot be read (/tokenize)", id="no UTF-8"),
        pytest.param(b"[" * 100_000, "estimate: m answered a count that cannot be read (/tokenize)", id="very deep"),
        pytest.param({"count": True}, UNBELIEVED, id="true"),
        pytest.param({"count": -5}, UNBELIEVED, id="fewer than none"),
        pytest.param({"count": 2**40 + 1}, UNBELIEVED, id="more than anybody reads"),
        pytest.param({"count": 10**40}, UNBELIEVED, id="beyond 64 bits"),
        pytest.param(SitsError(Code.UPSTREAM_UNREACHABLE, "nobody there"), "estimate: nobody there", id="nobody there"),
    ],
)
def test_a_server_that_cannot_count_is_left_alone_for_a_while(answer: Any, said: str) -> None:
    server = Scripted(tokenize=answer)

    async def story(tokens: Tokens, now: list[float]) -> None:
        target = target_of("m", server, "vllm", endpoint="http://m")
        assert await tokens.count(target, HELLO) == Count(ask_tokens(HELLO), False, said)
        again = await tokens.count(target, HELLO)
        assert again == Count(ask_tokens(HELLO), False, "estimate: m could not count a moment ago")
        assert len(server.asked) == 1
        assert tokens.estimates == 2
        now[0] += REST_SECONDS
        server.answers["/tokenize"] = {"count": 9, "tokens": []}
        assert await tokens.count(target, HELLO) == Count(9, True, "upstream")

    inside(story)


def test_a_prompt_with_numbers_beyond_64_bits_is_known_again_and_told_from_others() -> None:
    server = Scripted(tokenize={"count": 9, "tokens": []})

    async def story(tokens: Tokens, now: list[float]) -> None:
        target = target_of("m", server, "vllm", endpoint="http://m")
        for figure in (10**40, -(10**40), 2**64, 10**40 + 1):
            ask = msgspec.structs.replace(HELLO, extra={"foo": figure})
            assert tokens.known(target, ask) is None
            assert await tokens.count(target, ask) == Count(9, True, "upstream")
            assert tokens.known(target, ask) == Count(9, True, "upstream")
        assert len(server.asked) == 4

    inside(story)


def test_a_count_that_comes_too_late_is_kept_for_the_next_one() -> None:
    server = Scripted(tokenize={"count": 9, "tokens": []})

    async def story(tokens: Tokens, _: list[float]) -> None:
        target = target_of("m", server, "vllm", endpoint="http://m")
        await tokens.texts(target, [])
        server.hold = asyncio.Event()
        late = await tokens.count(target, HELLO)
        assert late == Count(ask_tokens(HELLO), False, "estimate: m has not counted within 20 ms")
        assert tokens.known(target, HELLO) is None
        server.hold.set()
        await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))
        assert await tokens.count(target, HELLO) == Count(9, True, "upstream")
        assert len(server.asked) == 1

    inside(story, TokenizerSpec(wait_ms=20))


def test_an_engine_without_a_way_and_a_missing_file_end_in_the_estimate(tmp_path: Path) -> None:
    async def none(tokens: Tokens, _: list[float]) -> None:
        found = await tokens.count(target_of("m", Scripted(), "openai", endpoint="http://m"), HELLO)
        assert found.source == "estimate: no tokenizer is declared for m, and its server has no way to count"

    async def missing(tokens: Tokens, _: list[float]) -> None:
        found = await tokens.count(target_of("m", Scripted(), "openai", endpoint="http://m"), HELLO)
        assert not found.exact
        assert found.source.startswith(f"estimate: the tokenizer {tmp_path}/none.json cannot be read")
        assert await tokens.texts(target_of("m", Scripted(), "openai"), ["a" * 40]) == [15], "an estimate on the high side"

    async def broken(tokens: Tokens, _: list[float]) -> None:
        found = await tokens.count(target_of("m", Scripted(), "openai", endpoint="http://m"), HELLO)
        assert found.source.startswith(f"estimate: {tmp_path}/broken.json is no tokenizer")

    inside(none)
    inside(missing, TokenizerSpec(f"file:{tmp_path}/none.json", wait_ms=20_000))
    (tmp_path / "broken.json").write_text('{"version": 1}')
    inside(broken, TokenizerSpec(f"file:{tmp_path}/broken.json", wait_ms=20_000))


def test_of_a_conversation_that_grows_only_the_new_message_is_counted() -> None:
    spec = TokenizerSpec(f"file:{smol_file()}", FrameSpec(), wait_ms=20_000)
    talk = [("system", "Be brief."), ("user", "你好，世界"), ("assistant", "你好！")]

    async def story(tokens: Tokens, _: list[float]) -> None:
        target = target_of("m", Scripted(), "openai", endpoint="http://m")
        sizes = []
        for turn in range(4):
            talk.append(("user", f"question {turn}"))
            found = await tokens.count(target, ask_of(*talk))
            assert found.exact
            assert tokens.known(target, ask_of(*talk)) == found
            sizes.append(len(tokens.kept))
            talk.append(("assistant", f"answer {turn}"))
        # The three at first, their question and what the answer begins with; then two each time.
        assert sizes == [5, 7, 9, 11]

    inside(story, spec)


def test_what_a_template_may_do_otherwise_is_not_called_exact() -> None:
    spec = TokenizerSpec(f"file:{smol_file()}", FrameSpec(), wait_ms=20_000)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}

    async def story(tokens: Tokens, _: list[float]) -> None:
        target = target_of("m", Scripted(), "openai", endpoint="http://m")
        assert (await tokens.count(target, HELLO)).exact
        for ask in (
            ask_of(("user", "Hello world"), tools=[tool]),
            ask_of(("user", "Hello"), ("assistant", "wor")),
            ask_of(("user", "Hello world"), response_format={"type": "json_object"}),
        ):
            assert not (await tokens.count(target, ask)).exact

    inside(story, spec)


def test_without_a_declared_frame_the_text_is_counted_and_the_frame_estimated() -> None:
    async def story(tokens: Tokens, _: list[float]) -> None:
        target = target_of("m", Scripted(), "openai", endpoint="http://m")
        text = await tokens.texts(target, ["Hello world"])
        assert await tokens.count(target, HELLO) == Count(text[0] + 8, False, "file", 8)

    inside(story, TokenizerSpec(f"file:{llama2_file()}", wait_ms=20_000))


def test_the_counts_used_last_are_kept() -> None:
    kept = Kept(2)
    kept.put(b"a", 1)
    kept.put(b"b", 2)
    assert kept.get(b"a") == 1
    kept.put(b"c", 3)
    assert [kept.get(one) for one in (b"a", b"b", b"c")] == [1, None, 3]
    assert (len(kept), kept.hits, kept.misses) == (2, 3, 1)


def test_what_is_counted_is_known_apart_however_its_bytes_fall() -> None:
    digests = {digest_of(b"t", b"ab", b"c"), digest_of(b"t", b"a", b"bc"), digest_of(b"t", b"abc"), digest_of(b"u", b"abc")}
    assert len(digests) == 4
    assert digest_of(b"t", b"abc") in digests
