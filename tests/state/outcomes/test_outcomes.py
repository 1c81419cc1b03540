"""Outcomes: joined once, by whoever may, in time; asked again is seen; what was learned is there after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.gateway.feedback_pages import FeedbackPages
from sits.gateway.pages import Visit
from sits.gateway.wire import Request
from sits.inner.errors import Code, SitsError
from sits.ports.store.memory import Away, MemoryStore
from sits.resources.complexity import ComplexitySpec, LearningSpec, OutcomeWeights, TierSpec, TiersSpec
from sits.routing.complexity import TIERS
from sits.routing.learning import Choice, Decision
from sits.security.keys import KeyIdentity
from sits.state.outcomes import Awaiting, Declared, Outcome, Outcomes, Retries, judged, labelled, parse, together
from sits.state.outcomes.awaiting import REMEMBERED
from sits.state.outcomes.judge import Tally, mark, prompt
from sits.state.outcomes.outcome import KINDS

ANY = TierSpec(labels={"a": "b"})
SPEC = ComplexitySpec(tiers=TiersSpec(ANY, ANY, ANY), learning=LearningSpec(wait_seconds=60.0))
KEY = KeyIdentity("k")
DECISION = Decision(0.5, 0.5, TIERS, Choice("base", 0.9, (0.05, 0.9, 0.05), "base"), "base")


def awaiting(most: int = 100) -> Awaiting:
    return Awaiting(60.0, OutcomeWeights(), most)


def test_outcomes_are_weighed_together() -> None:
    weights = OutcomeWeights(feedback=1.0, guard=0.5, retry=0.0, judge=0.5)
    assert together({"feedback": 1.0, "guard": -1.0, "retry": -1.0}, weights) == pytest.approx(1 / 3)
    assert together({"retry": -1.0}, weights) is None
    assert together({}, weights) is None


@pytest.mark.parametrize(("label", "score"), [("up", 1.0), ("down", -1.0), ("pass", 1.0), ("flag", -0.5), ("block", -1.0)])
def test_words_have_scores(label: str, score: float) -> None:
    assert labelled("r", "guard", label, 2.0) == Outcome("r", "guard", score, 2.0)


def test_a_word_that_means_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="'meh' is not one of"):
        labelled("r", "guard", "meh", 0.0)


def test_a_decision_is_learned_from_once_with_the_last_word_of_each_kind() -> None:
    waiting = awaiting()
    waiting.add("r", "k", DECISION, 0.0)
    said = [waiting.heard(Outcome("r", "feedback", score, 1.0)) for score in (1.0, 1.0, -1.0)]
    assert said == ["counted", "repeated", "changed"]
    assert waiting.due(59.9) == []
    (settled,) = waiting.due(60.0)
    assert (settled.request_id, settled.score) == ("r", -1.0)
    assert waiting.due(1000.0) == []
    assert waiting.heard(Outcome("r", "judge", 1.0, 61.0)) == "late"
    assert waiting.heard(Outcome("r", "feedback", -1.0, 61.0)) == "repeated"
    assert waiting.due(2000.0) == []


def test_what_nothing_was_known_of_is_learned_from_late() -> None:
    waiting = awaiting()
    waiting.add("r", "k", DECISION, 0.0)
    assert waiting.due(60.0) == []
    assert waiting.heard(Outcome("r", "feedback", 1.0, 5000.0)) == "counted"
    assert [one.score for one in waiting.due(5000.0)] == [1.0]
    assert waiting.tally.silent == 1


def test_a_decision_is_forgotten_in_the_end() -> None:
    waiting = awaiting()
    waiting.add("r", "k", DECISION, 0.0)
    waiting.due(60.0)
    waiting.due(60.0 + REMEMBERED)
    assert waiting.heard(Outcome("r", "feedback", 1.0, 0.0)) is None


def test_not_being_asked_again_is_good_only_where_it_would_be_known() -> None:
    waiting = awaiting()
    waiting.add("seen", "k", DECISION, 0.0, watched=True)
    waiting.add("again", "k", DECISION, 0.0, watched=True)
    waiting.add("unseen", None, DECISION, 0.0)
    waiting.heard(Outcome("again", "retry", -1.0, 1.0))
    assert [(one.request_id, one.score) for one in waiting.due(60.0)] == [("seen", 1.0), ("again", -1.0)]


def test_a_request_that_failed_teaches_nothing() -> None:
    waiting = awaiting()
    waiting.add("r", "k", DECISION, 0.0, watched=True)
    waiting.forget("r")
    assert waiting.due(100.0) == []
    assert waiting.heard(Outcome("r", "feedback", 1.0, 0.0)) is None


def test_an_id_that_is_used_again_ends_the_earlier_decision() -> None:
    waiting = awaiting()
    waiting.add("r", "k", DECISION, 0.0)
    waiting.heard(Outcome("r", "feedback", 1.0, 1.0))
    waiting.add("r", "k", DECISION, 2.0)
    waiting.heard(Outcome("r", "feedback", -1.0, 3.0))
    assert [one.score for one in waiting.due(100.0)] == [1.0, -1.0]


@settings(max_examples=60, deadline=None)
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("add"), st.integers(0, 9)),
            st.tuples(st.just("hear"), st.integers(0, 9), st.sampled_from(KINDS), st.sampled_from([-1.0, 0.5, 1.0])),
            st.tuples(st.just("due"), st.floats(0, 90)),
        ),
        max_size=60,
    )
)
def test_no_decision_is_learned_from_twice_and_nothing_grows(steps: list[tuple]) -> None:
    waiting = awaiting(most=4)
    now, made, learned = 0.0, 0, 0
    for step in steps:
        if step[0] == "add":
            waiting.add(f"r{step[1]}", "k", DECISION, now)
            made += 1
        elif step[0] == "hear":
            waiting.heard(Outcome(f"r{step[1]}", step[2], step[3], now))
        else:
            now += step[1]
            found = waiting.due(now)
            learned += len(found)
            assert all(-1.0 <= one.score <= 1.0 for one in found)
        assert len(waiting) <= 4
        assert len(waiting._over) <= 4
    learned += len(waiting.due(now + 1000.0))
    assert learned == waiting.tally.settled <= made


@pytest.mark.parametrize(
    ("first", "second", "after", "seen"),
    [
        ("How do I reset my router at home", "how do i reset my router at home?", 30.0, True),
        ("How do I reset my router at home", "How do I reset my router at home please", 30.0, True),
        ("怎么重置家里的路由器", "怎么重置家里的路由器?", 30.0, True),
        ("How do I reset my router at home", "What is the capital of France today", 30.0, False),
        ("How do I reset my router at home", "How do I reset my router at home", 121.0, False),
        ("yes", "yes", 1.0, False),
    ],
    ids=["the same", "nearly", "chinese", "something else", "much later", "too short"],
)
def test_asking_nearly_the_same_again_soon_is_a_retry(first: str, second: str, after: float, seen: bool) -> None:
    retries = Retries()
    assert retries.asked("k", "one", first, 0.0) is None
    assert retries.asked("other", "x", second, after) is None
    assert retries.asked("k", "two", second, after) == ("one" if seen else None)


def test_a_program_that_sends_the_same_text_all_the_time_is_no_person() -> None:
    retries = Retries()
    found = [retries.asked("k", str(at), "count the items of this list", float(at)) for at in range(10)]
    assert found == [None, "0", "1", *[None] * 7]


def test_keys_have_a_cap() -> None:
    retries = Retries(most=3)
    for at in range(10):
        retries.asked(f"k{at}", "r", "one two three four", 0.0)
    assert len(retries) == 3


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b'{"score": 1}', "request_id"),
        (b'{"request_id": "", "score": 1}', "request_id"),
        (b'{"request_id": 5, "score": 1}', "request_id"),
        (b'{"request_id": "r"}', "score"),
        (b'{"request_id": "r", "score": 1, "thumbs": "up"}', "score"),
        (b'{"request_id": "r", "score": 1.01}', "score"),
        (b'{"request_id": "r", "score": true}', "score"),
        (b'{"request_id": "r", "score": "1"}', "score"),
        (b'{"request_id": "r", "thumbs": "sideways"}', "thumbs"),
        (b'{"request_id": "r", "thumbs": ["up"]}', "thumbs"),
        (b'{"request_id": "r", "score": 1, "rating": 5}', "rating"),
        (b'{"request_id": "r", "score": 1, "comment": 5}', "comment"),
    ],
)
def test_feedback_that_cannot_be_read_says_which_field(body: bytes, param: str | None) -> None:
    with pytest.raises(SitsError) as caught:
        parse(body)
    assert (caught.value.code, caught.value.status, caught.value.param) == (Code.INVALID_REQUEST, 400, param)


@settings(max_examples=60, deadline=None)
@given(body=st.binary(max_size=60))
def test_any_body_is_feedback_or_a_clear_refusal(body: bytes) -> None:
    try:
        score, status = parse(body).score, 200
    except SitsError as error:
        score, status = 0.0, error.status
    assert status in (200, 400)
    assert -1.0 <= score <= 1.0


@pytest.mark.parametrize(("given", "score"), [({"score": 0.5}, 0.5), ({"score": -1}, -1.0), ({"thumbs": "down"}, -1.0)])
def test_feedback_is_read(given: dict[str, object], score: float) -> None:
    assert parse(msgspec.json.encode({"request_id": "r", "comment": "太长", **given})).score == score


@pytest.mark.parametrize(
    ("said", "score"),
    [
        ("Score: 10", 1.0),
        ("7", 1 / 3),
        ("8/10", 5 / 9),
        ("评分\uff1a1", -1.0),
        ("no idea", None),
        ("Score: 3 or Score: 9", None),
        ("11", None),
    ],
)
def test_a_judge_is_understood_or_not_counted(said: str, score: float | None) -> None:
    assert mark(said) == (None if score is None else pytest.approx(score))


def test_a_judge_that_cannot_be_asked_is_counted() -> None:
    async def fine(question: str, answer: str) -> str:
        return "Score: 10" if "4" in answer and "2+2" in question else "?"

    async def broken(question: str, answer: str) -> str:
        raise SitsError(Code.UPSTREAM_UNREACHABLE, "nobody there")

    async def story() -> None:
        tally = Tally()
        assert await judged(fine, "r", "2+2", "4", 1.0, tally) == Outcome("r", "judge", 1.0, 1.0)
        assert await judged(fine, "r", "2+2", "5", 1.0, tally) is None
        assert await judged(broken, "r", "2+2", "4", 1.0, tally) is None
        assert tally == Tally(asked=3, marked=1, unclear=1, failed=1)

    asyncio.run(story())
    assert "2+2" in prompt("2+2", "4")


def declared(name: str = "w") -> Outcomes:
    outcomes = Outcomes(name)
    outcomes.declare({"chat": Declared(SPEC), "plain": Declared(ComplexitySpec())})
    return outcomes


def decide(outcomes: Outcomes, request_id: str, now: float = 0.0, key: str | None = "k") -> Decision:
    return outcomes.decide("chat", request_id, key, 0.5, 0.5, TIERS, 0.5, now)


def test_a_whole_course_from_decision_to_learning() -> None:
    outcomes = declared()
    decide(outcomes, "one")
    outcomes.asked("chat", "k", "one", "how do I reset my router", 0.0)
    decide(outcomes, "two", 5.0)
    outcomes.asked("chat", "k", "two", "how do I reset my router", 5.0)
    assert outcomes.heard(Outcome("two", "feedback", 1.0, 6.0), "k", admin=False) == "counted"
    assert outcomes.tick(30.0) == 0
    assert outcomes.tick(65.0) == 2
    route = outcomes.status()["routes"]["chat"]
    assert (route["outcomes"], route["retries"], route["waiting"]) == (2, 1, 0)
    assert list(outcomes.status()["routes"]) == ["chat"]


def test_only_who_asked_and_administrators_may_say_how_it_was() -> None:
    outcomes = declared()
    decide(outcomes, "r")
    said = Outcome("r", "feedback", 1.0, 1.0)
    assert outcomes.heard(said, "thief", admin=False) is None
    assert outcomes.heard(said, None, admin=False) is None
    assert outcomes.heard(said, "k", admin=False) == "counted"
    assert outcomes.heard(said, "boss", admin=True) == "repeated"


def test_a_route_that_is_declared_as_before_goes_on_and_another_begins_anew() -> None:
    outcomes = declared()
    decide(outcomes, "r")
    outcomes.heard(Outcome("r", "feedback", 1.0, 1.0))
    outcomes.tick(100.0)
    outcomes.declare({"chat": Declared(SPEC)})
    assert outcomes.status()["routes"]["chat"]["outcomes"] == 1
    waits = msgspec.structs.replace(SPEC, learning=LearningSpec(wait_seconds=5.0))
    outcomes.declare({"chat": Declared(waits)})
    assert outcomes.status()["routes"]["chat"]["outcomes"] == 1  # the same rewards: what was learned stays
    outcomes.declare({"chat": Declared(msgspec.structs.replace(SPEC, alpha=0.1))})
    assert outcomes.status()["routes"]["chat"]["outcomes"] == 0
    outcomes.declare({})
    assert not outcomes.any


def test_what_was_learned_is_there_after_a_restart_and_an_outage_loses_nothing() -> None:
    async def story() -> None:
        store = MemoryStore()
        first = declared()
        for at in range(5):
            decide(first, f"r{at}")
            first.heard(Outcome(f"r{at}", "feedback", 1.0, 1.0))
        first.tick(100.0)
        store.away = Away.BEFORE
        assert not await first.save(store)
        assert first.trouble
        store.away = None
        assert await first.save(store)
        assert first.trouble == ""
        again, other = declared(), declared("another worker")
        await again.load(store)
        await other.load(store)
        assert again.status()["routes"]["chat"]["expected"] == first.status()["routes"]["chat"]["expected"]
        assert other.status()["routes"]["chat"]["outcomes"] == 5, "who is new goes on from what the others have learned"
        decide(other, "mine")
        other.heard(Outcome("mine", "feedback", -1.0, 1.0))
        other.tick(200.0)
        assert await other.save(store)
        both = [declared(), declared("another worker")]
        for one in both:
            await one.load(store)
        assert [one.status()["routes"]["chat"]["outcomes"] for one in both] == [5, 6], "its own comes before the others'"
        await store.aclose()

    asyncio.run(story())


def test_all_learn_from_what_each_was_told() -> None:
    one, other = declared(), declared("other")
    one.shared = True
    for at in range(40):
        decide(one, f"r{at}")
        one.heard(Outcome(f"r{at}", "feedback", 1.0 if at % 3 else -1.0, 1.0))
    assert one.tick(100.0) == 40
    other.hear(one.told())
    assert one.told() == b"", "everything is told once"
    assert other.status()["routes"]["chat"]["outcomes"] == 40
    assert other.status()["routes"]["chat"]["expected"] == one.status()["routes"]["chat"]["expected"]
    assert other.told() == b"", "what was heard is not told on"


def test_nobody_learns_by_other_terms_or_from_what_cannot_be_read() -> None:
    one, other = declared(), Outcomes("other")
    learning = LearningSpec(wait_seconds=60.0, signals=OutcomeWeights(feedback=0.5))
    other.declare({"chat": Declared(ComplexitySpec(tiers=TiersSpec(ANY, ANY, ANY), learning=learning))})
    one.shared = True
    decide(one, "r")
    one.heard(Outcome("r", "feedback", 1.0, 1.0))
    one.tick(100.0)
    other.hear(one.told())
    assert (other.status()["routes"]["chat"]["outcomes"], other.trouble) == (0, "")
    other.hear(b"\x91\x01")
    assert "cannot be read" in other.trouble


def test_who_is_alone_tells_nothing() -> None:
    one = declared()
    decide(one, "r")
    one.heard(Outcome("r", "feedback", 1.0, 1.0))
    one.tick(100.0)
    assert one.told() == b""


def test_what_cannot_be_read_is_said_and_left_alone() -> None:
    async def story() -> None:
        from sits.ports.store.base import Put

        store = MemoryStore()
        await store.commit([Put("learning/w/chat", b'{"terms": 5}')])
        outcomes = declared()
        await outcomes.load(store)
        assert "'chat' cannot be read" in outcomes.trouble
        assert outcomes.status()["routes"]["chat"]["outcomes"] == 0
        await store.aclose()

    asyncio.run(story())


class _Others:
    def __init__(self, *others: Callable[[str], bytes]) -> None:
        self.others = others
        self.asked: list[str] = []

    async def ask(self, question: str) -> tuple[list[bytes], int]:
        self.asked.append(question)
        return [other(question.partition(" ")[2]) for other in self.others], 0


def visit(body: bytes, key: KeyIdentity | None) -> Visit:
    return Visit(Request(b"POST", b"/v1/feedback", b"", {}, body, "", 0.0), "id", key, "")


def test_feedback_is_taken_here_or_by_the_worker_that_decided() -> None:
    async def story() -> None:
        mine, others = declared(), declared()
        decide(mine, "here")
        decide(others, "there")
        there = FeedbackPages(others, lambda: _Others())  # type: ignore[arg-type, return-value]
        siblings = _Others(lambda question: b"-", there.here)
        pages = FeedbackPages(mine, lambda: siblings, lambda: 1.0)  # type: ignore[arg-type, return-value]
        owner, thief = KEY, msgspec.structs.replace(KEY, name="thief")
        answers = [
            await pages.give(visit(f'{{"request_id":"{name}","thumbs":"up"}}'.encode(), owner)) for name in ("here", "there")
        ]
        assert [(answer.status, msgspec.json.decode(answer.body)["status"]) for answer in answers] == [(200, "counted")] * 2
        again = await pages.give(visit(b'{"request_id":"there","thumbs":"up"}', owner))
        assert msgspec.json.decode(again.body) == {"request_id": "there", "status": "repeated"}
        assert len(siblings.asked) == 2
        for key, name in ((thief, "here"), (owner, "nowhere")):
            with pytest.raises(SitsError) as caught:
                await pages.give(visit(f'{{"request_id":"{name}","score":0.5}}'.encode(), key))
            assert (caught.value.code, caught.value.status) == (Code.NOT_FOUND, 404)
        shown = await pages.show(visit(b"", owner))
        assert msgspec.json.decode(shown.body)["routes"]["chat"]["tally"]["counted"] == 1

    asyncio.run(story())
