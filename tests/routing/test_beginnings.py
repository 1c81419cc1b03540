"""What is remembered of prompts: who has read how much of one."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.routing.beginnings import EDGES, MOST_BITS, SHORTEST, Beginnings, Reading, beginnings


def test_a_digest_stands_for_all_bytes_up_to_its_edge() -> None:
    one = b"a" * 256 + b"b" * 300
    assert len(beginnings(one)) == 3
    assert beginnings(one + b"more" * 100)[:3] == beginnings(one)
    assert beginnings(b"c" + one[1:])[1] != beginnings(one)[1]
    assert len(beginnings(b"a" * 100_000)) == len(EDGES)
    assert beginnings(b"a" * 255) == []


@given(one=st.text(max_size=12), other=st.text(max_size=12))
@settings(max_examples=50, deadline=None)
def test_teams_share_no_digest(one: str, other: str) -> None:
    body = b"x" * 5000
    shared = set(beginnings(body, one)) & set(beginnings(body, other))
    assert bool(shared) == (one == other)


def test_what_was_used_lately_is_remembered_rather_than_what_was_not() -> None:
    memory = Beginnings(8)
    bit = memory.bit("m0")
    for digest in range(1, 100):
        memory.learn(digest, bit)
        memory.learn(7_000_000, bit)
    assert memory.who(7_000_000) == bit
    assert memory.who(1) == 0


@settings(max_examples=50, deadline=None)
@given(bodies=st.lists(st.integers(0, 200), max_size=80), cap=st.integers(16, 64))
def test_no_more_is_remembered_than_is_said(bodies: list[int], cap: int) -> None:
    memory = Beginnings(cap)
    for body in bodies:
        found = memory.of(bytes([body]) * 2000)
        assert found is not None
        found.sent("a")
        assert len(memory) <= cap


TALK = b'{"model":"chat","messages":[{"role":"system","content":"' + "你是助手。".encode() * 60 + b'"},'
"""956 bytes that all begin with."""
LONG = TALK + b'{"role":"user","content":"' + b"tell me more " * 400


@pytest.mark.parametrize(
    ("sent", "asked", "known"),
    [
        pytest.param([], LONG, {}, id="nobody has read anything"),
        pytest.param([("a", LONG)], LONG, {"a": 6144.0}, id="the same again, up to the last edge"),
        pytest.param([("a", LONG)], LONG + b"and" * 900, {"a": 6144.0}, id="a later turn begins with the one before"),
        pytest.param([("a", TALK + b"x" * 4000)], LONG, {"a": 768.0}, id="only the instructions are the same"),
        pytest.param([("a", LONG), ("b", TALK + b"x" * 4000)], LONG, {"a": 6144.0, "b": 768.0}, id="one has read more"),
        pytest.param([("a", LONG)], b"!" + LONG, {}, id="another first byte"),
        pytest.param([("a", LONG)], LONG[:300], {"a": 256.0}, id="a shorter one"),
        pytest.param([("a", b"z" * 90_000)], b"z" * 90_000, {"a": 90_000.0}, id="beyond the last edge it goes on alike"),
    ],
)
def test_who_has_read_how_much(sent: list[tuple[str, bytes]], asked: bytes, known: dict[str, float]) -> None:
    memory = Beginnings()
    for name, body in sent:
        before = memory.of(body)
        assert before is not None
        before.sent(name)
    found = memory.of(asked)
    assert found is not None
    names = ["c", "b", "a"]
    assert dict(zip(names, found.warm(names), strict=True)) == {"a": 0.0, "b": 0.0, "c": 0.0, **known}
    assert found.sent("a") == known.get("a", 0.0), "it says the same when it is sent"
    assert found.sent("a") >= EDGES[0], "and has been read from then on"


def test_a_prompt_that_is_too_short_is_not_looked_at() -> None:
    assert Beginnings().of(b"x" * (SHORTEST - 1)) is None


def test_nothing_of_a_body_is_kept() -> None:
    memory = Beginnings()
    found = memory.of(b"secret " * 100)
    assert found is not None
    found.sent("a")
    held = [*memory._young, *memory._young.values(), *found._digests, found.size]
    assert all(isinstance(one, int | float) for one in held)


@settings(max_examples=60, deadline=None)
@given(
    data=st.data(),
    bodies=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(200, 9000)), max_size=12),
)
def test_it_is_what_comparing_bytes_would_say(data: st.DataObject, bodies: list[tuple[str, int, int]]) -> None:
    """Up to the edges: nobody has read more than bytes that were alike, and nobody less but for what lies between two edges."""
    made = [(name, (b"%d" % kind) * 100 + b"-%d-" % kind + b"same" * size) for name, kind, size in bodies]
    memory = Beginnings()
    for name, body in made:
        before = memory.of(body)
        assert before is not None
        before.sent(name)
    asked = (b"%d" % data.draw(st.integers(0, 3))) * 100 + b"-0-" + b"same" * data.draw(st.integers(200, 9000))
    found = memory.of(asked)
    assert found is not None
    warm = found.warm(["a", "b", "c"])
    for name, known in zip("abc", warm, strict=True):
        alike = max((_alike(body, asked) for who, body in made if who == name), default=0)
        edge = max((edge for edge in EDGES if edge <= alike), default=0)
        assert known == edge


def _alike(one: bytes, other: bytes) -> int:
    for index, (left, right) in enumerate(zip(one, other, strict=False)):
        if left != right:
            return index
    return min(len(one), len(other))


def test_what_is_told_is_said_again() -> None:
    told = Reading(1000, told={"b": 512.0})
    assert (told.size, told.warm(["a", "b"]), told.sent("b"), told.sent("a")) == (1000.0, [0.0, 512.0], 512.0, 0.0)


@settings(max_examples=30, deadline=None)
@given(before=st.integers(MOST_BITS - 6, MOST_BITS), names=st.lists(st.sampled_from("abcdefgh"), max_size=12))
def test_bits_of_a_list_are_all_different_also_where_the_memory_begins_anew(before: int, names: list[str]) -> None:
    memory = Beginnings()
    memory.bits([f"gone-{number}" for number in range(before)])
    bits = memory.bits(names)
    assert len(set(bits)) == len(set(names))
    assert memory.generation == (1 if before + len(set(names)) > MOST_BITS and names else 0)
    assert [memory.told(name) for name in names] == bits


def test_more_names_at_once_than_a_memory_tells_apart_are_told_apart() -> None:
    memory = Beginnings()
    names = [f"m{number}" for number in range(MOST_BITS + 5)]
    assert len(set(memory.bits(names))) == len(names)


def test_who_is_only_looked_at_is_not_one_that_is_told_apart() -> None:
    memory = Beginnings()
    found = memory.of(LONG)
    assert found is not None
    found.sent("a")
    assert found.warm([f"m{number}" for number in range(MOST_BITS)] + ["a"])[-1] > 0.0
    assert (memory.generation, memory.told("m0")) == (0, 0)
