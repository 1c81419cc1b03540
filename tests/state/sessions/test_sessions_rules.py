"""One change of a path, and two that did not know of each other."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.inner.errors import SitsError
from sits.state.clocks import Stamp, VectorClock
from sits.state.sessions.context import LARGEST_LOST, Change, Context
from sits.state.sessions.rules import RuleRow, canonical, join, rule_of
from sits.state.sessions.shapes import Held, PathConflict

ROWS = (RuleRow("a/最/*", "max"), RuleRow("a/*", "append"), RuleRow("a/b", "reject"), RuleRow("*", "union"))


@pytest.mark.parametrize(
    ("path", "rule"),
    [("a/最/1", "max"), ("a/最", "append"), ("a/b", "append"), ("a", "union"), ("", "union")],
    ids=["a longer beginning that comes first", "a star needs its beginning", "the first row counts", "all", "nothing"],
)
def test_the_first_row_that_fits_says_the_rule(path: str, rule: str) -> None:
    assert rule_of(path, ROWS) == rule
    assert rule_of(path, ()) == "last-writer"


@pytest.mark.parametrize(
    ("rule", "have", "update", "after"),
    [
        ("last-writer", b"a", b"\xff", b"\xff"),
        ("last-writer", b"a", None, None),
        ("reject", None, b"a", b"a"),
        ("append", None, b'[ "\xe4\xba\xba", {"b":1} ]', '["人",{"b":1}]'.encode()),
        ("append", b"[]", b"[1]", b"[1]"),
        ("append", b"[1]", b"[]", b"[1]"),
        ("append", b"[1,[2]]", b"[1]", b"[1,[2],1]"),
        ("append", b"[1]", None, None),
        ("union", None, b'["b", "a", "b"]', b'["a","b"]'),
        ("union", b'["a","b"]', b'[{"y":1,"x":2},"a"]', b'["a","b",{"x":2,"y":1}]'),
        ("max", b"3", b"2.5", b"3"),
        ("max", b"3", b" 10 ", b"10"),
        ("max", None, b"-1", b"-1"),
    ],
)
def test_an_update_joins_what_is_there(rule: str, have: bytes | None, update: bytes | None, after: bytes | None) -> None:
    assert join(rule, have, canonical(rule, "p", update)) == after  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rule", "update"),
    [
        ("append", b"{}"),
        ("append", b"[1"),
        ("union", b"1"),
        ("max", b'"1"'),
        ("max", b"true"),
        ("max", b"NaN"),
        ("append", b"[\xff]"),
    ],
)
def test_an_update_that_is_not_what_its_rule_wants_is_refused(rule: str, update: bytes) -> None:
    with pytest.raises(SitsError) as refused:
        canonical(rule, "路", update)  # type: ignore[arg-type]
    assert (refused.value.code.value, refused.value.param) == ("invalid_request", "updates.路")


EARLY, LATE = Stamp(1000, 0, "x"), Stamp(2000, 0, "x")
HEAD = VectorClock((("a", 1), ("x", 5)))
SEEN_LESS = VectorClock((("x", 4),))


@pytest.mark.parametrize(
    ("rule", "theirs", "ours", "stamp", "outcome", "lost"),
    [
        ("last-writer", b"t", b"o", LATE, "ours", b"t"),
        ("last-writer", b"t", b"o", EARLY, "theirs", b"o"),
        ("last-writer", b"t", b"t", LATE, "same", None),
        ("last-writer", None, b"o", EARLY, "theirs", b"o"),
        ("last-writer", None, None, LATE, "same", None),
        ("last-writer", b"t", None, LATE, "ours", b"t"),
        ("append", b"[1]", b"[1]", EARLY, "both", None),
        ("append", b"[1]", None, LATE, "theirs", None),
        ("append", None, b"[1]", EARLY, "both", None),
        ("union", b"[1]", b"[2]", EARLY, "both", None),
        ("max", b"7", b"3", EARLY, "both", None),
        ("max", None, None, EARLY, "same", None),
        ("reject", b"t", b"o", LATE, "rejected", b"o"),
        ("reject", b"t", b"t", LATE, "same", None),
        ("reject", None, b"o", LATE, "rejected", b"o"),
    ],
)
def test_two_changes_that_did_not_know_of_each_other(
    rule: str, theirs: bytes | None, ours: bytes | None, stamp: Stamp, outcome: str, lost: bytes | None
) -> None:
    context = Context({"p": Held(theirs, "x", 5, Stamp(1500, 0, "x"))})
    rows = (RuleRow("p", rule),)  # type: ignore[arg-type]
    decision = context.decide(Change("b", 1, SEEN_LESS, stamp, {"p": ours, "q": b"1"}), HEAD, rows)
    settled = PathConflict("p", rule, outcome, lost)  # type: ignore[arg-type]
    applied = {"p": ours} if outcome in ("ours", "both") else {}
    assert decision.paths == (settled,)
    assert (decision.updates, decision.fork) == ({**applied, "q": b"1"}, True)


def test_a_fork_that_touches_nothing_in_common_is_a_fork_all_the_same() -> None:
    context = Context({"p": Held(b"t", "x", 4, LATE)})
    decision = context.decide(Change("b", 1, SEEN_LESS, EARLY, {"p": b"o"}), HEAD, ())
    assert (decision.updates, decision.paths, decision.fork) == ({"p": b"o"}, (), True)


def test_a_change_that_has_seen_all_wins_whatever_its_stamp() -> None:
    context = Context({"p": Held(b"t", "x", 5, LATE)})
    decision = context.decide(Change("b", 1, HEAD, EARLY, {"p": b"o"}), HEAD, (RuleRow("p", "reject"),))
    assert (decision.updates, decision.paths, decision.fork) == ({"p": b"o"}, (), False)


def test_of_large_values_that_gave_way_the_beginning_is_kept() -> None:
    large = b"x" * (LARGEST_LOST + 1)
    held = {f"p{n}": Held(large, "x", 5, EARLY) for n in range(6)}
    decision = Context(held).decide(Change("b", 1, SEEN_LESS, LATE, dict.fromkeys(held, b"o")), HEAD, ())
    assert [(len(one.lost or b""), one.cut) for one in decision.paths] == [(LARGEST_LOST, True)] * 4 + [(0, True)] * 2


_updates = st.dictionaries(st.sampled_from(["a", "人", "b/1"]), st.one_of(st.none(), st.binary(max_size=5)), max_size=3)


@given(changes=st.lists(_updates, max_size=8))
def test_the_hash_and_size_that_grow_with_changes_are_those_of_what_is_held(changes: list[dict[str, bytes | None]]) -> None:
    context = Context()
    for number, updates in enumerate(changes, 1):
        context = context.after(updates, "n", number, Stamp(number, 0, "n"), ())
    whole = Context(context.held)
    assert (context.hash, context.size) == (whole.hash, whole.size)
    values: dict[str, bytes | None] = {}
    for updates in changes:
        values |= updates
    assert context.values() == {path: value for path, value in values.items() if value is not None}
