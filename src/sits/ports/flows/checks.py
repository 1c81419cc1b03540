"""What every runner of flows must do, as checks that its author can run.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_mine_conforms(check):
        asyncio.run(check(MyRig()))

A `Rig` opens runners on one place (a folder, a server) and lets time pass. The checks with real processes, which are killed
in the middle, are in `sits.ports.flows.killing`.
"""

from __future__ import annotations

import asyncio

from sits.ports.flows.base import LARGEST, Context, Retry, State, Step, StepFailed
from sits.ports.flows.checking import SOON, WAIT, Check, Rig, Ticks, echo, ended, running
from sits.ports.flows.checks_talk import TALK

__all__ = ["CHECKS", "Check", "Rig", "Ticks"]

# Results


async def a_flow_gives_its_result(rig: Rig) -> None:
    id = rig.prefix + "结果/1 %"
    runner = await running(rig, {"echo": echo}, {"tick": Ticks()})
    await runner.start("echo", id, "你好".encode())
    state = await ended(runner, id)
    assert state == State(id, "echo", "done", "did 你好".encode(), None, state.started)
    assert state.started > 1_500_000_000
    assert await runner.state(id) == state


async def results_may_be_empty_and_any_bytes(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        return await context.step("give", input)

    async def give(step: Step) -> bytes:
        return step.input

    runner = await running(rig, {"body": body}, {"give": give})
    for number, value in enumerate((b"", b"\x00\xff\x80", b"x" * LARGEST)):
        await runner.start("body", f"{rig.prefix}{number}", value)
    for number, value in enumerate((b"", b"\x00\xff\x80", b"x" * LARGEST)):
        assert (await ended(runner, f"{rig.prefix}{number}")).output == value


async def a_body_that_raises_fails_the_flow_with_its_message(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        raise LookupError("没有 such thing")

    runner = await running(rig, {"body": body}, {})
    await runner.start("body", rig.prefix + "1")
    state = await ended(runner, rig.prefix + "1", "failed")
    assert (state.output, state.error) == (None, "LookupError: 没有 such thing")


async def many_flows_run_at_the_same_time(rig: Rig) -> None:
    tick = Ticks()
    runner = await running(rig, {"echo": echo}, {"tick": tick})
    ids = [f"{rig.prefix}{number}" for number in range(30)]
    await asyncio.gather(*(runner.start("echo", id, id.encode()) for id in ids))
    states = await asyncio.gather(*(ended(runner, id) for id in ids))
    assert [state.output for state in states] == [b"did " + id.encode() for id in ids]
    assert sorted(tick.inputs) == sorted(id.encode() for id in ids)


# Steps


async def keys_differ_between_steps_and_are_the_same_at_each_try(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        await context.step("tick", b"same", retry=SOON)
        await context.step("tick", b"same")
        return b""

    tick = Ticks(fail=2)
    runner = await running(rig, {"body": body}, {"tick": tick})
    ids = [rig.prefix + "1", rig.prefix + "2"]
    await runner.start("body", ids[0])
    await tick.until(1)
    await rig.advance(0.2)
    await ended(runner, ids[0])
    await runner.start("body", ids[1])
    await ended(runner, ids[1])
    assert [step.attempt for step in tick.seen] == [1, 2, 3, 1, 1, 1]
    first, again, third, *others = [step.key for step in tick.seen]
    assert first == again == third
    assert len({first, *others}) == 4


async def a_step_that_fails_at_every_try_raises_in_the_body(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        try:
            await context.step("tick", retry=SOON)
        except StepFailed as failed:
            return str(failed).encode()
        return b"no failure"

    tick = Ticks(fail=100)
    runner = await running(rig, {"body": body}, {"tick": tick})
    await runner.start("body", rig.prefix + "1")
    await tick.until(1)
    await rig.advance(0.2)
    assert (await ended(runner, rig.prefix + "1")).output == "ValueError: try 3 失败".encode()
    assert [step.attempt for step in tick.seen] == [1, 2, 3]


async def a_failed_step_that_the_body_does_not_catch_fails_the_flow(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        return await context.step("tick", retry=Retry(attempts=1))

    runner = await running(rig, {"body": body}, {"tick": Ticks(fail=1)})
    await runner.start("body", rig.prefix + "1")
    state = await ended(runner, rig.prefix + "1", "failed")
    assert state.error == "StepFailed: ValueError: try 1 失败"


async def a_step_that_is_not_declared_fails(rig: Rig) -> None:
    runner = await running(rig, {"echo": echo}, {})
    await runner.start("echo", rig.prefix + "1")
    assert (await ended(runner, rig.prefix + "1", "failed")).error == "StepFailed: no step 'tick' is declared"


async def steps_run_at_the_same_time(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        return b"|".join(await asyncio.gather(*(context.step("meet", letter) for letter in (b"a", b"b", b"c"))))

    here: list[bytes] = []
    complete = asyncio.Event()

    async def meet(step: Step) -> bytes:
        here.append(step.input)
        if len(here) == 3:
            complete.set()
        async with asyncio.timeout(WAIT):
            await complete.wait()
        return step.input

    runner = await running(rig, {"body": body}, {"meet": meet})
    await runner.start("body", rig.prefix + "1")
    assert (await ended(runner, rig.prefix + "1")).output == b"a|b|c"


# After a fall


async def steps_that_ended_are_not_run_again(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        return b"|".join([await context.step("tick", letter) for letter in (b"a", b"b", b"c")])

    before, after = Ticks(), Ticks()
    before.hold = {b"c"}
    runner = await running(rig, {"body": body}, {"tick": before})
    await runner.start("body", rig.prefix + "1")
    await before.until(3)
    await rig.fall(runner)
    runner = await running(rig, {"body": body}, {"tick": after})
    assert (await ended(runner, rig.prefix + "1")).output == b"did a|did b|did c"
    assert (before.inputs, after.inputs) == ([b"a", b"b", b"c"], [b"c"])
    assert before.seen[2].key == after.seen[0].key


async def branches_go_on_each_where_it_stood(rig: Rig) -> None:
    async def branch(context: Context, name: bytes) -> bytes:
        one = await context.step("tick", name + b"1")
        return one + b"," + await context.step("tick", name + b"2")

    async def body(context: Context, input: bytes) -> bytes:
        return b"|".join(await asyncio.gather(branch(context, b"a"), branch(context, b"b")))

    before, after = Ticks(), Ticks()
    before.hold = {b"a1", b"b2"}
    runner = await running(rig, {"body": body}, {"tick": before})
    await runner.start("body", rig.prefix + "1")
    await before.until(3)
    await rig.fall(runner)
    runner = await running(rig, {"body": body}, {"tick": after})
    assert (await ended(runner, rig.prefix + "1")).output == b"did a1,did a2|did b1,did b2"
    assert sorted(before.inputs) == [b"a1", b"b1", b"b2"]
    assert sorted(after.inputs) == [b"a1", b"a2", b"b2"]


async def a_remembered_failure_is_not_tried_again(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        try:
            await context.step("bad", retry=Retry(attempts=1))
        except StepFailed:
            return await context.step("tick", b"mended")
        return b"no failure"

    bad, before, after = Ticks(fail=1), Ticks(), Ticks()
    before.hold = {b"mended"}
    runner = await running(rig, {"body": body}, {"bad": bad, "tick": before})
    await runner.start("body", rig.prefix + "1")
    await before.until(1)
    await rig.fall(runner)
    runner = await running(rig, {"body": body}, {"bad": bad, "tick": after})
    assert (await ended(runner, rig.prefix + "1")).output == b"did mended"
    assert len(bad.seen) == 1


async def a_changed_body_fails_its_old_flows_and_says_so(rig: Rig) -> None:
    async def old(context: Context, input: bytes) -> bytes:
        await context.step("tick", b"1")
        return await context.step("tick", b"2")

    async def new(context: Context, input: bytes) -> bytes:
        return await context.step("other", b"1")

    before, after, other = Ticks(), Ticks(), Ticks()
    before.hold = {b"2"}
    runner = await running(rig, {"body": old}, {"tick": before})
    await runner.start("body", rig.prefix + "1")
    await before.until(2)
    await rig.fall(runner)
    runner = await running(rig, {"body": new}, {"tick": after, "other": other})
    state = await ended(runner, rig.prefix + "1", "failed")
    assert state.error is not None
    assert "determinis" in state.error.lower(), state.error
    assert other.seen == []


async def a_body_sees_the_same_time_again(rig: Rig) -> None:
    seen: list[tuple[float, float]] = []

    async def body(context: Context, input: bytes) -> bytes:
        before = context.now()
        await context.sleep(0.3)
        seen.append((before, context.now()))
        return await context.step("tick", b"held")

    before = Ticks()
    before.hold = {b"held"}
    runner = await running(rig, {"body": body}, {"tick": before})
    await runner.start("body", rig.prefix + "1")
    await rig.advance(0.4)
    await before.until(1)
    await rig.fall(runner)
    runner = await running(rig, {"body": body}, {"tick": Ticks()})
    await ended(runner, rig.prefix + "1")
    assert seen[-1] == seen[0]
    assert 0.29 <= seen[0][1] - seen[0][0] < 10.0


# Sleep


async def a_sleep_ends_when_its_time_has_come(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        await context.step("tick", b"before")
        before = context.now()
        await context.sleep(rig.long)
        await context.step("tick", b"after")
        return b"%d" % (context.now() - before >= rig.long * 0.99)

    tick = Ticks()
    runner = await running(rig, {"body": body}, {"tick": tick})
    await runner.start("body", rig.prefix + "1")
    await tick.until(1)
    await rig.advance(rig.long / 4)
    state = await runner.state(rig.prefix + "1")
    assert state is not None
    assert (state.status, tick.inputs) == ("running", [b"before"])
    await rig.advance(rig.long)
    assert (await ended(runner, rig.prefix + "1")).output == b"1"
    assert tick.inputs == [b"before", b"after"]


async def a_sleep_goes_on_while_nobody_runs(rig: Rig) -> None:
    async def body(context: Context, input: bytes) -> bytes:
        await context.step("tick", b"before")
        await asyncio.gather(context.sleep(rig.long), context.step("tick", b"beside"))
        return b""

    tick = Ticks()
    tick.hold = {b"beside"}
    runner = await running(rig, {"body": body}, {"tick": tick})
    await runner.start("body", rig.prefix + "1")
    await tick.until(2)
    await rig.fall(runner)
    await rig.advance(rig.long * 1.1)
    tick.hold = set()
    runner = await running(rig, {"body": body}, {"tick": tick})
    # Its time has come already: no more has to pass for it.
    await ended(runner, rig.prefix + "1")
    assert tick.inputs == [b"before", b"beside", b"beside"]


CHECKS: tuple[Check, ...] = (
    a_flow_gives_its_result,
    results_may_be_empty_and_any_bytes,
    a_body_that_raises_fails_the_flow_with_its_message,
    many_flows_run_at_the_same_time,
    keys_differ_between_steps_and_are_the_same_at_each_try,
    a_step_that_fails_at_every_try_raises_in_the_body,
    a_failed_step_that_the_body_does_not_catch_fails_the_flow,
    a_step_that_is_not_declared_fails,
    steps_run_at_the_same_time,
    steps_that_ended_are_not_run_again,
    branches_go_on_each_where_it_stood,
    a_remembered_failure_is_not_tried_again,
    a_changed_body_fails_its_old_flows_and_says_so,
    a_body_sees_the_same_time_again,
    a_sleep_ends_when_its_time_has_come,
    a_sleep_goes_on_while_nobody_runs,
    *TALK,
)
