"""The reader: quick verdicts at once, deep ones in batches, and a verdict for everybody whatever becomes of the deep stage."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import numpy as np
import pytest

from sits.inner.errors import Code, SitsError
from sits.routing.intent.head import Head
from sits.routing.intent.intent import TOKENS, Intent
from sits.routing.intent.tune import Tuning
from sits.routing.intent.verdict import Scale, Verdict
from sits.routing.intent.words import SIZE
from sits.state.intent import reader
from sits.state.intent.pulse import Pulse
from sits.state.intent.reader import LATE, Reader


class Length:
    """Embeds a text as its length: long ones are of the domain, short ones unsure."""

    name, version, dimension = "length", "1", 1

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[float(len(text))] for text in texts], dtype=np.float32)


class Deep:
    """Embeds everything as 1, when it is let go; counts batches."""

    def __init__(self, fault: Exception | None = None) -> None:
        self.batches: list[list[str]] = []
        self.go, self.begun = asyncio.Event(), asyncio.Event()
        self._fault = fault

    async def __call__(self, texts: Sequence[str]) -> np.ndarray:
        self.batches.append(list(texts))
        self.begun.set()
        await self.go.wait()
        if self._fault is not None:
            raise self._fault
        return np.ones((len(texts), 1), dtype=np.float32)

    def mend(self) -> None:
        self._fault = None


def intent() -> Intent:
    """Quick: log-odds of length - 3 for `law`. Deep: surely `law`."""
    quick, deep = np.zeros((1 + SIZE, 2), dtype=np.float32), np.zeros((2 + SIZE, 2), dtype=np.float32)
    quick[0, 0], deep[0, 0] = 1.0 / TOKENS, 9.0
    bias = np.zeros(2, dtype=np.float32)
    heads = Head(quick, np.array([-3, 0], dtype=np.float32)), Head(deep, bias)
    example = np.ones((1, 1), dtype=np.float32)
    return Intent(("law",), (None,), *heads, example, np.array([0]), Tuning(Scale(1.0, 0.0), Scale(1.0, 0.5), safe=0.95))


def waits(found: Verdict | asyncio.Future[Verdict]) -> asyncio.Future[Verdict]:
    assert isinstance(found, asyncio.Future)
    return found


def test_a_sure_quick_verdict_is_there_at_once_and_kept() -> None:
    async def story() -> None:
        deep = Deep()
        asked = Reader(intent(), Length(), deep)
        found = asked.read("a long question")
        assert isinstance(found, Verdict)
        assert (found.domain, found.stage) == ("law", "quick")
        assert asked.read("a long question") is found
        assert (asked.quick, asked.asked, deep.batches) == (1, 0, [])
        await asked.aclose()

    asyncio.run(story())


def test_unsure_ones_are_asked_about_together_and_then_kept() -> None:
    async def story() -> None:
        deep = Deep()
        asked = Reader(intent(), Length(), deep)
        first, second = waits(asked.read("abc")), waits(asked.read("法律吗"))
        deep.go.set()
        found = await asyncio.gather(first, second)
        assert [(one.domain, one.stage) for one in found] == [("law", "deep")] * 2
        assert deep.batches == [["abc", "法律吗"]]
        assert asked.read("abc") == found[0]
        assert (asked.quick, asked.asked, asked.shed) == (0, 2, 0)
        await asked.aclose()

    asyncio.run(story())


@pytest.mark.parametrize("fault", [SitsError(Code.UPSTREAM_BROKEN, "gone"), ValueError("a defect")], ids=["away", "a defect"])
def test_quick_verdicts_stand_when_the_deep_stage_fails_and_it_is_asked_again(fault: Exception) -> None:
    async def story() -> None:
        deep = Deep(fault)
        deep.go.set()
        asked = Reader(intent(), Length(), deep)
        found = await waits(asked.read("abc"))
        assert (found.stage, found.confidence) == ("quick", pytest.approx(0.5))
        assert asked.shed == 1
        again = await waits(asked.read("abc"))
        assert (again, len(deep.batches)) == (found, 2)
        await asked.aclose()

    asyncio.run(story())


def test_who_waits_for_the_next_batch_is_answered_when_a_defect_ends_the_one_before() -> None:
    async def story() -> None:
        deep = Deep(ValueError("a defect"))
        asked = Reader(intent(), Length(), deep)
        first = waits(asked.read("abc"))
        await deep.begun.wait()
        second = waits(asked.read("xyz"))
        deep.go.set()
        assert [(await one).stage for one in (first, second)] == ["quick", "quick"]
        assert deep.batches == [["abc"], ["xyz"]]
        await asked.aclose()

    asyncio.run(story())


def test_beyond_what_may_wait_the_quick_verdict_stands_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "WAITING", 2)

    async def story() -> None:
        deep = Deep()
        asked = Reader(intent(), Length(), deep)
        kept = [waits(asked.read(text)) for text in ("a", "b")]
        over = asked.read("c")
        assert isinstance(over, Verdict)
        assert (over.stage, asked.shed) == ("quick", 1)
        deep.go.set()
        assert [one.stage for one in await asyncio.gather(*kept)] == ["deep", "deep"]
        await asked.aclose()

    asyncio.run(story())


def test_whoever_waits_long_enough_has_the_quick_verdict_and_the_deep_one_is_kept_when_it_comes() -> None:
    async def story() -> None:
        deep = Deep()
        asked = Reader(intent(), Length(), deep)
        waiting = waits(asked.read("abc", 0.01))
        assert (await waiting).stage == "quick"
        assert (asked.shed, deep.batches) == (1, [["abc"]])
        deep.go.set()
        late = waits(asked.read("abd", 60.0))
        assert (await late).stage == "deep"
        assert asked.look("abc") == late.result()
        await asked.aclose()

    asyncio.run(story())


def test_looking_says_nothing_of_what_the_quick_stage_is_unsure_of_and_reading_goes_on_from_there() -> None:
    class Counting(Length):
        count = 0

        def embed(self, texts: Sequence[str]) -> np.ndarray:
            Counting.count += len(texts)
            return super().embed(texts)

    async def story() -> None:
        deep = Deep()
        deep.go.set()
        asked = Reader(intent(), Counting(), deep)
        assert asked.look("abc") is None
        assert (await waits(asked.read("abc"))).stage == "deep"
        assert Counting.count == 1
        assert asked.look("abc") is not None
        sure = asked.look("a long question")
        assert sure is not None
        assert sure.stage == "quick"
        assert (asked.quick, asked.asked, asked.kept) == (1, 1, 1)
        await asked.aclose()

    asyncio.run(story())


def test_votes_are_asked_for_and_done_without_where_they_cannot_be_had() -> None:
    rows: list[float] = []

    async def votes(row: np.ndarray) -> list[tuple[str | None, float]]:
        rows.append(float(row[0]))
        if len(rows) == 1:
            return [(None, 1.0)] * 16
        raise SitsError(Code.STATE_UNAVAILABLE, "the index is away")

    async def story() -> None:
        deep = Deep()
        deep.go.set()
        asked = Reader(intent(), Length(), deep, votes=votes)
        against, without = await waits(asked.read("abc")), await waits(asked.read("abd"))
        assert (against.stage, without.stage, rows) == ("deep", "deep", [1.0, 1.0])
        one = np.ones(1, dtype=np.float32)
        assert against.confidence < without.confidence == intent().deeply("", one, one).confidence
        assert (asked.shed, asked.rested) == (0, 0)
        await asked.aclose()

    asyncio.run(story())


def test_whoever_no_longer_waits_is_not_asked_about() -> None:
    async def story() -> None:
        deep = Deep()
        asked = Reader(intent(), Length(), deep)
        gone, stays = waits(asked.read("abc")), waits(asked.read("abd"))
        gone.cancel()
        deep.go.set()
        assert (await stays).stage == "deep"
        assert deep.batches == [["abd"]]
        await asked.aclose()

    asyncio.run(story())


def test_closing_leaves_nobody_waiting() -> None:
    async def story() -> None:
        deep = Deep()
        asked = Reader(intent(), Length(), deep)
        waiting = [waits(asked.read(chr(97 + at))) for at in range(20)] + [
            waits(asked.read("x" + chr(97 + at))) for at in range(20)
        ]
        await deep.begun.wait()
        await asked.aclose()
        assert {one.result().stage for one in waiting} == {"quick"}
        assert asked.shed == 40
        await asked.aclose()

    asyncio.run(story())


def test_of_long_texts_what_is_wanted_is_read_and_known_again() -> None:
    async def story() -> None:
        deep = Deep()
        deep.go.set()
        asked = Reader(intent(), Length(), deep)
        found = asked.read("able to sue?\n\n" + "the goods are delivered. " * 200)
        assert isinstance(found, Verdict)
        assert (found.stage, deep.batches) == ("quick", [])
        assert asked.read("able to sue?\n\n" + "another text altogether, and a long one; " * 100) == found
        assert (asked.quick, asked.kept) == (1, 1)
        await asked.aclose()

    asyncio.run(story())


def test_what_would_come_too_late_is_not_waited_for_and_asked_behind_once_in_a_while() -> None:
    async def story() -> None:
        deep = Deep()
        here = Clocked(deep)
        first = waits(here.reader.read("abc", 5.0))
        await deep.begun.wait()
        here.now += 0.8
        deep.go.set()
        assert (await first).stage == "deep"
        assert [type(here.reader.read(text, 0.1)) for text in ("abd", "abe")] == [Verdict, Verdict]
        assert (await until_looked(here.reader, "abd")).stage == "deep"
        assert (here.reader.shed, deep.batches, here.pulse.out) == (2, [["abc"], ["abd"]], False)
        # It was quick by now, so it is waited for again.
        assert (await waits(here.reader.read("abz", 0.1))).stage == "deep"
        await here.reader.aclose()

    asyncio.run(story())


# While the model is left alone


class Clocked:
    """A reader whose clock is ours."""

    def __init__(self, deep: Deep) -> None:
        self.now = 100.0
        self.pulse = Pulse("bge-m3", lambda: 0.5)
        self.reader = Reader(intent(), Length(), deep, pulse=self.pulse, clock=lambda: self.now)

    async def in_vain(self, text: str) -> Verdict:
        """Read by somebody who waits for as good as nothing, and who finds that it was for nothing."""
        found = self.reader.read(text, 0.0)
        return found if isinstance(found, Verdict) else await found


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def test_while_the_model_says_nothing_the_quick_verdict_stands_at_once_and_late_answers_are_kept() -> None:
    async def story() -> None:
        deep = Deep()
        here = Clocked(deep)
        asked = here.reader
        patient = waits(asked.read("abc"))
        await settled()
        for here.now, out in ((100.5, False), (100.9, False), (101.0, True)):
            assert (await here.in_vain("abd")).stage == "quick"
            assert here.pulse.out == out
        assert (await patient).stage == "quick", "whoever waits is told when it is left alone"
        assert (asked.shed, asked.rested, deep.batches) == (4, 0, [["abc"]])
        here.now = 101.9
        assert [type(asked.read(text, 9.0)) for text in ("abe", "abf")] == [Verdict, Verdict]
        # One tries, and does not wait either.
        here.now = 102.1
        assert [type(asked.read(text, 9.0)) for text in ("abg", "abh")] == [Verdict, Verdict]
        await settled()
        assert (asked.shed, asked.rested, deep.batches) == (4, 4, [["abc"], ["abg"]])
        deep.go.set()
        assert (await until_looked(asked, "abc")).stage == "deep"
        assert (await until_looked(asked, "abg")).stage == "deep"
        assert (here.pulse.out, here.pulse.said(here.now)) == (False, "")
        assert (await waits(asked.read("abi", 9.0))).stage == "deep"
        await asked.aclose()

    asyncio.run(story())


async def until_looked(asked: Reader, text: str) -> Verdict:
    """What is kept of a text as soon as it is: a thread works on it."""
    end = time.monotonic() + 60
    while (found := asked.look(text)) is None:
        assert time.monotonic() < end, f"{text} was not read in a minute"
        await asyncio.sleep(0.002)
    return found


def test_failures_in_a_row_cost_only_the_first_requests_anything() -> None:
    async def story() -> None:
        deep = Deep(SitsError(Code.UPSTREAM_ERROR, "bge-m3 answers 500"))
        deep.go.set()
        here = Clocked(deep)
        for text in ("a", "b", "c"):
            assert (await waits(here.reader.read(text))).stage == "quick"
        assert here.pulse.out
        found = [here.reader.read(text) for text in ("d", "e")]
        assert [type(one) for one in found] == [Verdict, Verdict]
        assert (here.reader.shed, here.reader.rested, len(deep.batches)) == (3, 2, 3)
        assert here.pulse.said(here.now).startswith("bge-m3 answers 500; it is left alone")
        here.now += 1.0
        deep.mend()
        assert isinstance(here.reader.read("ab"), Verdict)
        assert (await until_looked(here.reader, "ab")).stage == "deep"
        assert not here.pulse.out
        await here.reader.aclose()

    asyncio.run(story())


def test_tries_that_all_hang_are_few_and_closing_ends_them() -> None:
    async def story() -> None:
        deep = Deep()
        here = Clocked(deep)
        waits(here.reader.read("abc"))
        await settled()
        here.now += 1.0
        await here.in_vain("abd")
        for number in range(12):
            here.now += 100.0
            here.reader.read("x" + chr(97 + number))
            await settled()
        assert len(deep.batches) == 13
        assert len([task for task in asyncio.all_tasks() if task.get_name() == "intent"]) == LATE + 1
        await here.reader.aclose()
        assert [task for task in asyncio.all_tasks() if task.get_name() == "intent"] == []

    asyncio.run(story())


def test_a_slow_model_is_never_left_alone_and_everything_it_says_is_kept() -> None:
    async def story() -> None:
        deep = Deep()
        here = Clocked(deep)
        texts = [f"a{chr(98 + at)}" for at in range(8)]
        for text in texts:
            assert (await here.in_vain(text)).stage == "quick"
            await settled()
            here.now += 0.8
            assert (await here.in_vain(text)).stage == "quick"
            deep.go.set()
            assert (await until_looked(here.reader, text)).stage == "deep"
            deep.go.clear()
            assert not here.pulse.out
            here.now += 1.0
        assert (here.reader.rested, deep.batches) == (0, [[text] for text in texts])
        await here.reader.aclose()

    asyncio.run(story())
