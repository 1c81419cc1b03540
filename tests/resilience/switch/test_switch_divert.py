"""Who is asked instead of whom, on the way of a request."""

from __future__ import annotations

import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from blake3 import blake3

from sits.inner.errors import Code, SitsError
from sits.resilience.switch.divert import Move, Switches, side_of, verdict
from sits.resilience.switch.watching import Row
from sits.routing.target import Target

CHAT = frozenset(("chat",))
SALT = blake3(b"generation 1").digest()


def target(name: str, *capabilities: str) -> Target:
    return cast("Target", SimpleNamespace(name=name, capabilities=frozenset(capabilities or ("chat",))))


KNOWN = {name: target(name) for name in ("a", "b", "c", "other")} | {"see": target("see", "chat", "vision")}


def move(old: str, new: str, share: float, *routes: str, finished: bool = False, watch: Any = None) -> Move:
    return Move(f"{old}-{new}", old, new, frozenset(routes), share, finished, SALT, watch, 5.0)


def lacks(wanted: frozenset[str]) -> Callable[[Target], str]:
    return lambda one: "" if wanted <= one.capabilities else "cannot do " + ", ".join(sorted(wanted - one.capabilities))


def asked(moves: list[Move], *names: str, route: str = "r", draw: float = 0.0, wanted: frozenset[str] = CHAT) -> list[str]:
    switches = Switches()
    switches.set(moves)
    return [one.name for one in switches.divert(route, [KNOWN[name] for name in names], KNOWN, lacks(wanted), draw)]


ORDERS = {
    "the new one stands before the old one": ([move("a", "b", 0.3)], ("a", "other"), {}, ["b", "a", "other"]),
    "a draw beyond the share changes nothing": ([move("a", "b", 0.3)], ("a", "other"), {"draw": 0.3}, ["a", "other"]),
    "in its place, wherever that is": ([move("a", "b", 0.3)], ("other", "a"), {}, ["other", "b", "a"]),
    "a new one that stands further back comes up": (
        [move("a", "b", 1.0)],
        ("a", "other", "b"),
        {"draw": 0.99},
        ["b", "a", "other"],
    ),
    "a new one that stands before already stays there": ([move("a", "b", 1.0)], ("b", "other", "a"), {}, ["b", "other", "a"]),
    "from the drain on the old one is nowhere": (
        [move("a", "b", 1.0, finished=True)],
        ("other", "a"),
        {"draw": 0.99},
        ["other", "b"],
    ),
    "nor is it a fallback": ([move("a", "b", 1.0, finished=True)], ("b", "a"), {}, ["b"]),
    "other routes are left alone": ([move("a", "b", 1.0, "x")], ("a",), {"route": "r"}, ["a"]),
    "its routes are not": ([move("a", "b", 1.0, "x")], ("a",), {"route": "x"}, ["b", "a"]),
    "no share, no change": ([move("a", "b", 0.0)], ("a",), {}, ["a"]),
    "a route without the old one": ([move("a", "b", 1.0)], ("other",), {}, ["other"]),
    "a new one that this table does not know": ([move("a", "nowhere", 1.0, finished=True)], ("a",), {}, ["a"]),
    "what the new one cannot do the old one does": ([move("see", "b", 1.0)], ("see",), {"wanted": CHAT | {"vision"}}, ["see"]),
    "or the others, when the old one is gone": (
        [move("a", "b", 1.0, finished=True)],
        ("a", "see"),
        {"wanted": CHAT | {"vision"}},
        ["see"],
    ),
    "switches in the order in which they were begun": (
        [move("a", "b", 1.0, finished=True), move("b", "c", 0.5)],
        ("a",),
        {"draw": 0.4},
        ["c", "b"],
    ),
    "a family, all the way": (
        [move("a", "b", 1.0, finished=True), move("b", "c", 1.0, finished=True)],
        ("a", "other"),
        {},
        ["c", "other"],
    ),
    "there and back": ([move("a", "b", 1.0, finished=True), move("b", "a", 1.0, finished=True)], ("a",), {}, ["a"]),
}


@pytest.mark.parametrize(("moves", "names", "how", "wanted"), ORDERS.values(), ids=ORDERS.keys())
def test_whom_to_ask(moves: list[Move], names: tuple[str, ...], how: dict[str, Any], wanted: list[str]) -> None:
    assert asked(moves, *names, **how) == wanted


def test_what_nobody_is_left_to_do_is_refused_by_the_name_of_what_lacks() -> None:
    with pytest.raises(SitsError, match="a was replaced by b, which cannot do vision") as refused:
        asked([move("a", "b", 1.0, finished=True)], "a", wanted=CHAT | {"vision"})
    assert refused.value.code is Code.UNSUPPORTED


def test_a_table_that_does_not_change_is_the_same_object() -> None:
    switches = Switches()
    switches.set([move("a", "b", 0.3)])
    targets = (KNOWN["a"],)
    assert switches.divert("r", targets, KNOWN, lacks(CHAT), 0.9) is targets


def test_only_a_switch_with_a_share_is_live_and_only_one_under_way_is_watched() -> None:
    switches = Switches()
    watch = SimpleNamespace(row=Row(0), since=0.0)
    seen = []
    for moves in (
        [],
        [move("a", "b", 0.0, watch=watch)],
        [move("a", "b", 0.1, watch=watch)],
        [move("a", "b", 1.0, finished=True)],
    ):
        switches.set(moves)
        seen.append((switches.live, switches.watching))
    assert seen == [(False, False), (False, True), (True, True), (True, False)]


def test_a_word_stays_on_its_side_while_the_share_grows_and_shares_are_kept() -> None:
    words = [f"会话-{number}".encode() for number in range(2000)]
    switches = Switches()
    new: set[bytes] = set()
    for share in (0.01, 0.05, 0.25, 0.5, 1.0):
        switches.set([move("a", "b", share)])
        now = {word for word in words if switches.divert("r", [KNOWN["a"]], KNOWN, lacks(CHAT), 0.999, word)[0] is KNOWN["b"]}
        assert new <= now
        assert abs(len(now) / len(words) - share) < 0.04
        new = now
    other = blake3(b"generation 2").digest()
    assert side_of(SALT, words[0]) != side_of(other, words[0])


def test_draws_keep_the_share() -> None:
    switches = Switches()
    switches.set([move("a", "b", 0.25)])
    chance = random.Random(1)
    taken = sum(switches.divert("r", [KNOWN["a"]], KNOWN, lacks(CHAT), chance.random())[0] is KNOWN["b"] for _ in range(4000))
    assert abs(taken / 4000 - 0.25) < 0.03


def test_whoever_is_asked_for_later_is_led_on_too() -> None:
    switches = Switches()
    switches.set([move("a", "b", 1.0, "r", finished=True), move("b", "c", 1.0, finished=True), move("see", "a", 0.5)])
    assert switches.instead("r", "a", KNOWN, 1.0) is KNOWN["c"]
    assert switches.instead("x", "a", KNOWN, 1.0) is None
    assert switches.instead("r", "see", KNOWN, 1.0) is None
    assert switches.instead("r", "other", KNOWN, 1.0) is None


def test_who_was_planned_after_a_replacement_is_not_led_away_from_a_model_that_came_back() -> None:
    switches = Switches()
    gone, back = move("a", "b", 1.0, finished=True), move("b", "a", 0.5)
    switches.set([gone, back])
    assert [one.name for one in switches.divert("r", [KNOWN["a"]], KNOWN, lacks(CHAT), 0.1)] == ["a", "b"]
    assert switches.instead("r", "a", KNOWN, 6.0) is None
    assert switches.instead("r", "a", KNOWN, 4.0) is KNOWN["b"]


def test_what_became_of_requests_goes_to_the_switches_that_they_are_about() -> None:
    watch, elsewhere = (SimpleNamespace(row=Row(0), since=5.0) for _ in range(2))
    switches = Switches()
    switches.set([move("a", "b", 0.5, "r", watch=watch), move("a", "c", 0.5, "x", watch=elsewhere)])
    switches.note("r", "a", True, 10.0, 6.0)
    switches.note("r", "b", False, None, 6.0)
    switches.note("r", "b", True, 10.0, 4.9)
    switches.note("r", "other", True, 10.0, 6.0)
    assert (watch.row.old.requests, watch.row.new.requests, watch.row.new.failures) == (1, 1, 1)
    assert (elsewhere.row.old.requests, elsewhere.row.new.requests) == (0, 0)
    switches.set([move("a", "b", 0.5, watch=watch)])
    switches.note("b", "b", True, 10.0, 6.0)
    assert watch.row.new.requests == 1


VERDICTS = {
    "no error": (None, True),
    "its server is down": (SitsError(Code.UPSTREAM_UNREACHABLE, ""), False),
    "it refuses what the other takes": (SitsError(Code.UPSTREAM_REJECTED, ""), False),
    "it broke off": (SitsError(Code.STREAM_BROKEN, ""), False),
    "the client left": (SitsError(Code.CLIENT_CLOSED, ""), None),
    "we end": (SitsError(Code.DRAINING, ""), None),
    "the client may not": (SitsError(Code.FORBIDDEN, ""), None),
}


@pytest.mark.parametrize(("error", "wanted"), VERDICTS.values(), ids=VERDICTS.keys())
def test_what_an_end_says_of_the_model(error: SitsError | None, wanted: bool | None) -> None:
    assert verdict(error) is wanted
