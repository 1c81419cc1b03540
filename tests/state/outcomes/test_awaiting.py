"""Decisions that wait: each is known by its id and key, is not closed before its answer is over, and teaches once at the most."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from outcomes_kit import decision

from sits.resources.complexity import OutcomeWeights
from sits.routing.learning import Decision
from sits.state.outcomes import Awaiting, Kind, Pending, Room, Settled, together
from sits.state.outcomes.awaiting import MOST_CHANGES, MOST_OVER, MOST_READY, REMEMBERED, Tally

WINDOW = 20.0
"""Seconds after an answer in which asking again is seen, here."""


def awaiting(most: int = 100) -> Awaiting:
    return Awaiting(60.0, OutcomeWeights(), Room(most), WINDOW)


def answered(waiting: Awaiting, request_id: str, at: float = 0.0, key: str | None = "k", *, watched: bool = False) -> Pending:
    """A request that was decided on and answered at once."""
    made = decision()
    pending = waiting.add(request_id, key, made, at)
    assert pending is not None
    pending.watched = watched
    waiting.ended(made, True, at)
    return pending


def hear(waiting: Awaiting, request_id: str, score: float, kind: Kind = "feedback", key: str | None = "k") -> str | None:
    pending = waiting.find(request_id, key)
    return None if pending is None else waiting.heard(pending, kind, score)


def due(waiting: Awaiting, now: float) -> list[Settled]:
    """All that is learned from by now."""
    found = []
    while waiting.due(now):
        if (settled := waiting.next(now)) is not None:
            found.append(settled)
    return found


def test_a_decision_is_learned_from_once_with_the_last_word_of_each_kind() -> None:
    waiting = awaiting()
    answered(waiting, "r")
    assert [hear(waiting, "r", score) for score in (1.0, 1.0, -1.0)] == ["counted", "repeated", "changed"]
    assert due(waiting, 59.9) == []
    (settled,) = due(waiting, 60.0)
    assert (settled.request_id, settled.score) == ("r", -1.0)
    assert due(waiting, 1000.0) == []
    assert hear(waiting, "r", 1.0, "judge") == "late"
    assert hear(waiting, "r", -1.0) == "repeated"
    assert due(waiting, 2000.0) == []


def test_what_nothing_was_known_of_is_learned_from_late() -> None:
    waiting = awaiting()
    answered(waiting, "r")
    assert due(waiting, 60.0) == []
    assert hear(waiting, "r", 1.0) == "counted"
    assert [one.score for one in due(waiting, 5000.0)] == [1.0]
    assert waiting.tally.silent == 1


def test_a_decision_is_forgotten_in_the_end() -> None:
    waiting = awaiting()
    answered(waiting, "r")
    due(waiting, 60.0)
    due(waiting, 60.0 + REMEMBERED)
    assert hear(waiting, "r", 1.0) is None
    assert (len(waiting), waiting._room.held, waiting._named) == (0, 0, {})


def test_not_being_asked_again_is_good_only_where_it_would_be_known() -> None:
    waiting = awaiting()
    answered(waiting, "seen", watched=True)
    again = answered(waiting, "again", watched=True)
    answered(waiting, "unseen", key=None)
    lost = answered(waiting, "lost", watched=True)
    for one in (again, lost):
        waiting.heard(one, "retry", -1.0)
    lost.watched = False
    assert [(one.request_id, one.score) for one in due(waiting, 60.0)] == [("seen", 1.0), ("again", -1.0)]


def test_a_request_that_failed_teaches_nothing() -> None:
    waiting = awaiting()
    made = decision()
    pending = waiting.add("r", "k", made, 0.0)
    assert pending is not None
    assert hear(waiting, "r", 1.0) == "counted", "somebody may be quick"
    waiting.ended(made, False, 1.0)
    assert hear(waiting, "r", 1.0) is None
    assert due(waiting, 100.0) == []
    assert (waiting._room.held, waiting._named) == (0, {})


def test_a_long_answer_is_not_learned_from_before_it_is_over() -> None:
    waiting = awaiting()
    failing, long = decision(), decision()
    for name, made in (("failing", failing), ("long", long)):
        pending = waiting.add(name, "k", made, 0.0)
        assert pending is not None
        pending.watched = True
    assert due(waiting, 5000.0) == [], "they are under way"
    waiting.ended(failing, False, 5000.0)
    waiting.ended(long, True, 5000.0)
    assert due(waiting, 5059.9) == [], "and waited for from the end"
    assert [(one.request_id, one.score) for one in due(waiting, 5060.0)] == [("long", 1.0)]


def test_keys_that_use_the_same_ids_know_nothing_of_each_other() -> None:
    waiting = awaiting()
    hers = answered(waiting, "order-17", 0.0, "alice", watched=True)
    his = answered(waiting, "order-17", 1.0, "bob", watched=True)
    nobodys = answered(waiting, "order-17", 2.0, None)
    assert waiting.keys("order-17") == ["alice", "bob", None]
    assert [waiting.find("order-17", key) for key in ("alice", "bob", None, "eve")] == [hers, his, nobodys, None]
    assert hear(waiting, "order-17", -1.0, key="alice") == "counted"
    assert hear(waiting, "order-17", 0.5, key="bob") == "counted"
    assert [(one.decision is hers.decision, one.score) for one in due(waiting, 61.0)] == [
        (True, (-1.0 + 0.3) / 1.3),
        (False, (0.5 + 0.3) / 1.3),
    ]
    due(waiting, 100.0 + REMEMBERED)
    assert waiting._named == {}


# What was heard of the first of two requests of one key and id, how long after its answer the second comes -> what is learned.
AGAIN: dict[str, tuple[dict[Kind, float], float, list[float]]] = {
    "nothing was said": ({}, 1.0, []),
    "it was said to be bad": ({"feedback": -1.0}, 1.0, [-1.0]),
    "it was asked again, but nobody knows of those that were not": ({"retry": -1.0}, 1.0, []),
    "nobody asked again for long enough": ({}, WINDOW, [1.0]),
    "it was asked again, and there was time": ({"retry": -1.0}, WINDOW, [-1.0]),
}


@pytest.mark.parametrize("case", AGAIN)
def test_an_id_that_its_key_uses_again_ends_the_earlier_decision_as_what_it_is(case: str) -> None:
    said, after, learned = AGAIN[case]
    waiting = awaiting()
    first = answered(waiting, "r", watched=True)
    for kind, score in said.items():
        waiting.heard(first, kind, score)
    second = answered(waiting, "r", after)
    assert [(one.decision is first.decision, one.score) for one in due(waiting, after)] == [(True, one) for one in learned]
    assert (waiting.tally.replaced, waiting.find("r", "k")) == (not learned, second)
    assert hear(waiting, "r", 0.5) == "counted"
    assert [(one.decision is second.decision, one.score) for one in due(waiting, 200.0)] == [(True, 0.5)]


@pytest.mark.parametrize("well", [True, False], ids=["it is answered", "it fails"])
def test_an_id_that_is_used_again_while_it_is_under_way_is_not_learned_from_before_it_is_over(well: bool) -> None:
    waiting = awaiting()
    first, second = decision(), decision()
    waiting.add("r", "k", first, 0.0)
    assert hear(waiting, "r", 1.0) == "counted"
    waiting.add("r", "k", second, 1.0)
    assert due(waiting, 500.0) == []
    waiting.ended(first, well, 500.0)
    waiting.ended(second, True, 500.0)
    assert [one.score for one in due(waiting, 500.0)] == ([1.0] if well else [])
    assert hear(waiting, "r", -1.0) == "counted", "the second is found by its id still"
    assert [one.score for one in due(waiting, 560.0)] == [-1.0]


def test_what_has_no_room_is_not_learned_as_good() -> None:
    waiting = awaiting(most=3)
    for at in range(6):
        answered(waiting, f"r{at}", float(at), watched=True)
        hear(waiting, "r1", -1.0)
    assert (waiting.tally.crowded, len(waiting)) == (2, 3)
    assert [hear(waiting, f"r{at}", 1.0) for at in range(3)] == [None] * 3
    assert [(one.request_id, one.score) for one in due(waiting, 5.0)] == [("r1", -1.0)]
    answered(waiting, "much later", 5.0 + WINDOW, watched=True)
    assert [(one.request_id, one.score) for one in due(waiting, 5.0 + WINDOW)] == [("r3", 1.0)], "there was time to ask again"


def test_what_is_over_goes_before_what_waits_and_what_is_under_way_stays() -> None:
    waiting = awaiting(most=2)
    answered(waiting, "over")
    due(waiting, 60.0)
    running = [decision() for _ in range(3)]
    assert [waiting.add(f"r{at}", "k", one, 60.0) is not None for at, one in enumerate(running)] == [True, True, False]
    assert waiting.tally == Tally(decisions=4, silent=1, crowded=1)
    assert hear(waiting, "over", 1.0) is None
    waiting.add("r1", "k", decision(), 60.0)
    assert hear(waiting, "r1", 1.0) is None, "it would be of the later one, for which there was no room"
    waiting.ended(running[2], True, 61.0)
    waiting.ended(running[0], True, 61.0)
    assert waiting.add("r3", "k", decision(), 62.0) is not None
    assert waiting.find("r0", "k") is None


def test_what_is_remembered_and_what_is_settled_out_of_turn_have_caps() -> None:
    waiting = awaiting(most=2 * MOST_OVER)
    for at in range(MOST_OVER + 3):
        answered(waiting, f"r{at}")
    assert due(waiting, 60.0) == []
    assert waiting._room.held == MOST_OVER
    said = [hear(waiting, f"r{at}", 1.0) for at in range(MOST_OVER + 3)]
    assert said == [*[None] * 3, *["counted"] * MOST_READY]
    answered(waiting, "more", 60.0)
    hear(waiting, "more", 1.0)
    answered(waiting, "more", 60.0)
    assert waiting.tally.crowded == 1
    assert len(due(waiting, 60.0)) == MOST_READY


def test_feedback_is_changed_so_often_and_then_the_last_word_stands() -> None:
    waiting = awaiting()
    pending = answered(waiting, "r")
    said = [waiting.heard(pending, "feedback", float(at % 2)) for at in range(MOST_CHANGES + 2)]
    assert said == ["counted", *["changed"] * MOST_CHANGES, "refused"]
    assert waiting.heard(pending, "feedback", float(MOST_CHANGES % 2)) == "repeated"
    assert waiting.heard(pending, "judge", 0.5) == "counted", "others may speak still"
    assert waiting.heard(pending, "feedback", 0.25, admin=True) == "changed"
    assert [one.score for one in due(waiting, 60.0)] == [pytest.approx((0.25 + 0.7 * 0.5) / 1.7)]
    assert waiting.heard(pending, "feedback", 0.5) == "refused", "and afterwards"


@settings(max_examples=100, deadline=None)
@given(
    most=st.integers(1, 8),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("decide"), st.integers(0, 2), st.sampled_from("ab")),
            st.tuples(st.just("end"), st.integers(0, 20), st.booleans()),
            st.tuples(st.just("say"), st.integers(0, 2), st.sampled_from("ab"), st.sampled_from([-1.0, 0.5, 1.0])),
            st.tuples(st.just("judge"), st.integers(0, 20), st.sampled_from([-1.0, 1.0])),
            st.tuples(st.just("pass"), st.floats(0, 40)),
            st.tuples(st.just("tick"), st.integers(1, 3)),
        ),
        max_size=60,
    ),
)
def test_each_decision_is_learned_from_at_most_once_by_the_words_of_its_own_key(most: int, steps: list[tuple]) -> None:
    """Keys 0 to 2 share the ids a and b."""
    waiting = Awaiting(60.0, OutcomeWeights(retry=0.0), Room(most), WINDOW)
    now, told = 0.0, 0
    made: list[tuple[int, str, Decision]] = []
    said: dict[int, dict[str, float]] = {}
    latest: dict[tuple[int, str], Decision] = {}
    failed: set[int] = set()
    over: set[int] = set()
    learned: dict[int, float] = {}

    def take(count: int) -> None:
        for _ in range(count):
            if waiting.due(now) and (settled := waiting.next(now)) is not None:
                assert id(settled.decision) not in learned
                assert id(settled.decision) in over, "it is over"
                learned[id(settled.decision)] = settled.score
                assert settled.score == pytest.approx(together(said[id(settled.decision)], OutcomeWeights(retry=0.0)))  # type: ignore[arg-type]

    for step in steps:
        if step[0] == "decide":
            made.append((step[1], step[2], decision()))
            latest[step[1], step[2]] = made[-1][2]
            waiting.add(step[2], str(step[1]), made[-1][2], now)
        elif step[0] == "end" and step[1] < len(made):
            one = made[step[1]][2]
            if id(one) not in over | failed:
                (over if step[2] else failed).add(id(one))
            waiting.ended(one, step[2], now)
        elif step[0] in ("say", "judge"):
            if step[0] == "say":
                key, name, kind = step[1], step[2], "feedback"
            elif step[1] < len(made):
                (key, name, _), kind = made[step[1]], "judge"
            else:
                continue
            pending = waiting.find(name, str(key))
            if pending is None:
                continue
            assert (pending.key, pending.decision) == (str(key), latest[key, name])
            assert pending.decision is latest[key, name]
            before = said.setdefault(id(pending.decision), {})
            heard = waiting.heard(pending, kind, step[-1])  # type: ignore[arg-type]
            assert (heard == "repeated") == (before.get(kind) == step[-1])
            if heard in ("counted", "changed"):
                told += 1
                before[kind] = step[-1]
            elif heard == "late":
                assert pending.learned
                before[kind] = step[-1]
        elif step[0] == "pass":
            now += step[1]
        elif step[0] == "tick":
            take(step[1])
        assert waiting._room.held == len(waiting) + len(waiting._over) <= most
    now += 1000.0
    for _, _, one in made:
        waiting.ended(one, False, now)
    take(1000)
    assert not waiting.due(now)
    assert len(learned) == waiting.tally.settled
    assert failed.isdisjoint(learned)
    now += REMEMBERED
    take(1000)
    assert (waiting._room.held, waiting._named) == (0, {})
