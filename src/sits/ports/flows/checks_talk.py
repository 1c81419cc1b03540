"""Checks of what is said to a runner of flows: signals, starts, ends, questions. Part of `checks.CHECKS`."""

from __future__ import annotations

import asyncio
import contextlib

from sits.inner.errors import Code
from sits.ports.flows.base import LARGEST, LONGEST_ID, Context, Flows, Retry, Step, StepFailed
from sits.ports.flows.checking import WAIT, Check, Rig, Ticks, echo, ended, refused, running

# Signals


async def _listen(context: Context, input: bytes) -> bytes:
    got = []
    for _ in range(int(input)):
        got.append(await context.signal("news"))
        await context.step("tick", got[-1] or b"none")
    return b"|".join(one if one is not None else b"none" for one in got)


async def a_signal_sent_while_the_flow_waits_is_received(rig: Rig) -> None:
    tick = Ticks()
    runner = await running(rig, {"listen": _listen}, {"tick": tick})
    await runner.start("listen", rig.prefix + "1", b"2")
    await runner.send(rig.prefix + "1", "news", "一".encode())
    await tick.until(1)
    await runner.send(rig.prefix + "1", "news", b"two")
    assert (await ended(runner, rig.prefix + "1")).output == "一|two".encode()


async def signals_of_a_name_come_in_order_also_before_the_flow_waits(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        await context.signal("go")
        return await _listen(context, input)

    runner = await running(rig, {"body": body}, {"tick": Ticks()})
    await runner.start("body", rig.prefix + "1", b"20")
    for number in range(20):
        await runner.send(rig.prefix + "1", "news", b"%d" % number)
        await runner.send(rig.prefix + "1", "noise", b"unheard")
    await runner.send(rig.prefix + "1", "go")
    assert (await ended(runner, rig.prefix + "1")).output == b"|".join(b"%d" % number for number in range(20))


async def signals_sent_at_the_same_time_are_each_received_once(rig: Rig) -> None:
    runner = await running(rig, {"listen": _listen}, {"tick": Ticks()})
    await runner.start("listen", rig.prefix + "1", b"13")
    words = [b"%d" % number for number in range(12)]
    await asyncio.gather(*(runner.send(rig.prefix + "1", "news", word, key=f"k{word!r}") for word in words + words))
    await runner.send(rig.prefix + "1", "news", b"last")
    output = (await ended(runner, rig.prefix + "1")).output
    assert output is not None
    *got, last = output.split(b"|")
    assert (sorted(got), last) == (sorted(words), b"last")


async def a_signal_with_a_key_is_received_once(rig: Rig) -> None:
    runner = await running(rig, {"listen": _listen}, {"tick": Ticks()})
    await runner.start("listen", rig.prefix + "1", b"4")
    for payload, key in ((b"a", "k1"), (b"b", "k1"), (b"c", "k2"), (b"d", ""), (b"a", "k1"), (b"e", "")):
        await runner.send(rig.prefix + "1", "news", payload, key=key)
    assert (await ended(runner, rig.prefix + "1")).output == b"a|c|d|e"


async def signals_outlive_a_fall_and_are_received_once(rig: Rig) -> None:
    tick = Ticks()
    runner = await running(rig, {"listen": _listen}, {"tick": tick})
    await runner.start("listen", rig.prefix + "1", b"3")
    await runner.send(rig.prefix + "1", "news", b"a", key="k1")
    await tick.until(1)
    await runner.send(rig.prefix + "1", "other", b"x")
    tick.hold = {b"b"}
    await runner.send(rig.prefix + "1", "news", b"b", key="k2")
    await tick.until(2)
    await runner.send(rig.prefix + "1", "news", b"c", key="k3")
    await rig.fall(runner)
    tick.hold = set()
    runner = await running(rig, {"listen": _listen}, {"tick": tick})
    await runner.send(rig.prefix + "1", "news", b"again", key="k1")
    assert (await ended(runner, rig.prefix + "1")).output == b"a|b|c"
    assert tick.inputs == [b"a", b"b", b"b", b"c"]


async def a_signal_that_does_not_come_in_time_is_none(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        first = await context.signal("never", timeout=0.2)
        second = await context.signal("news", timeout=3600.0)
        third = await context.signal("never", timeout=0.0)
        return repr((first, second, third)).encode()

    runner = await running(rig, {"body": body}, {})
    await runner.start("body", rig.prefix + "1")
    await rig.advance(0.3)
    await runner.send(rig.prefix + "1", "news", b"here")
    assert (await ended(runner, rig.prefix + "1")).output == b"(None, b'here', None)"


# Starting, ending, asking


async def a_second_start_starts_nothing(rig: Rig) -> None:
    tick = Ticks()
    runner = await running(rig, {"echo": echo, "other": echo}, {"tick": tick})
    await runner.start("echo", rig.prefix + "1", b"first")
    await runner.start("echo", rig.prefix + "1", b"second")
    await ended(runner, rig.prefix + "1")
    await runner.start("other", rig.prefix + "1", b"third")
    assert (await ended(runner, rig.prefix + "1")).output == b"did first"
    assert tick.inputs == [b"first"]


async def a_cancelled_flow_goes_no_further(rig: Rig) -> None:
    tick = Ticks()
    runner = await running(rig, {"listen": _listen}, {"tick": tick})
    await runner.start("listen", rig.prefix + "1", b"2")
    await runner.send(rig.prefix + "1", "news", b"a")
    await tick.until(1)
    await runner.cancel(rig.prefix + "1")
    state = await ended(runner, rig.prefix + "1", "cancelled")
    assert (state.output, state.error) == (None, None)
    await refused(Code.NOT_FOUND, runner.send(rig.prefix + "1", "news", b"b"))
    await runner.cancel(rig.prefix + "1")
    await runner.start("listen", rig.prefix + "2", b"1")
    await runner.send(rig.prefix + "2", "news", b"c")
    await ended(runner, rig.prefix + "2")
    assert tick.inputs == [b"a", b"c"]


async def one_that_has_ended_cannot_be_cancelled(rig: Rig) -> None:
    runner = await running(rig, {"echo": echo}, {"tick": Ticks()})
    await runner.start("echo", rig.prefix + "1")
    before = await ended(runner, rig.prefix + "1")
    await runner.cancel(rig.prefix + "1")
    assert await runner.state(rig.prefix + "1") == before


async def what_is_unknown_is_not_found(rig: Rig) -> None:
    runner = await running(rig, {"echo": echo}, {"tick": Ticks()})
    error = await refused(Code.NOT_FOUND, runner.start("ehco", rig.prefix + "1"))
    assert "echo" in error.message
    assert await runner.state(rig.prefix + "1") is None
    await refused(Code.NOT_FOUND, runner.send(rig.prefix + "1", "news"))
    await refused(Code.NOT_FOUND, runner.result(rig.prefix + "1", timeout=WAIT))
    await refused(Code.NOT_FOUND, runner.cancel(rig.prefix + "1"))
    await runner.start("echo", rig.prefix + "1")
    await ended(runner, rig.prefix + "1")
    await refused(Code.NOT_FOUND, runner.send(rig.prefix + "1", "news"))


async def what_is_too_large_is_refused(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        with contextlib.suppress(StepFailed):
            return await context.step("swell", retry=Retry(attempts=1))
        return b"x" * (LARGEST + 1)

    async def swell(step: Step) -> bytes:
        return b"x" * (LARGEST + 1)

    runner = await running(rig, {"body": body}, {"swell": swell})
    await refused(Code.INVALID_REQUEST, runner.start("body", rig.prefix + "1", b"x" * (LARGEST + 1)))
    await refused(Code.INVALID_REQUEST, runner.start("body", "长" * LONGEST_ID))
    await refused(Code.INVALID_REQUEST, runner.start("body", ""))
    await runner.start("body", rig.prefix + "1")
    await refused(Code.INVALID_REQUEST, runner.send(rig.prefix + "1", "news", b"x" * (LARGEST + 1)))
    state = await ended(runner, rig.prefix + "1", "failed")
    assert state.error is not None
    assert str(LARGEST) in state.error


async def a_result_is_not_waited_for_longer_than_asked(rig: Rig) -> None:
    runner = await running(rig, {"listen": _listen}, {"tick": Ticks()})
    await runner.start("listen", rig.prefix + "1", b"1")
    await refused(Code.STATE_UNAVAILABLE, runner.result(rig.prefix + "1", timeout=0.2))
    await runner.send(rig.prefix + "1", "news", b"a")
    await ended(runner, rig.prefix + "1")


async def nothing_is_declared_twice_or_later(rig: Rig) -> None:
    async def declare(runner: Flows, name: str) -> None:
        runner.flow(name, echo)

    runner = await rig.open()
    runner.flow("echo", echo)
    await refused(Code.INVALID_REQUEST, declare(runner, "echo"))
    await runner.run()
    await refused(Code.INVALID_REQUEST, declare(runner, "late"))


async def flows_are_listed_by_status(rig: Rig) -> None:
    runner = await running(rig, {"echo": echo, "listen": _listen}, {"tick": Ticks()})
    for id in ("1", "2", "3"):
        await runner.start("echo" if id != "2" else "listen", rig.prefix + id, b"1")
        if id != "2":
            await ended(runner, rig.prefix + id)
        await rig.advance(0.01)
    wanted = {"running": ["2"], "done": ["1", "3"], "failed": [], "cancelled": []}
    async with asyncio.timeout(WAIT):
        # A list may lag behind by its contract, so it is asked until it is right, or the time is over.
        while True:
            found = {
                status: sorted(state.id.removeprefix(rig.prefix) for state in await runner.states(status=status))
                for status in ("running", "done", "failed", "cancelled")
            }
            if found == wanted:
                break
            await rig.advance(0.05)
    first, *others = await runner.states()
    assert (first.id, first.flow, first.status) == (rig.prefix + "2", "listen", "running")
    assert sorted((one.id, one.flow, one.status) for one in others) == [(rig.prefix + id, "echo", "done") for id in ("1", "3")]
    assert [state.id for state in await runner.states(limit=1)] == [rig.prefix + "2"]


TALK: tuple[Check, ...] = (
    a_signal_sent_while_the_flow_waits_is_received,
    signals_of_a_name_come_in_order_also_before_the_flow_waits,
    signals_sent_at_the_same_time_are_each_received_once,
    a_signal_with_a_key_is_received_once,
    signals_outlive_a_fall_and_are_received_once,
    a_signal_that_does_not_come_in_time_is_none,
    a_second_start_starts_nothing,
    a_cancelled_flow_goes_no_further,
    one_that_has_ended_cannot_be_cancelled,
    what_is_unknown_is_not_found,
    what_is_too_large_is_refused,
    a_result_is_not_waited_for_longer_than_asked,
    nothing_is_declared_twice_or_later,
    flows_are_listed_by_status,
)
