"""A real model in a real process: what it answers, together, in pieces, and not any longer."""

from __future__ import annotations

import asyncio
import json
import math
from pathlib import Path
from typing import Any

import pytest
from local_kit import Answer, ask, chat, gemma_plan, house, outgoing, post, run, smol_plan, until

from granted import Granted
from sits.engines.base import Deadlines, Outgoing
from sits.engines.local.engine import LocalEngine
from sits.engines.local.lease import read
from sits.inner.errors import SitsError

LONG = Deadlines(total=120.0)


async def slots(engine: LocalEngine) -> list[Any]:
    answer = Answer()
    engine.send(Outgoing(b"GET", b"/slots", [], b""), answer, LONG)
    found: list[Any] = (await answer.wait()).json()
    return found


async def busy(engine: LocalEngine) -> int:
    return sum(slot["is_processing"] for slot in await slots(engine))


def text_of(events: list[Any]) -> str:
    return "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])


def test_one_process_answers_everything_that_a_gateway_asks(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            whole = await ask(engine, "/v1/chat/completions", chat("What is 2+2?"))
            assert "4" in whole["choices"][0]["message"]["content"]
            assert whole["model"] == "smol"
            assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] + whole["usage"]["completion_tokens"]

            _, answer = post(
                engine, "/v1/chat/completions", chat("What is 2+2?", stream=True, stream_options={"include_usage": True})
            )
            events = (await answer.wait()).events()
            assert text_of(events) == whole["choices"][0]["message"]["content"], "streamed and whole are the same answer"
            assert len([event for event in events if event["choices"]]) > 3
            assert events[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]

            with_logprobs = await ask(engine, "/v1/chat/completions", chat("What is 2+2?", logprobs=True, top_logprobs=3))
            first = with_logprobs["choices"][0]["logprobs"]["content"][0]
            assert first["logprob"] <= 0
            assert len(first["top_logprobs"]) == 3
            assert math.exp(first["logprob"]) == max(math.exp(top["logprob"]) for top in first["top_logprobs"])

            schema = {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "maxLength": 12},
                    "age": {"type": "integer", "minimum": 0, "maximum": 99},
                },
                "required": ["city", "age"],
                "additionalProperties": False,
            }
            wish = {"type": "json_schema", "json_schema": {"name": "who", "schema": schema, "strict": True}}
            formed = await ask(engine, "/v1/chat/completions", chat("Who are you?", response_format=wish, max_tokens=64))
            person = json.loads(formed["choices"][0]["message"]["content"])
            assert set(person) == {"city", "age"}
            assert isinstance(person["city"], str)
            assert 0 <= person["age"] <= 99

            plain = await ask(engine, "/v1/completions", {"prompt": "One, two, three,", "max_tokens": 4, "temperature": 0})
            assert "four" in plain["choices"][0]["text"]
            message = {"model": "smol", "max_tokens": 8, "messages": [{"role": "user", "content": "你好"}]}
            assert (await ask(engine, "/v1/messages", message))["type"] == "message"
            counted = await ask(engine, "/v1/messages/count_tokens", message)
            assert counted["input_tokens"] > 2

            too_long = Answer()
            engine.send(outgoing("/v1/completions", {"prompt": "word " * 2000}), too_long, LONG)
            await too_long.wait()
            assert (too_long.status, json.loads(too_long.body)["error"]["type"]) == (400, "exceed_context_size_error")
            await engine.aclose()

    run(story())


def test_four_requests_at_once_are_computed_together(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            await engine.warm()
            body = chat("Tell me a long story about the sea.", max_tokens=40, ignore_eos=True)
            asked = [post(engine, "/v1/chat/completions", body)[1] for _ in range(4)]
            most = 0
            while not all(answer.done.is_set() for answer in asked):
                most = max(most, await busy(engine))
            assert most == 4
            assert [answer.json()["usage"]["completion_tokens"] for answer in asked] == [40] * 4
            await engine.aclose()

    run(story())


def test_a_cancelled_request_frees_its_slot_within_250_ms(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            await engine.warm()
            for stream in (True, False):
                body = chat("Tell me a long story.", max_tokens=400, ignore_eos=True, stream=stream)
                call, answer = post(engine, "/v1/chat/completions", body)

                async def working() -> bool:
                    return await busy(engine) == 1

                async def idle() -> bool:
                    return await busy(engine) == 0

                await until(working)
                if stream:
                    await answer.first.wait()
                async with Granted() as granted:
                    call.cancel()
                    call.cancel()
                    await until(idle)
                assert granted.seconds < 0.25
                assert (answer.done.is_set(), answer.error) == (False, None), "after a cancel nothing more is told"
            await engine.aclose()

    run(story())


def test_a_request_is_cancelled_while_its_prompt_is_read(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(context=2048), models)
            await engine.warm()
            for stream in (True, False):

                async def working() -> bool:
                    return await busy(engine) == 1

                async def idle() -> bool:
                    return await busy(engine) == 0

                body = chat(f"{stream} " + "Tell me a story. " * 300, stream=stream)
                call, answer = post(engine, "/v1/chat/completions", body)
                await until(working)
                async with Granted() as granted:
                    call.cancel()
                    await until(idle)
                # Two or three batches of 64 tokens; without the reports of progress it took 7 seconds.
                assert granted.seconds < 1.5
                assert answer.body == b""
            await engine.aclose()

    run(story())


@pytest.mark.parametrize(("kept", "again"), [(128, False), (0, True)], ids=["kept beside the slots", "nothing is kept"])
def test_a_conversation_that_comes_back_is_not_read_again(data: Path, kept: int, again: bool) -> None:
    """One slot, and another conversation in between."""

    async def story() -> list[int]:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(slots=1, prefixes_mib=kept), models)
            told = [
                await ask(engine, "/v1/completions", {"prompt": prompt, "max_tokens": 1, "temperature": 0})
                for prompt in ("A tale of the sea. " * 40, "北京的秋天。" * 40, "A tale of the sea. " * 41)
            ]
            await engine.aclose()
        return [one["timings"]["prompt_n"] for one in told]

    first, _, third = run(story())
    assert first > 150
    assert (third > 150) == again


def test_a_whole_answer_is_what_the_server_itself_says(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            await engine.warm()
            lease = read(engine._resident.lease)
            assert lease is not None
            asked: list[tuple[str, dict[str, Any]]] = [
                ("/v1/chat/completions", chat("你好", logprobs=True, top_logprobs=2, seed=1)),
                ("/v1/completions", {"prompt": ["One, two,", "A, B,"], "max_tokens": 3, "temperature": 0}),
                ("/v1/responses", {"model": "smol", "input": "What is 2+2?", "max_output_tokens": 8, "temperature": 0}),
            ]
            for path, body in asked:
                ours = await ask(engine, path, body)
                theirs = Answer()
                direct = outgoing(path, body)
                direct.headers.append((b"authorization", engine._resident.key))
                remote = models.make_remote(lease.address)
                remote.send(direct, theirs, LONG)
                assert plain(ours) == plain((await theirs.wait()).json()), path
                await remote.aclose()
            await engine.aclose()

    run(story())


PASSING = {
    "id", "created", "created_at", "completed_at", "timings", "usage", "system_fingerprint", "logprob", "top_logprobs",
}  # fmt: skip


def plain(value: Any) -> Any:
    """An answer without what differs from one to the next."""
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items() if key not in PASSING}
    return [plain(inner) for inner in value] if isinstance(value, list) else value


def test_a_model_may_embed_instead_of_generating(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(embedding=True, pooling="mean"), models)
            found = await ask(engine, "/v1/embeddings", {"model": "smol", "input": ["a cat", "猫", "a " * 300]})
            vectors = [item["embedding"] for item in found["data"]]
            assert [len(vector) for vector in vectors] == [576] * 3
            assert all(abs(sum(x * x for x in vector) - 1) < 1e-3 for vector in vectors)
            await engine.aclose()

    run(story())


def test_the_second_family_completes_text(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(gemma_plan(), models)
            body = {"model": "gemma", "prompt": "Roses are red, violets are", "max_tokens": 4, "temperature": 0}
            found = await ask(engine, "/v1/completions", body)
            assert "blue" in found["choices"][0]["text"]
            assert found["usage"] == {**found["usage"], "completion_tokens": 4}
            await engine.aclose()

    run(story())


def test_a_file_that_is_no_model_is_refused_with_the_engine_s_reason(data: Path, tmp_path: Path) -> None:
    good = data / "models" / "sha256" / str(smol_plan().weights.sha256) / "SmolLM2-135M-Instruct.Q4_1.gguf"
    cut = tmp_path / "cut.gguf"
    junk = tmp_path / "junk.gguf"
    junk.write_bytes(b"hello")

    async def refusal(path: Path) -> str:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(source=f"file:{path}", sha256=None), models)
            _, answer = post(engine, "/v1/chat/completions", chat("hi"))
            await answer.wait()
            assert isinstance(answer.error, SitsError)
            failed_at = engine._resident._failed_at
            _, again = post(engine, "/v1/chat/completions", chat("hi"))
            await again.wait()
            assert again.error is not None
            assert again.error.message == answer.error.message
            assert again.error.retry_after is not None, "the next request within ten seconds gets the same answer at once"
            resident = engine._resident
            assert (resident._bringing, resident._failed_at) == (None, failed_at), "nothing was tried anew"
            assert (engine.status.state, engine.status.error) == ("failed", answer.error.message)
            await engine.aclose()
            return answer.error.message

    async def fetched() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            await engine.warm()
            await engine.aclose()

    run(fetched())
    with good.open("rb") as file:
        cut.write_bytes(file.read(20_000_000))
    assert run(refusal(junk)).startswith("smol: junk.gguf cannot be read as GGUF: starts with b'hell'")
    assert "tensor" in run(refusal(cut))
    assert "No such file" in run(refusal(tmp_path / "none.gguf"))


def test_the_estimate_is_within_a_quarter_of_what_the_process_takes(data: Path) -> None:
    async def story() -> dict[str, float]:
        errors = {}
        async with house(data) as models:
            for plan in (
                smol_plan(context=512, prefixes_mib=0),
                smol_plan(context=4096, prefixes_mib=0),
                gemma_plan(context=512, prefixes_mib=0),
                gemma_plan(context=4096, slots=4, prefixes_mib=0),
            ):
                engine = LocalEngine(plan, models)
                body = {"model": "m", "prompt": "The sea is " * 40, "max_tokens": 4, "temperature": 0}
                await asyncio.gather(*(ask(engine, "/v1/completions", body) for _ in range(plan.slots)))
                status = engine.status
                assert status.needs_bytes is not None
                errors[f"{plan.name} {plan.context} x {plan.slots}"] = status.needs_bytes / status.resident_bytes - 1
                await engine.aclose()
        return errors

    errors = run(story())
    print({name: f"{error:+.1%}" for name, error in errors.items()})
    assert all(abs(error) < 0.25 for error in errors.values()), errors
