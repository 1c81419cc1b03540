"""The facts of a switch are a join semilattice, and what they mean only ever goes up."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from switch_worlds import NODES, World, course_at, worlds

from sits.inner.errors import Code, SitsError
from sits.resilience.switch.state import LONGEST_WHY, MOST_FACTS, Course, Note, Phase, key_of
from sits.state.crdt import Round, decode, encode
from sits.state.crdt.round import LARGEST_NOTE


def joined(*states: Round) -> Round:
    return functools.reduce(Round.merge, states, Round())


@settings(max_examples=60, deadline=None)
@given(worlds(), st.data())
def test_the_join_is_commutative_associative_and_idempotent(world: World, data: st.DataObject) -> None:
    a, b, c = (data.draw(st.sampled_from(world.pool)) for _ in range(3))
    assert a.merge(b) == b.merge(a)
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(a) == a
    assert a.merge(Round()) == a


@settings(max_examples=60, deadline=None)
@given(worlds(), st.data())
def test_no_message_moves_a_switch_back(world: World, data: st.DataObject) -> None:
    state, message = data.draw(st.sampled_from(world.pool)), data.draw(st.sampled_from(world.pool))
    before, after = Course(state), Course(state.merge(message))
    assert after.rank >= before.rank
    if after.generation == before.generation:
        assert (after.phase, after.step) >= (before.phase, before.step)
        assert after.promoted >= before.promoted
        assert not before.over or after.over
        assert not before.retired or after.retired


@settings(max_examples=60, deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_all_come_to_the_same_whatever_is_lost_doubled_and_late_once_what_was_lost_is_sent_again(
    world: World, chance: Any
) -> None:
    wanted = joined(*world.deltas)
    for node in range(len(NODES)):
        mail = world.deltas * 2
        chance.shuffle(mail)
        lost = [message for message in mail if chance.random() < 0.3]
        state = world.states[node]
        for message in mail:
            if message not in lost:
                state = state.merge(message)
        for message in lost:
            state = state.merge(message)
        assert state == wanted
        assert Course(state).rank == Course(wanted).rank


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_the_wire_form_is_the_same_state_again(world: World) -> None:
    for state in world.states:
        assert decode(encode(state)) == state


UNTIL_DRAIN = (
    ("start", None),
    ("reach", (Phase.WARM, 0)),
    ("reach", (Phase.VERIFY, 0)),
    ("reach", (Phase.SHIFT, 0)),
    ("reach", (Phase.DRAIN, 0)),
)


def two_sides(*before: tuple[str, Any]) -> tuple[Course, Course]:
    course = course_at(*before)
    return course, Course(course.round)


def test_an_abort_on_one_side_wins_over_every_step_of_the_other_but_a_retirement() -> None:
    here, there = two_sides(*UNTIL_DRAIN[:4])
    aborted = here.round.merge(here.abort(Note(9_000, "op", "wrong language")))
    stepped = there.round.merge(there.reach(Phase.SHIFT, 2, Note(9_500, "gw-2")))
    drained = stepped.merge(Course(stepped).reach(Phase.DRAIN, 0, Note(9_600, "gw-2")))
    for other in (stepped, drained):
        both = Course(aborted.merge(other))
        assert (both.state, both.rolled_back, both.over) == ("aborted", True, True)
        assert both.aborted == Note(9_000, "op", "wrong language")


def test_a_retirement_on_one_side_wins_over_an_abort_on_the_other_whose_side_gives_way() -> None:
    here, there = two_sides(*UNTIL_DRAIN)
    aborted = here.round.merge(here.abort(Note(9_000, "op")))
    retired = there.round.merge(there.reach(Phase.RETIRE, 0, Note(9_500, "gw-2")))
    assert Course(aborted).state == "aborted"
    assert Course(retired).state == "retired"
    both = Course(aborted.merge(retired))
    assert (both.state, both.rolled_back) == ("retired", False)
    assert both.rank > Course(aborted).rank


def test_a_pause_stays_that_a_resume_on_the_other_side_had_not_seen() -> None:
    here, there = two_sides(("start", None), ("pause", None))
    resumed = here.round.merge(here.resume(Note(5_000, "one")))
    paused = there.round.merge(there.pause(Note(5_001, "two", "look first"), "token"))
    assert Course(resumed).pauses == []
    assert Course(resumed.merge(paused)).pauses == [Note(5_001, "two", "look first")]
    lifted = Course(resumed.merge(paused))
    assert Course(lifted.round.merge(lifted.resume(Note(6_000, "one")))).pauses == []


def test_a_start_after_the_end_is_a_new_generation_and_late_news_of_the_old_one_change_nothing() -> None:
    ended = course_at(*UNTIL_DRAIN, ("abort", None))
    again = Course(ended.round.merge(ended.start(Note(20_000, "op"))))
    assert (again.generation, again.state, again.aborted) == (2, "prepare", None)
    late = ended.round.merge(ended.round.note("reach.6.000", Note(21_000, "gw-9").packed()))
    assert Course(again.round.merge(late)).round == again.round


def test_of_two_notes_of_one_fact_the_earlier_one_is_told() -> None:
    here, there = two_sides(("start", None))
    one = here.round.merge(here.abort(Note(7_000, "一", "first")))
    two = there.round.merge(there.abort(Note(7_001, "二", "second")))
    assert Course(one.merge(two)).aborted == Course(two.merge(one)).aborted == Note(7_000, "一", "first")


REFUSED = {
    "an abort of what was never started": ((), "abort", "was never started"),
    "a pause of what was never started": ((), "pause", "was never started"),
    "an abort of what is retired": ((*UNTIL_DRAIN, ("reach", (Phase.RETIRE, 0))), "abort", "declare a switch back"),
    "a resume of what is aborted": ((*UNTIL_DRAIN, ("abort", None)), "resume", "it is aborted"),
    "a promotion of what is retired": ((*UNTIL_DRAIN, ("reach", (Phase.RETIRE, 0))), "promote", "it is retired"),
}


@pytest.mark.parametrize(("before", "what", "said"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_with_a_reason(before: Any, what: str, said: str) -> None:
    with pytest.raises(SitsError, match=said) as refused:
        course_at(*before, (what, None))
    assert refused.value.code is Code.CONFLICT


def test_what_is_done_already_adds_nothing() -> None:
    live = course_at(("start", None), ("promote", None))
    note = Note(99_000, "late")
    assert live.start(note) == live.promote(note) == live.resume(note) == live.reach(Phase.PREPARE, 0, note) == Round()
    ended = course_at(("start", None), ("abort", None))
    assert ended.abort(note) == ended.reach(Phase.DRAIN, 0, note) == Round()


def test_pauses_have_an_end_so_that_the_state_has() -> None:
    course = course_at(("start", None))
    state = course.round
    for number in range(MOST_FACTS - 1):
        state = state.merge(Course(state).pause(Note(number, "op"), f"t{number}"))
    with pytest.raises(SitsError, match="paused too often"):
        Course(state).pause(Note(1, "op"), "one-more")
    assert Course(state).abort(Note(1, "op")).facts.keys() == {"abort"}


def test_the_time_in_pauses_is_counted_once_where_they_overlap() -> None:
    state = course_at(("start", None)).round
    for token, begun, ended in (("a", 10, 20), ("b", 15, 25), ("c", 40, None)):
        state = state.merge(Round(1, {f"pause.{token}": Note(begun * 1000, "op").packed()}))
        if ended is not None:
            state = state.merge(Round(1, {f"lift.{token}": Note(ended * 1000, "op").packed()}))
    assert Course(state).paused_seconds(50.0) == 25.0


def test_a_long_reason_is_cut_so_that_every_note_fits() -> None:
    packed = Note(1, "谁" * 500, "为" * 5000).packed()
    assert len(packed) <= LARGEST_NOTE
    state = Round(1, {"abort": packed})
    aborted = Course(state).aborted
    assert aborted is not None
    assert (aborted.who, aborted.why) == ("谁" * 200, "为" * LONGEST_WHY)


def test_events_tell_who_did_what_in_words_and_in_order() -> None:
    course = course_at(("start", "go"), ("reach", (Phase.SHIFT, 1)), ("pause", None), ("resume", None), ("abort", "no"))
    assert [(event.what, event.note.why) for event in course.events()] == [
        ("start", "go"),
        ("shift, step 2", "(<Phase.SHIFT: 4>, 1)"),
        ("pause", ""),
        ("resume", ""),
        ("abort", "no"),
    ]


def test_facts_of_a_newer_version_and_garbage_do_no_harm() -> None:
    state = course_at(("start", None)).round
    state = state.merge(Round(1, {"reach.9.000": Note(1, "v9").packed(), "abort": b"garbage", "reach.x": Note(1, "v9").packed()}))
    course = Course(state)
    assert (course.state, course.aborted) == ("prepare", None)


def test_another_pair_of_models_under_the_same_name_is_another_switch() -> None:
    assert len({key_of("s", "a", "b"), key_of("s", "b", "c"), key_of("t", "a", "b"), key_of("s", "ab", "")}) == 4
