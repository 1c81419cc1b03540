"""Vector clocks: the order of versions, the cap that loses no update, the wire form."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.state.clocks import MOST_CARRIED, MOST_MEMBERS, Order, VectorClock


def clock(**counts: int) -> VectorClock:
    return VectorClock(tuple(sorted(counts.items())))


@pytest.mark.parametrize(
    ("one", "other", "order"),
    [
        pytest.param(clock(), clock(), Order.EQUAL, id="two empty ones"),
        pytest.param(clock(), clock(a=1), Order.BEFORE, id="empty and one event"),
        pytest.param(clock(a=1, b=2), clock(a=1, b=2), Order.EQUAL, id="the same events"),
        pytest.param(clock(a=1), clock(a=2), Order.BEFORE, id="a later event of one member"),
        pytest.param(clock(a=1), clock(a=1, b=1), Order.BEFORE, id="another member's event on top"),
        pytest.param(clock(a=2, b=1), clock(a=1, b=1), Order.AFTER, id="seen more"),
        pytest.param(clock(a=2), clock(a=1, b=1), Order.CONCURRENT, id="each has one that the other has not"),
        pytest.param(clock(a=1), clock(b=1), Order.CONCURRENT, id="nothing in common"),
        pytest.param(clock(甲=1), clock(甲=1, 乙=1), Order.BEFORE, id="Chinese names"),
    ],
)
def test_two_clocks_stand_to_each_other_as_their_events_do(one: VectorClock, other: VectorClock, order: Order) -> None:
    mirrored = {Order.BEFORE: Order.AFTER, Order.AFTER: Order.BEFORE}.get(order, order)
    assert (one.compare(other), other.compare(one)) == (order, mirrored)


CLOCKS = st.dictionaries(st.sampled_from("abcdef"), st.integers(1, 5)).map(lambda counts: clock(**counts))


@given(CLOCKS, CLOCKS, CLOCKS)
def test_merging_is_a_join(one: VectorClock, two: VectorClock, three: VectorClock) -> None:
    assert one.merge(two) == two.merge(one)
    assert one.merge(two).merge(three) == one.merge(two.merge(three))
    assert one.merge(one) == one
    assert one.compare(one.merge(two)) in (Order.BEFORE, Order.EQUAL)


def test_an_increment_leaves_the_old_clock_as_it_was_and_is_after_it() -> None:
    old = clock(a=1)
    new = old.increment("b")
    assert (old, new, old.compare(new)) == (clock(a=1), clock(a=1, b=1), Order.BEFORE)


def test_the_lowest_counts_go_first_and_a_member_comes_back_above_them() -> None:
    full = clock(a=1, b=3, c=2)
    pruned = full.increment("d", most=3)
    assert pruned == VectorClock((("b", 3), ("c", 2), ("d", 1)), floor=1)
    assert pruned.increment("a", most=3) == VectorClock((("a", 2), ("b", 3), ("c", 2)), floor=1)


def test_a_clock_has_no_more_members_than_the_cap_after_an_increment() -> None:
    grown = VectorClock()
    for number in range(3 * MOST_MEMBERS):
        grown = grown.increment(f"node-{number}")
        assert len(grown.counts) <= MOST_MEMBERS


def test_a_merge_beyond_what_may_be_carried_is_refused() -> None:
    half = [VectorClock(tuple((f"{side}{number:04}", 1) for number in range(MOST_CARRIED // 2 + 1))) for side in "ab"]
    with pytest.raises(SitsError) as refused:
        half[0].merge(half[1])
    assert refused.value.code is Code.TOO_LARGE


MEMBERS = st.integers(0, 3)


@settings(max_examples=100)
@given(st.lists(st.tuples(MEMBERS, MEMBERS, st.integers(0, 3)), min_size=8, max_size=30))
# Each of these breaks a rule that looks just as good: a member that is there goes on from its own count; a merge keeps one floor.
@example([(0, 0, 3), (2, 0, 2), (2, 3, 2), (1, 0, 1), (0, 2, 1), (3, 0, 2), (0, 3, 0), (0, 1, 2)])
@example([(1, 1, 2), (3, 1, 2), (0, 2, 3), (2, 3, 0), (2, 2, 1), (0, 2, 0), (1, 0, 0), (1, 1, 3)])
def test_a_pruned_clock_never_takes_an_unseen_event_for_a_seen_one(steps: list[tuple[int, int, int]]) -> None:
    """Against the true histories, with clocks of two members: in each step one of four takes over or merges another's version,
    and mostly changes it. One that has seen all of its own it takes over as it is, even where it was itself pruned from it."""
    clocks = [VectorClock() for _ in range(4)]
    histories: list[frozenset[int]] = [frozenset() for _ in range(4)]
    versions: list[tuple[VectorClock, frozenset[int]]] = []
    for event, (member, source, what) in enumerate(steps):
        takes_over = histories[member] <= histories[source]
        clocks[member] = clocks[source] if takes_over else clocks[member].merge(clocks[source])
        histories[member] |= histories[source]
        if what:
            clocks[member] = clocks[member].increment(str(member), most=2)
            histories[member] |= {event}
        versions.append((clocks[member], histories[member]))
    for one, seen in versions:
        for other, other_seen in versions:
            if one.compare(other) in (Order.BEFORE, Order.EQUAL):
                assert seen <= other_seen


@given(CLOCKS, st.integers(0, 9))
def test_the_wire_gives_back_what_was_put_in(one: VectorClock, floor: int) -> None:
    sent = msgspec.structs.replace(one, floor=floor)
    assert VectorClock.decode(sent.encode()) == sent


@pytest.mark.parametrize(
    ("wire", "said"),
    [
        pytest.param(b"", "truncated", id="nothing"),
        pytest.param(b"\xc1", "MessagePack", id="no msgpack"),
        pytest.param(msgspec.msgpack.encode([2, 0, {}]), "of version 2; this SITS reads version 1", id="a later version"),
        pytest.param(msgspec.msgpack.encode([1, 0, {"a": 0}]), ">= 1", id="a count of zero"),
        pytest.param(msgspec.msgpack.encode([1, 0, {"a": 2**63}]), "<= 9223372036854775807", id="a count too high"),
        pytest.param(msgspec.msgpack.encode([1, -1, {}]), ">= 0", id="a negative floor"),
        pytest.param(msgspec.msgpack.encode([1, 0, {"": 1}]), "1 to 128 bytes", id="a member without a name"),
        pytest.param(msgspec.msgpack.encode([1, 0, {"人" * 43: 1}]), "1 to 128 bytes", id="a name too long"),
        pytest.param(
            msgspec.msgpack.encode([1, 0, {str(n): 1 for n in range(MOST_CARRIED + 1)}]), "1024 are the most", id="too many"
        ),
        pytest.param(b"\x91" * 100_000, "length 3", id="nested without end"),
    ],
)
def test_a_clock_that_is_none_is_refused(wire: bytes, said: str) -> None:
    with pytest.raises(SitsError, match=said) as refused:
        VectorClock.decode(wire)
    assert refused.value.code is Code.INVALID_REQUEST


@settings(max_examples=100)
@given(st.binary(max_size=60))
def test_garbage_is_a_clock_or_refused(wire: bytes) -> None:
    try:
        read = VectorClock.decode(wire)
    except SitsError as error:
        refusal = error.code
    else:
        refusal = Code.INVALID_REQUEST
        assert VectorClock.decode(read.encode()) == read
    assert refusal is Code.INVALID_REQUEST


@pytest.mark.parametrize("member", ["", "x" * 129, "\ud800"])
def test_a_name_that_is_none_is_refused(member: str) -> None:
    with pytest.raises(SitsError) as refused:
        VectorClock().increment(member)
    assert refused.value.code is Code.INVALID_REQUEST
