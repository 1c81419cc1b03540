"""The reader: quick verdicts at once, deep ones in batches, and a verdict for everybody whatever becomes of the deep stage."""

from __future__ import annotations

import asyncio
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
from sits.state.intent.reader import Reader


class Length:
    """Embeds a text as its length: long ones are of the domain, short ones unsure."""

    name, version, dimension = "length", "1", 1

    def embed(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([[float(len(text))] for text in texts], dtype=np.float32)


class Deep:
    """Embeds everything as 1, when it is let go; counts batches."""

    def __init__(self, fault: SitsError | None = None) -> None:
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


def test_quick_verdicts_stand_when_the_deep_stage_fails_and_it_is_asked_again() -> None:
    async def story() -> None:
        deep = Deep(SitsError(Code.UPSTREAM_BROKEN, "gone"))
        deep.go.set()
        asked = Reader(intent(), Length(), deep)
        found = await waits(asked.read("abc"))
        assert (found.stage, found.confidence) == ("quick", pytest.approx(0.5))
        assert asked.shed == 1
        again = await waits(asked.read("abc"))
        assert (again, len(deep.batches)) == (found, 2)
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
        assert (asked.shed, asked.trouble) == (0, "")
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


def test_a_long_text_is_read_to_its_limit() -> None:
    async def story() -> None:
        asked = Reader(intent(), Length(), Deep())
        first = asked.read("甲" * 5000)
        assert asked.read("甲" * 4000) is first
        await asked.aclose()

    asyncio.run(story())
