"""What each kind means, told by small histories of two or three nodes."""

from __future__ import annotations

import pytest

from sits.inner.errors import Code, SitsError
from sits.state.clocks import Stamp
from sits.state.crdt import GCounter, Kind, LWWRegister, ORMap, ORSet, PNCounter
from sits.state.crdt.context import LARGEST_COUNT, Context
from sits.state.crdt.register import LARGEST_CONTENT


def test_a_counter_is_the_sum_of_what_all_nodes_counted() -> None:
    a = GCounter().merge(GCounter().increment("a", 2))
    a = a.merge(a.increment("a"))
    b = GCounter().increment("b", 10)
    assert (a.value, b.value, a.merge(b).value) == (3, 10, 13)


def test_a_delta_of_a_counter_has_only_the_entry_that_rose() -> None:
    assert GCounter({"a": 5, "b": 7}).increment("a", 2) == GCounter({"a": 7})
    assert PNCounter({"a": 5}, {"a": 1, "b": 7}).decrement("a", 2) == PNCounter({}, {"a": 3})


def test_a_counter_that_falls_can_be_below_zero() -> None:
    counter = PNCounter().merge(PNCounter().increment("a", 2))
    assert counter.merge(counter.decrement("b", 5)).value == -3


@pytest.mark.parametrize("by", [0, -1, LARGEST_COUNT + 1])
def test_a_counter_rises_by_what_it_can_hold_only(by: int) -> None:
    for step in (GCounter().increment, PNCounter().increment, PNCounter().decrement):
        with pytest.raises(SitsError) as refused:
            step("a", by)
        assert refused.value.code is Code.INVALID_REQUEST
    with pytest.raises(SitsError) as refused:
        ORMap().increment("k", "a", by)
    assert refused.value.param == "by"


def test_a_counter_that_is_full_refuses_rather_than_wraps() -> None:
    with pytest.raises(SitsError) as refused:
        GCounter({"a": LARGEST_COUNT}).increment("a")
    assert refused.value.message == f"a counter at {LARGEST_COUNT} cannot rise by 1; it ends at {LARGEST_COUNT}"


def test_an_add_wins_over_a_remove_that_has_not_seen_it() -> None:
    start = ORSet().merge(ORSet().add("人", "a"))
    removed = start.merge(start.remove("人"))
    added_again = start.merge(start.add("人", "b"))
    assert (removed.elements, removed.merge(added_again).elements) == (set(), {"人"})


def test_a_remove_that_has_seen_every_add_takes_the_element_away() -> None:
    both = ORSet().add("x", "a").merge(ORSet().add("x", "b"))
    removed = both.merge(both.remove("x"))
    assert removed.elements == set()
    assert removed.merge(both) is removed


def test_removed_elements_leave_no_trace_but_a_number_for_each_node() -> None:
    state = ORSet()
    for number in range(500):
        state = state.merge(state.add(f"e{number}", "a"))
        state = state.merge(state.remove(f"e{number}"))
    assert state == ORSet(state.kernel.__class__({}, {}, Context({"a": 500})))


def test_clearing_takes_away_what_was_seen_only() -> None:
    state = ORSet().merge(ORSet().add("x", "a"))
    state = state.merge(state.add("y", "a"))
    cleared = state.merge(state.clear())
    assert cleared.merge(ORSet().add("z", "b")).elements == {"z"}


def test_the_last_write_wins_and_an_earlier_one_changes_nothing() -> None:
    early, late = (LWWRegister().write(text.encode(), Stamp(wall, 0, "a")) for text, wall in (("早", 1), ("晚", 2)))
    assert early.merge(late) is late
    assert late.merge(early) is late
    assert late.merge(LWWRegister()) is late


def test_equal_stamps_choose_the_same_content_on_both_sides() -> None:
    one, two = (LWWRegister(content, Stamp(1, 0, "a")) for content in (b"1", b"2"))
    assert one.merge(two) == two.merge(one) == two


def test_a_write_with_an_old_stamp_is_a_mistake() -> None:
    for stale in (
        lambda: LWWRegister(b"x", Stamp(2, 0, "a")).write(b"y", Stamp(2, 0, "a")),
        lambda: ORMap().write("k", b"x", "a", Stamp(2, 0, "a")).write("k", b"y", "b", Stamp(1, 9, "b")),
    ):
        with pytest.raises(SitsError) as refused:
            stale()
        assert (refused.value.code, refused.value.param) == (Code.INVALID_REQUEST, "stamp")


def test_a_register_holds_so_much_and_no_more() -> None:
    for write in (
        lambda: LWWRegister().write(b"x" * (LARGEST_CONTENT + 1), Stamp(1, 0, "a")),
        lambda: ORMap().write("k", b"x" * (LARGEST_CONTENT + 1), "a", Stamp(1, 0, "a")),
    ):
        with pytest.raises(SitsError) as refused:
            write()
        assert refused.value.code is Code.TOO_LARGE


def with_deltas(state: ORMap, *steps: object) -> ORMap:
    for step in steps:
        state = state.merge(step(state))  # type: ignore[operator]
    return state


def test_a_map_has_all_kinds_under_names_that_do_not_clash() -> None:
    state = with_deltas(
        ORMap(),
        lambda m: m.increment("键", "a", 3),
        lambda m: m.adjust("键", "a", 2),
        lambda m: m.adjust("键", "b", -5),
        lambda m: m.add("键", "x", "a"),
        lambda m: m.add("键", "y", "b"),
        lambda m: m.write("键", b"z", "a", Stamp(1, 0, "a")),
    )
    assert (state.grown("键"), state.count("键"), state.members("键"), state.register("键").content) == (3, -3, {"x", "y"}, b"z")
    assert state.keys == {(kind, "键") for kind in Kind}
    assert (state.grown("no"), state.count("no"), state.members("no"), state.register("no")) == (0, 0, set(), LWWRegister())


@pytest.mark.parametrize("kind", list(Kind))
def test_a_removed_key_is_gone_and_others_of_its_name_stay(kind: Kind) -> None:
    state = with_deltas(
        ORMap(),
        lambda m: m.increment("k", "a"),
        lambda m: m.adjust("k", "a", 1),
        lambda m: m.add("k", "x", "a"),
        lambda m: m.write("k", b"z", "a", Stamp(1, 0, "a")),
        lambda m: m.remove(kind, "k"),
    )
    assert state.keys == {(other, "k") for other in Kind if other is not kind}


def test_a_write_at_the_same_time_as_a_removal_stays() -> None:
    start = with_deltas(
        ORMap(),
        lambda m: m.add("s", "x", "a"),
        lambda m: m.write("r", b"1", "a", Stamp(1, 0, "a")),
        lambda m: m.increment("g", "a", 5),
    )
    removed = with_deltas(
        start, lambda m: m.remove(Kind.SET, "s"), lambda m: m.remove(Kind.REGISTER, "r"), lambda m: m.remove(Kind.GROW, "g")
    )
    written = with_deltas(
        start,
        lambda m: m.add("s", "y", "b"),
        lambda m: m.write("r", b"2", "b", Stamp(2, 0, "b")),
        lambda m: m.increment("g", "b", 7),
    )
    joined = removed.merge(written)
    assert (joined.members("s"), joined.register("r").content, joined.grown("g")) == ({"y"}, b"2", 7)


def test_a_count_at_the_same_time_as_a_removal_keeps_that_node_s_whole_count() -> None:
    start = with_deltas(ORMap(), lambda m: m.increment("g", "a", 5), lambda m: m.increment("g", "b", 3))
    removed = with_deltas(start, lambda m: m.remove(Kind.GROW, "g"))
    counted = with_deltas(start, lambda m: m.increment("g", "a", 1))
    assert removed.merge(counted).grown("g") == 6


def test_a_removed_counter_starts_from_zero() -> None:
    state = with_deltas(
        ORMap(), lambda m: m.increment("g", "a", 5), lambda m: m.remove(Kind.GROW, "g"), lambda m: m.increment("g", "a", 1)
    )
    assert state.grown("g") == 1


def test_a_lost_delta_does_not_make_a_counter_count_twice() -> None:
    """A node's later row includes its earlier ones; the deltas that replaced those never came."""
    writer = reader = ORMap()
    for number in range(1, 20):
        delta = writer.increment("g", "a", number)
        writer = writer.merge(delta)
        if number % 2:
            reader = reader.merge(delta)
            assert (reader.grown("g"), len(reader.kernel.rows)) == (writer.grown("g"), number // 2 + 1)
    assert reader.merge(writer) == writer


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda: ORSet().add("", "a"), id="an empty element"),
        pytest.param(lambda: ORSet().add("x" * 201, "a"), id="a long element"),
        pytest.param(lambda: ORSet().add("\ud800", "a"), id="no text"),
        pytest.param(lambda: ORSet().add("x", ""), id="no node"),
        pytest.param(lambda: GCounter().increment(""), id="a counter's node"),
        pytest.param(lambda: ORMap().add("k", "", "a"), id="a map's element"),
        pytest.param(lambda: ORMap().increment("", "a"), id="a map's key"),
    ],
)
def test_names_that_are_none_are_refused(step: object) -> None:
    with pytest.raises(SitsError) as refused:
        step()  # type: ignore[operator]
    assert refused.value.code is Code.INVALID_REQUEST


def test_what_is_not_there_can_be_removed_and_nothing_changes() -> None:
    for value, delta in (
        (ORSet(), ORSet().remove("x")),
        (ORMap(), ORMap().discard("s", "x")),
        (ORMap(), ORMap().remove(Kind.SET, "s")),
    ):
        assert value.merge(delta) is value  # type: ignore[arg-type]


def test_a_context_knows_dots_beyond_a_gap_and_closes_it() -> None:
    gap = Context.of([("a", 1), ("a", 3), ("b", 2)])
    assert gap == Context({"a": 1}, frozenset({("a", 3), ("b", 2)}))
    assert [dot in gap for dot in (("a", 1), ("a", 2), ("a", 3), ("b", 1), ("b", 2))] == [True, False, True, False, True]
    assert gap.merge(Context.of([("a", 2)])) == Context({"a": 3}, frozenset({("b", 2)}))
    assert (gap.next("a"), gap.next("b"), gap.next("c"), gap.size) == (("a", 4), ("b", 3), ("c", 1), 3)
    assert sorted(gap.dots()) == [("a", 1), ("a", 3), ("b", 2)]
