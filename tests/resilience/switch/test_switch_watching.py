"""What many processes saw adds up, whatever comes twice, late or never."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from sits.resilience.switch.watching import Row, Tally, bin_of, rows_of, seen, upper
from sits.state.crdt import Round

PLACE = 4000


def row(place: int, old: int, new: int, failures: int = 0, before: int = 0) -> Row:
    made = Row(place)
    for _ in range(before):
        made.before.add(True, 50.0)
    for _ in range(old):
        made.old.add(True, 100.0)
    for number in range(new):
        made.new.add(number >= failures, 100.0)
    return made


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.booleans()), max_size=40), st.randoms(use_true_random=False))
def test_sums_are_exact_when_all_has_come_and_never_fall_on_the_way(told: Any, chance: Any) -> None:
    rows = [Row(PLACE) for _ in range(3)]
    numbers = [0, 0, 0]
    messages: list[Round] = []
    for node, is_new, ok in told:
        (rows[node].new if is_new else rows[node].old).add(ok, 10.0)
        numbers[node] += 1
        messages.append(Round(1, {f"n{node}": rows[node].packed(numbers[node])}))
    mail = messages * 2
    chance.shuffle(mail)
    state, last = Round(), 0
    for message in mail:
        state = state.merge(message)
        summed = seen((one for _, one in rows_of(state.facts).values()), PLACE)
        total = summed.old.requests + summed.new.requests
        assert total >= last
        last = total
    summed = seen((one for _, one in rows_of(state.facts).values()), PLACE)
    assert summed.new.requests == sum(is_new for _, is_new, _ in told)
    assert summed.old.failures == sum(not is_new and not ok for _, is_new, ok in told)


def test_what_was_counted_elsewhere_in_the_switch_counts_as_before_only() -> None:
    rows = [row(PLACE, 5, 2, failures=1), row(PLACE - 1, 7, 3), row(PLACE, 0, 1, before=4)]
    summed = seen(rows, PLACE)
    assert (summed.old.requests, summed.new.requests, summed.new.failures) == (5, 3, 1)
    alone = seen([row(PLACE, 0, 2, before=4), row(PLACE - 1, 7, 3)], PLACE)
    assert (alone.old.requests, alone.new.requests) == (11, 2)


def test_a_row_that_moves_on_keeps_the_old_model_to_compare_with() -> None:
    one = row(PLACE, 5, 9, before=4)
    one.move(PLACE + 1)
    assert (one.place, one.old.requests, one.new.requests, one.before.requests) == (PLACE + 1, 0, 0, 9)


@settings(max_examples=100, deadline=None)
@given(st.floats(0.01, 10_000_000.0))
def test_a_bin_is_nine_percent_wide(ms: float) -> None:
    assert upper(bin_of(ms)) >= min(ms, upper(192)) * 0.999999
    assert ms <= 1.0 or ms > upper(192) or upper(bin_of(ms)) <= ms * 1.0906


def test_quantiles_and_what_is_above() -> None:
    made = Tally()
    for number in range(100):
        made.add(number != 0, 10.0 if number < 95 else 1000.0)
    assert (made.requests, made.failures, made.timed) == (100, 1, 99)
    assert made.quantile(0.5) == upper(bin_of(10.0))
    assert made.quantile(0.99) == upper(bin_of(1000.0))
    assert (made.above(100.0), made.above(1000.0), made.above(1.0)) == (5, 0, 99)
    assert Tally().quantile(0.95) is None
    made.add(True, None)
    assert (made.requests, made.timed) == (101, 99)


def test_rows_that_cannot_be_read_are_left_out() -> None:
    good = Row(PLACE, ready=2)
    assert rows_of({"good": good.packed(3), "bad": b"\0" * 8 + b"x", "short": b""}) == {"good": (3, good)}
