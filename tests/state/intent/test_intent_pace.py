"""What would come too late is not waited for, by what the model took before for as much text."""

from __future__ import annotations

from sits.state.intent.pace import AGAIN, NEW, Pace


def took(pace: Pace, size: int, seconds: float, at: float = 100.0) -> None:
    pace.begin(size, at)
    pace.end(at + seconds)


def test_nothing_is_too_late_before_anything_is_known() -> None:
    assert Pace().seconds(256, 1.0) == 0.0


def test_as_much_text_takes_as_long_as_before_and_more_no_less() -> None:
    pace = Pace()
    took(pace, 200, 0.5)
    assert [pace.seconds(size, 101.0) for size in (20, 200, 250, 4000)] == [0.0, 0.5, 0.5, 0.5]


def test_one_slow_answer_does_not_count_for_long() -> None:
    pace, expected = Pace(), []
    for seconds in (0.1, 1.0, 0.1, 1.0):
        took(pace, 200, seconds)
        expected.append(pace.seconds(200, 200.0))
    average = 0.1
    wanted = [0.1]
    for seconds in (1.0, 0.1, 1.0):
        average = average * (1 - NEW) + seconds * NEW
        wanted.append(min(average, seconds))
    assert [round(one, 9) for one in expected] == [round(one, 9) for one in wanted]


def test_what_is_under_way_comes_first() -> None:
    pace = Pace()
    took(pace, 200, 0.5)
    pace.begin(200, 200.0)
    assert [round(pace.seconds(200, now), 6) for now in (200.0, 200.25, 203.0)] == [1.0, 0.75, 0.5]
    pace.left()
    assert pace.seconds(200, 200.25) == 0.5


def test_what_was_too_slow_is_asked_again_once_in_a_while_and_not_beside_another() -> None:
    pace = Pace()
    assert [pace.again(now) for now in (10.0, 10.5, 10.0 + AGAIN)] == [True, False, True]
    pace.begin(9, 20.0)
    assert not pace.again(30.0)
