"""Hot and cold, on a clock that we turn."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.registry import Change, Grades, Rules
from sits.routing.registry.grade import Standing

HOUR, DAY = 3600.0, 86400.0


def graded(*names: str, now: float = 0.0) -> Grades:
    grades = Grades(Rules())
    grades.declare(names, now)
    return grades


def flow(grades: Grades, name: str, qps: float, begin: float, seconds: int, total: float = 0.0) -> float:
    """Count `qps` requests each second; the total after it."""
    for second in range(seconds + 1):
        grades.counted(name, total + qps * second, begin + second)
    return total + qps * seconds


def test_more_than_500_requests_a_second_with_a_fresh_vector_are_hot_down_to_400() -> None:
    grades = graded("a")
    grades.renewed("a", 0.0)
    total = flow(grades, "a", 500.0, 0.0, 20)
    assert grades.tick(20.0) == []
    total = flow(grades, "a", 501.0, 20.0, 20, total)
    assert grades.tick(40.0) == [Change("a", "warm", "hot", "501 requests a second")]
    total = flow(grades, "a", 450.0, 40.0, 20, total)
    assert grades.tick(60.0) == []
    assert grades.standing("a", 60.0) == Standing("hot", "accelerator", 450.0, 60.0, None)
    flow(grades, "a", 399.0, 60.0, 20, total)
    assert grades.tick(80.0) == [Change("a", "hot", "warm", "399 requests a second")]


def test_the_first_seconds_of_a_start_and_a_clock_that_goes_back_make_nobody_hot() -> None:
    grades = graded("a")
    grades.renewed("a", 0.0)
    total = flow(grades, "a", 5000.0, 0.0, 2)
    assert grades.tick(2.0) == []
    grades.counted("a", total + 1e6, 2.0)
    grades.counted("a", total + 2e6, 1.0)
    for now in (2.0, 1.0, 0.0, -5.0):
        assert grades.tick(now) == []
        standing = grades.standing("a", now)
        assert standing is not None
        assert standing.grade == "warm"
    flow(grades, "a", 5000.0, 2.0, 6, total + 2e6)
    assert [change.after for change in grades.tick(8.0)] == ["hot"]


def test_the_clock_may_leap_and_nobody_is_cold_for_a_time_in_which_nobody_asked() -> None:
    grades = graded("a")
    for leap in (HOUR, DAY, 30 * DAY, 3650 * DAY):
        grades.counted("a", 7.0, leap)
        assert grades.tick(leap) == []
    standing = grades.standing("a", 3650 * DAY)
    assert standing is not None
    assert (standing.grade, standing.best_cosine) == ("warm", None)


def test_a_vector_older_than_an_hour_makes_nobody_hot() -> None:
    grades = graded("a")
    flow(grades, "a", 900.0, 0.0, 10)
    assert grades.tick(10.0) == []
    grades.renewed("a", 10.0)
    assert [change.after for change in grades.tick(11.0)] == ["hot"]
    flow(grades, "a", 900.0, HOUR, 11, 9000.0)
    assert grades.tick(HOUR + 11) == [Change("a", "hot", "warm", "its vector was not renewed for 3600 s")]
    grades.renewed("a", HOUR + 12)
    assert [change.after for change in grades.tick(HOUR + 12)] == ["hot"]


def test_a_day_without_a_query_that_comes_near_is_cold_and_the_first_near_one_ends_it() -> None:
    grades = graded("meant", "never")
    for hour in range(25):
        grades.asked({"meant": 0.6, "never": 0.29}, hour * HOUR)
        grades.counted("never", float(hour), hour * HOUR)
        assert grades.tick(hour * HOUR) == (
            [] if hour < 24 else [Change("never", "warm", "cold", "the nearest query had 0.29 in 24 h")]
        )
    standing = grades.standing("never", DAY)
    assert standing is not None
    assert (standing.grade, standing.pool, standing.best_cosine) == ("cold", "cpu-low-priority", 0.29)
    grades.asked({"never": 0.3}, DAY + 60)
    assert grades.tick(DAY + 60) == [Change("never", "cold", "warm", "a query with 0.30 came")]
    assert [grades.grade("meant"), grades.grade("never"), grades.grade("unknown")] == ["warm", "warm", "warm"]


def test_nobody_is_cold_while_nobody_asks_the_registry() -> None:
    grades = graded("a")
    assert grades.tick(3 * DAY) == []
    grades.asked({}, 3 * DAY)
    assert grades.tick(3 * DAY) == [Change("a", "warm", "cold", "no query came near in 24 h")]


def test_who_is_asked_for_by_name_is_not_cold_whatever_queries_mean() -> None:
    grades = graded("busy", "idle")
    for hour in range(25):
        grades.asked({"busy": 0.1, "idle": 0.1}, hour * HOUR)
        grades.counted("busy", 61.0 * hour, hour * HOUR)
        grades.counted("idle", 50.0 * hour, hour * HOUR)
    assert [change.name for change in grades.tick(DAY)] == ["idle"]
    grades.counted("idle", 1250.0 + 3000.0, DAY + 1)
    assert grades.tick(DAY + 1) == [Change("idle", "cold", "warm", "it is asked for again")]


def test_a_service_that_nobody_asked_for_is_not_said_to_be_asked_for_again() -> None:
    grades = graded("idle")
    grades.asked({"idle": 0.1}, DAY)
    assert [change.after for change in grades.tick(DAY)] == ["cold"]
    said = "it is not known any more to be cold: no query at all in 24 h"
    assert grades.tick(3 * DAY) == [Change("idle", "cold", "warm", said)]


def test_a_counter_that_began_anew_is_no_negative_rate() -> None:
    grades = graded("a")
    flow(grades, "a", 10.0, 0.0, 5)
    grades.counted("a", 3.0, 6.0)
    grades.counted("a", 13.0, 7.0)
    standing = grades.standing("a", 7.0)
    assert standing is not None
    assert standing.qps == 10.0


def test_services_that_go_are_forgotten_and_come_back_as_new_ones() -> None:
    grades = graded("a", "b")
    grades.asked({}, 0.0)
    grades.declare(["b"], DAY)
    assert grades.standing("a", DAY) is None
    grades.declare(["a", "b"], DAY)
    grades.asked({}, DAY)
    assert [change.name for change in grades.tick(DAY + 1)] == ["b"]


@settings(max_examples=60)
@given(
    steps=st.lists(
        st.tuples(st.floats(0, 2 * HOUR), st.floats(0, 2000), st.floats(-1, 1), st.booleans()), min_size=1, max_size=60
    )
)
def test_a_grade_is_never_against_its_rule(steps: list[tuple[float, float, float, bool]]) -> None:
    grades, now, total, best = graded("a"), 0.0, 0.0, [(0.0, -1.0)]
    renewed = None
    for pause, qps, cosine, renew in steps:
        now += pause
        grades.counted("a", total, now)
        total += qps * 10
        now += 10
        grades.counted("a", total, now)
        grades.asked({"a": cosine}, now)
        best.append((now, cosine))
        if renew:
            grades.renewed("a", now)
            renewed = now
        grades.tick(now)
        standing = grades.standing("a", now)
        assert standing is not None
        if standing.grade == "hot":
            assert renewed is not None
            assert now - renewed <= HOUR
            assert standing.qps > 400
        if standing.grade == "cold":
            assert now >= DAY
            assert all(one < 0.3 for at, one in best if at > now - DAY)
