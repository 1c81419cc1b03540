"""The pulse of an embedding model: when it is left alone, when it is tried, and what brings it back. No clock runs here."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.storm_world import Virtual
from sits.inner.errors import Code, SitsError
from sits.state.intent.patience import LATE, QUERIES, TRY_SECONDS, Patience, watched
from sits.state.intent.pulse import EITHER_WAY, LONGEST_REST, LONGEST_SILENCE, REST, ROW, SILENT, Pulse


def pulse(chance: float = 0.5) -> Pulse:
    return Pulse("bge-m3", lambda: chance)


def fail(one: Pulse, *times: float) -> list[bool]:
    said = []
    for now in times:
        one.asked(now)
        said.append(one.failed("bge-m3 answers 500", now, now))
    return said


def test_failures_in_a_row_leave_it_alone_and_an_answer_between_them_does_not() -> None:
    one = pulse()
    assert fail(one, 1.0, 2.0) == [False, False]
    assert (one.out, one.said(2.0)) == (False, "bge-m3 answers 500")
    one.asked(3.0)
    assert (one.answered(3.0, 3.0), one.said(3.0)) == (False, "")
    assert (fail(one, 4.0, 5.0, 6.0), one.out) == ([False, False, True], True)
    assert one.said(6.0) == "bge-m3 answers 500; it is left alone and asked again in 1.0 s at the soonest"
    assert one.said(7.5) == "bge-m3 answers 500; it is left alone and asked again with the next query"
    error = one.error(6.0)
    assert (error.code, error.message) == (Code.MODEL_UNAVAILABLE, one.said(6.0))


def test_whoever_waits_in_vain_while_it_says_nothing_leaves_it_alone() -> None:
    one = pulse()
    assert not one.missed(50.0), "nothing was asked"
    one.asked(100.0)
    one.asked(100.5)
    assert [one.missed(100.0 + after) for after in (0.1, 0.9, SILENT)] == [False, False, True]
    assert (one.out, one.why) == (True, "bge-m3 has not answered within 1.0 s")
    assert not one.missed(102.0), "it is left alone already"


@pytest.mark.parametrize(
    ("took", "silence"),
    [(0.01, SILENT), (0.3, SILENT), (2.0, 6.0), (60.0, LONGEST_SILENCE)],
    ids=["quick", "a little slow", "slow", "too slow to say"],
)
def test_a_slow_model_is_given_its_time(took: float, silence: float) -> None:
    one = pulse()
    one.asked(100.0)
    one.answered(100.0 + took, 100.0)
    one.asked(200.0)
    assert [one.missed(200.0 + silence - 0.01), one.missed(200.0 + silence + 0.01)] == [False, True]


def test_silence_counts_from_the_last_answer_to_anybody() -> None:
    one = pulse()
    one.asked(0.0)
    one.asked(0.0)
    one.answered(0.8, 0.0)
    assert (one.missed(1.5), one.said(1.5)) == (False, "")
    assert one.said(3.5) == "bge-m3 has not answered for 2.7 s"


def test_one_may_try_after_each_rest_and_rests_grow_to_their_longest() -> None:
    one = pulse()
    fail(one, 0.0, 0.0, 0.0)
    now, rests = 0.0, []
    for _ in range(9):
        assert not one.take(one.again_at - 0.001)
        rests.append(one.again_at - now)
        now = one.again_at
        assert (one.take(now), one.take(now)) == (True, False)
        one.asked(now)  # and it hangs
    assert rests == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]


def test_an_answer_to_a_try_or_to_what_was_asked_long_before_brings_it_back() -> None:
    for asked_at in (0.0, 10.0):
        one = pulse()
        one.asked(0.0)
        assert one.missed(5.0)
        assert one.take(10.0)
        one.asked(10.0)
        assert one.answered(11.0, asked_at)
        assert (one.out, one.row, one.why, one.take(11.0)) == (False, 0, "", True)


def test_failures_of_what_was_asked_before_say_nothing_of_now() -> None:
    one = pulse()
    for _ in range(6):
        one.asked(0.0)
    one.missed(1.0)
    one.take(2.0)
    again = one.again_at
    one.asked(2.0)
    assert (one.failed("timeout", 2.5, 0.0), one.again_at, one.why) == (False, again, "bge-m3 has not answered within 1.0 s")
    one.answered(3.0, 2.0)
    assert [one.failed("timeout", 30.0, 0.0) for _ in range(5)] == [False] * 5
    assert (one.out, one.row) == (False, 0)


def test_a_try_that_fails_is_followed_by_a_whole_rest() -> None:
    one = pulse()
    fail(one, 0.0, 0.0, 0.0)
    one.take(1.0)
    one.asked(1.0)
    assert not one.failed("bge-m3 answers 503", 2.5, 1.0)
    assert (one.again_at, one.why) == (4.5, "bge-m3 answers 503")


def test_who_is_out_again_soon_after_coming_back_rests_longer() -> None:
    one = pulse()
    fail(one, 0.0, 0.0, 0.0)
    one.take(1.0)
    one.asked(1.0)
    one.answered(1.1, 1.0)
    fail(one, 1.2, 1.2, 1.2)
    assert one.again_at == 1.2 + 4.0
    one.take(6.0)
    one.asked(6.0)
    one.answered(6.1, 6.0)
    fail(one, 100.0, 100.0, 100.0)
    assert one.again_at == 100.0 + REST


@pytest.mark.parametrize(("chance", "rest"), [(0.0, 1 - EITHER_WAY), (1.0, 1 + EITHER_WAY)])
def test_rests_are_drawn_apart(chance: float, rest: float) -> None:
    one = pulse(chance)
    fail(one, 0.0, 0.0, 0.0)
    assert one.again_at == pytest.approx(rest * REST)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.0, 20.0), st.sampled_from(("ask", "answer", "fail", "miss", "take", "leave"))), max_size=40),
    st.floats(0.0, 1.0),
)
def test_whatever_comes_it_is_tried_within_the_longest_rest_and_an_answer_ends_it(
    steps: list[tuple[float, str]], chance: float
) -> None:
    one, now, under = pulse(chance), 0.0, []
    for after, what in steps:
        now += after
        if what == "ask" or (what == "take" and one.take(now)):
            one.asked(now)
            under.append(now)
        elif what == "miss":
            one.missed(now)
        elif under and what == "leave":
            under.pop()
            one.left()
        elif under and what == "fail":
            one.failed("no", now, under.pop(0))
        elif under and what == "answer":
            one.answered(now, under.pop(0))
            assert (one.out, one.row) == (False, 0)
        assert not one.out or one.again_at <= now + (1 + EITHER_WAY) * LONGEST_REST
        assert one.out or one.row < ROW
        assert bool(one.said(now)) >= one.out
    if one.out:
        assert one.take(now + (1 + EITHER_WAY) * LONGEST_REST)


# Asking by it


Story = Callable[[Virtual, Pulse, Patience], Awaitable[None]]


def play(story: Story) -> None:
    async def told(loop: Virtual) -> None:
        one = pulse()
        await story(loop, one, Patience(one, loop.time))

    loop = Virtual()
    try:
        loop.run_until_complete(told(loop))
    finally:
        loop.close()


async def refused(patience: Patience, ask: Callable[[], Awaitable[object]], seconds: float = 2.0) -> Code:
    with pytest.raises(SitsError) as caught:
        await patience.within(ask, seconds)
    return caught.value.code


def test_a_model_that_hangs_is_waited_for_once_and_what_it_says_late_brings_it_back() -> None:
    async def story(loop: Virtual, one: Pulse, patience: Patience) -> None:
        go, said = asyncio.Event(), []

        async def hangs(texts: object) -> object:
            await go.wait()
            said.append(texts)
            return texts

        ask = watched(hangs, one, loop.time)  # type: ignore[arg-type]
        assert (await refused(patience, lambda: ask(["a"])), loop.time()) == (Code.UPSTREAM_TIMEOUT, 2.0)
        assert (await refused(patience, lambda: ask(["b"])), loop.time()) == (Code.MODEL_UNAVAILABLE, 2.0)
        await asyncio.sleep(1.0)
        # A try is a short one, and there is one only.
        assert (await refused(patience, lambda: ask(["c"])), loop.time()) == (Code.MODEL_UNAVAILABLE, 3.0 + TRY_SECONDS)
        assert (await refused(patience, lambda: ask(["d"])), loop.time()) == (Code.MODEL_UNAVAILABLE, 3.0 + TRY_SECONDS)
        go.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (said, one.out) == ([["a"], ["c"]], False)
        assert await patience.within(lambda: ask(["e"]), 2.0) == ["e"]
        await patience.aclose()

    play(story)


def test_a_model_that_is_well_again_answers_the_try() -> None:
    async def story(loop: Virtual, one: Pulse, patience: Patience) -> None:
        fault: list[SitsError] = [SitsError(Code.UPSTREAM_ERROR, "500")]

        async def answers(texts: object) -> object:
            if fault:
                raise fault[0]
            return texts

        ask = watched(answers, one, loop.time)  # type: ignore[arg-type]
        codes = [await refused(patience, lambda: ask(["a"])) for _ in range(4)]
        assert codes == [Code.UPSTREAM_ERROR] * 3 + [Code.MODEL_UNAVAILABLE]
        fault.clear()
        await asyncio.sleep(1.0)
        assert await patience.within(lambda: ask(["b"]), 2.0) == ["b"]

    play(story)


def test_all_who_wait_are_told_when_it_is_left_alone_and_few_questions_stay() -> None:
    async def story(loop: Virtual, one: Pulse, patience: Patience) -> None:
        under: list[object] = []

        async def hangs(texts: object) -> object:
            under.append(texts)
            try:
                await asyncio.Event().wait()
            finally:
                under.remove(texts)
            return texts

        ask = watched(hangs, one, loop.time)  # type: ignore[arg-type]
        many = [asyncio.create_task(refused(patience, lambda at=at: ask([at]), 2.0 + at)) for at in range(QUERIES)]  # type: ignore[misc]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert await refused(patience, lambda: ask(["over"])) == Code.MODEL_UNAVAILABLE
        codes = await asyncio.gather(*many[LATE:])
        assert (loop.time(), set(codes), len(under)) == (2.0, {Code.MODEL_UNAVAILABLE}, LATE)
        await asyncio.gather(*many)
        await patience.aclose()
        await patience.aclose()
        assert under == []

    play(story)
