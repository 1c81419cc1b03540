"""Bodies are run again from their logs: changed ones, ones without end, and the fake that tests use for it."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sits.ports.flows.base import Context, Retry, State, Step
from sits.ports.flows.memory import MOST_FLOWS, MemoryFlows
from sits.ports.flows.replay import LARGEST_LOG, MOST_CALLS, Entry

# Bodies that changed


async def _a_then_b(context: Context, input: bytes) -> bytes:
    return await context.step("a") + await context.step("b")


async def _a_and_b(context: Context, input: bytes) -> bytes:
    await asyncio.gather(context.step("a"), context.step("b"))
    return b""


async def _nothing(context: Context, input: bytes) -> bytes:
    return b""


async def _b_first(context: Context, input: bytes) -> bytes:
    return await context.step("b")


async def _sleeps(context: Context, input: bytes) -> bytes:
    await context.sleep(1.0)
    return b""


@pytest.mark.parametrize(
    ("old", "hold", "new", "message"),
    [
        pytest.param(
            _a_then_b,
            "b",
            _b_first,
            "the flow is not deterministic: call 0 asks for step 'b', but step 'a' is remembered there",
            id="another step",
        ),
        pytest.param(
            _a_then_b,
            "b",
            _sleeps,
            "the flow is not deterministic: call 0 asks for a sleep, but step 'a' is remembered there",
            id="another kind",
        ),
        pytest.param(
            _a_then_b,
            "b",
            _nothing,
            "the flow is not deterministic: it ended without call 0, but step 'a' is remembered there",
            id="nothing at all",
        ),
        pytest.param(
            _a_and_b,
            "a",
            _a_then_b,
            "the flow is not deterministic: it waits without call 1, but step 'b' is remembered there",
            id="one after the other, not both at once",
        ),
    ],
)
def test_a_changed_body_is_found_out(old: Any, hold: str, new: Any, message: str) -> None:
    async def run() -> State:
        async def hang(step: Step) -> bytes:
            await asyncio.Event().wait()
            return b""

        async def give(step: Step) -> bytes:
            return b"given"

        first = MemoryFlows()
        first.flow("body", old)
        for name in "ab":
            first.action(name, hang if name == hold else give)
        await first.run()
        await first.start("body", "1")
        await first.advance(1.0)
        await first.crash()
        assert [entry.name for entry in first.journal("1")] == ["b" if hold == "a" else "a"]
        second = first.successor()
        second.flow("body", new)
        second.action("a", give)
        second.action("b", give)
        await second.run()
        await second.advance(10.0)
        return await second.result("1", timeout=30.0)

    state = asyncio.run(run())
    assert (state.status, state.error) == ("failed", message)


# Limits


def test_a_flow_without_end_fails_at_its_last_call() -> None:
    async def run() -> State:
        async def body(context: Context, input: bytes) -> bytes:
            while True:
                await context.signal("never", timeout=0.0)

        flows = MemoryFlows()
        flows.flow("body", body)
        await flows.run()
        await flows.start("body", "1")
        return await flows.result("1", timeout=30.0)

    state = asyncio.run(run())
    assert (state.status, state.error) == ("failed", f"the flow asked for more than {MOST_CALLS} steps, sleeps and signals")


def test_a_flow_whose_results_fill_the_memory_fails() -> None:
    async def run() -> State:
        async def body(context: Context, input: bytes) -> bytes:
            while True:
                await context.step("swell")

        async def swell(step: Step) -> bytes:
            return bytes(1024 * 1024)

        flows = MemoryFlows()
        flows.flow("body", body)
        flows.action("swell", swell)
        await flows.run()
        await flows.start("body", "1")
        return await flows.result("1", timeout=30.0)

    state = asyncio.run(run())
    assert (state.status, state.error) == (
        "failed",
        f"the results of the flow's steps are more than {LARGEST_LOG} bytes together",
    )


# The fake's own


def test_time_passes_in_the_order_in_which_things_fall_due() -> None:
    async def run() -> tuple[list[str], float]:
        seen: list[str] = []

        async def body(context: Context, input: bytes) -> bytes:
            for _ in range(2):
                await context.sleep(float(input))
                seen.append(f"{input.decode()}@{context.now() - 1000.0:g}")
            return b""

        flows = MemoryFlows(now=1000.0)
        flows.flow("body", body)
        await flows.run()
        for seconds in (b"3", b"2", b"5"):
            await flows.start("body", seconds.decode(), seconds)
        await flows.advance(9.0)
        await flows.aclose()
        return seen, flows.now

    assert asyncio.run(run()) == (["2@2", "3@3", "2@4", "5@5", "3@6"], 1009.0)


def test_the_journal_of_a_flow_can_be_read() -> None:
    async def run() -> tuple[Entry, ...]:
        async def body(context: Context, input: bytes) -> bytes:
            await context.step("give", retry=Retry(2, 1.0))
            await context.sleep(5.0)
            await context.signal("word")
            return b""

        async def give(step: Step) -> bytes:
            if step.attempt == 1:
                raise ValueError("第一次")
            return b"given"

        flows = MemoryFlows(now=1000.0)
        flows.flow("body", body)
        flows.action("give", give)
        await flows.run()
        await flows.start("body", "1")
        await flows.advance(100.0)
        await flows.aclose()
        return flows.journal("1")

    assert asyncio.run(run()) == (
        Entry(0, "try", "give", 1000.0, error="ValueError: 第一次", attempt=1),
        Entry(0, "step", "give", 1001.0, output=b"given"),
        Entry(1, "sleep", "", 1006.0),
    )


def test_tries_are_counted_over_a_crash() -> None:
    async def run() -> tuple[list[int], State]:
        attempts: list[int] = []

        async def body(context: Context, input: bytes) -> bytes:
            return await context.step("fail", retry=Retry(4, 10.0))

        async def fail(step: Step) -> bytes:
            attempts.append(step.attempt)
            raise ValueError("as told")

        flows = MemoryFlows()
        flows.flow("body", body)
        flows.action("fail", fail)
        await flows.run()
        await flows.start("body", "1")
        for seconds in (11.0, 0.0, 19.0, 2.0, 40.0):
            await flows.advance(seconds)
            await flows.crash()
            await flows.run()
        await flows.advance(100.0)
        return attempts, await flows.result("1", timeout=30.0)

    attempts, state = asyncio.run(run())
    assert attempts == [1, 2, 3, 4]
    assert state.error == "StepFailed: ValueError: as told"


def test_the_fake_forgets_the_oldest_ended_flow_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> list[State | None]:
        flows = MemoryFlows()
        flows.flow("nothing", _nothing)
        await flows.run()
        for number in range(4):
            await flows.start("nothing", str(number))
            await flows.result(str(number), timeout=30.0)
        return [await flows.state(str(number)) for number in range(4)]

    assert MOST_FLOWS == 10_000
    monkeypatch.setattr("sits.ports.flows.memory.MOST_FLOWS", 3)
    first, *others = asyncio.run(run())
    assert first is None
    assert [state.status for state in others if state] == ["done", "done", "done"]
