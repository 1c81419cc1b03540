"""The laws of joins, for every kind, over states and deltas that three replicas can come to."""

from __future__ import annotations

from functools import reduce

import pytest
from crdt_worlds import World, worlds
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.state.crdt import GCounter, PNCounter, decode, encode, merge


@settings(max_examples=100)
@given(worlds(), st.data())
def test_joins_commute_associate_and_repeat(world: World, data: st.DataObject) -> None:
    one, two, three = (data.draw(st.sampled_from(world.pool)) for _ in range(3))
    assert one.merge(two) == two.merge(one)
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
    assert one.merge(one) is one
    assert one.merge(world.kind()) is one
    assert world.kind().merge(one) == one


@settings(max_examples=100)
@given(worlds(), st.data())
def test_a_join_only_goes_up_and_is_the_same_object_when_it_adds_nothing(world: World, data: st.DataObject) -> None:
    one, two = (data.draw(st.sampled_from(world.pool)) for _ in range(2))
    joined = one.merge(two)
    assert joined.merge(one) is joined
    assert joined.merge(two) is joined
    assert (joined == one) == (joined is one)


@settings(max_examples=100)
@given(worlds(), st.randoms(use_true_random=False))
def test_deltas_in_any_order_and_doubled_are_the_state(world: World, random: object) -> None:
    whole = reduce(merge, world.states, world.kind())
    deltas = [*world.deltas, *world.deltas[::2]]
    random.shuffle(deltas)  # type: ignore[attr-defined]
    assert reduce(merge, deltas, world.kind()) == whole


@settings(max_examples=100)
@given(worlds(), st.data())
def test_grouped_deltas_are_as_good_as_single_ones(world: World, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(world.deltas)))
    groups = [reduce(merge, part, world.kind()) for part in (world.deltas[cut:], world.deltas[:cut])]
    state = data.draw(st.sampled_from(world.pool))
    assert state.merge(groups[0]).merge(groups[1]) == reduce(merge, world.deltas, state)


@settings(max_examples=100)
@given(worlds())
def test_the_wire_gives_back_what_was_put_in_and_has_one_form_for_a_state(world: World) -> None:
    for value in world.pool:
        wire = encode(value)
        assert decode(wire) == value
        assert encode(decode(wire)) == wire
        assert len(wire) <= value.weight()
    forwards = reduce(merge, world.states, world.kind())
    backwards = reduce(merge, reversed(world.states), world.kind())
    assert encode(forwards) == encode(backwards)


def test_two_kinds_have_no_join() -> None:
    with pytest.raises(SitsError) as refused:
        merge(GCounter(), PNCounter())
    assert (refused.value.code, refused.value.message) == (Code.INVALID_REQUEST, "a GCounter and a PNCounter have no join")
