"""What every `Vectors` must do, as checks that the author of an adapter can run.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_mine_conforms(check):
        asyncio.run(check(make))

`make` opens one more index on the same place each time; the checks close what they open, and leave no collection behind.
`CHECKS` is for every adapter, `LASTING` for those whose items outlive the index that wrote them. `compare` plays a script to two
indexes and holds their answers against each other: for random scripts, beside the exact `MemoryVectors`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

import numpy as np

from sits.inner.errors import Code, SitsError
from sits.ports.vectors.base import Clause, Hit, Item, Scalar, Vector, Vectors
from sits.ports.vectors.where import meets

MakeVectors = Callable[[], Awaitable[Vectors]]
Check = Callable[[MakeVectors], Awaitable[None]]

NEAR = 0.01
"""How far a score may be from the exact cosine."""


def vector(*numbers: float) -> Vector:
    return np.array(numbers, dtype=np.float32)


X, Y, Z = vector(1, 0, 0), vector(0, 1, 0), vector(0, 0, 1)


@asynccontextmanager
async def collection(make: MakeVectors, name: str, dimension: int = 3) -> AsyncIterator[Vectors]:
    """An index with an empty collection, which is dropped in the end."""
    index = await make()
    try:
        await index.drop(name)
        await index.create(name, dimension)
        yield index
        await index.drop(name)
    finally:
        await index.aclose()


async def refusal(call: Awaitable[object]) -> SitsError:
    try:
        answer = await call
    except SitsError as error:
        return error
    raise AssertionError(f"nothing was refused: {answer!r}")


def names(hits: Sequence[Hit]) -> list[str]:
    return [hit.id for hit in hits]


def clustered(count: int, dimension: int, seed: int) -> Vector:
    """Vectors in clusters of about twenty, as embeddings lie."""
    source = np.random.default_rng(seed)
    centres = source.standard_normal((max(1, count // 20), dimension))
    rows = centres[source.integers(0, len(centres), count)] + 0.5 * source.standard_normal((count, dimension))
    return np.asarray(rows, dtype=np.float32)


# Items


async def what_was_put_is_got_back(make: MakeVectors) -> None:
    fields: dict[str, Scalar] = {
        "语言": "中文",
        "n": 7,
        "x": -0.25,
        "big": 2**53,
        "yes": True,
        "no": False,
        "empty": "",
        'é"\\': "'\n\\\"",
    }
    async with collection(make, "put_and_got") as index:
        await index.upsert("put_and_got", "租户", [Item("钥匙", vector(3, 0, 4), fields), Item("bare", Y)])
        first, none, second = await index.get("put_and_got", "租户", ["钥匙", "nothing", "bare"])
        assert none is None
        assert first is not None
        assert second is not None
        assert (first.id, dict(first.fields), second.id, dict(second.fields)) == ("钥匙", fields, "bare", {})
        assert [type(value) for value in first.fields.values() if isinstance(value, bool)] == [bool, bool]
        np.testing.assert_allclose(first.vector, [0.6, 0.0, 0.8], atol=NEAR)
        assert first.vector.dtype == np.float32
        assert first.vector.shape == (3,)
        (hit,) = await index.search("put_and_got", "租户", vector(3, 0, 4), k=1)
        assert (hit.id, hit.score, dict(hit.fields)) == ("钥匙", 1.0, fields)


async def a_put_over_another_replaces_all_of_it(make: MakeVectors) -> None:
    async with collection(make, "replaced") as index:
        await index.upsert("replaced", "p", [Item("a", X, {"old": 1, "both": 1})])
        await index.upsert("replaced", "p", [Item("a", Y, {"new": 2, "both": 2})])
        (item,) = await index.get("replaced", "p", ["a"])
        assert item is not None
        assert dict(item.fields) == {"new": 2, "both": 2}
        (hit,) = await index.search("replaced", "p", Y, k=5)
        assert (hit.score, dict(hit.fields)) == (1.0, {"new": 2, "both": 2})
        assert await index.search("replaced", "p", X, k=5, floor=0.5) == []
        assert await index.search("replaced", "p", Y, k=5, where=[Clause("old", "eq", 1)]) == []
        assert await index.count("replaced", "p") == 1


async def of_two_with_one_id_the_later_is_kept(make: MakeVectors) -> None:
    async with collection(make, "twice") as index:
        await index.upsert("twice", "p", [Item("a", X, {"n": 1}), Item("b", Z), Item("a", Y, {"n": 2})])
        assert await index.count("twice", "p") == 2
        (hit,) = await index.search("twice", "p", Y, k=1)
        assert (hit.id, hit.score, dict(hit.fields)) == ("a", 1.0, {"n": 2})


async def what_is_deleted_is_gone_and_deleting_again_is_no_error(make: MakeVectors) -> None:
    async with collection(make, "deleted") as index:
        await index.upsert("deleted", "p", [Item("a", X), Item("b", Y), Item("c", Z)])
        for _ in range(2):
            await index.delete("deleted", "p", ["a", "c", "never"])
            assert names(await index.search("deleted", "p", X, k=5)) == ["b"]
            assert await index.get("deleted", "p", ["a", "c"]) == [None, None]
            assert (await index.count("deleted", "p"), await index.ids("deleted", "p")) == (1, ["b"])
        await index.upsert("deleted", "p", [Item("a", Z)])
        assert names(await index.search("deleted", "p", Z, k=1)) == ["a"]
        await index.delete("deleted", "p", [])
        await index.upsert("deleted", "p", [])
        assert await index.count("deleted", "p") == 2


async def every_call_sees_the_writes_before_it(make: MakeVectors) -> None:
    async with collection(make, "own_writes") as index:
        for turn in range(12):
            key = f"id {turn}"
            await index.upsert("own_writes", "p", [Item(key, vector(1, turn, 0), {"turn": turn})])
            (hit,) = await index.search("own_writes", "p", vector(1, turn, 0), k=1, where=[Clause("turn", "eq", turn)])
            assert (hit.id, hit.score) == (key, 1.0)
            if turn % 3 == 0:
                await index.delete("own_writes", "p", [key])
                assert await index.search("own_writes", "p", X, k=1, where=[Clause("turn", "eq", turn)]) == []
        assert await index.count("own_writes", "p") == 8


async def calls_at_the_same_time_do_not_disturb_each_other(make: MakeVectors) -> None:
    async def play(index: Vectors, number: int) -> None:
        part = f"p{number % 3}"
        await index.upsert("at_once", part, [Item(f"{number}-{n}", vector(number + 1, n, 1), {"who": number}) for n in range(5)])
        found = await index.search("at_once", part, X, k=10, where=[Clause("who", "eq", number)])
        assert sorted(names(found)) == [f"{number}-{n}" for n in range(5)]
        await index.delete("at_once", part, [f"{number}-0"])

    async with collection(make, "at_once") as index:
        await asyncio.gather(*(play(index, number) for number in range(12)))
        assert [await index.count("at_once", f"p{part}") for part in range(3)] == [16, 16, 16]


# Search


async def scores_are_cosines_whatever_the_lengths(make: MakeVectors) -> None:
    async with collection(make, "cosines") as index:
        rows = {
            "same": vector(200, 0, 0),
            "near": vector(0.4, 0.3, 0),
            "across": vector(0, 0, 1e-20),
            "against": vector(-1e20, 0, 0),
        }
        await index.upsert("cosines", "p", [Item(key, row) for key, row in rows.items()])
        for question in (X, vector(1e-15, 0, 0), vector(1e15, 0, 0)):
            hits = await index.search("cosines", "p", question, k=9)
            assert names(hits) == ["same", "near", "across", "against"]
            np.testing.assert_allclose([hit.score for hit in hits], [1.0, 0.8, 0.0, -1.0], atol=NEAR)
            assert all(-1.0 <= hit.score <= 1.0 for hit in hits)


async def the_floor_and_k_bound_the_hits(make: MakeVectors) -> None:
    async with collection(make, "bounds") as index:
        await index.upsert("bounds", "p", [Item("a", X), Item("b", vector(4, 3, 0)), Item("c", vector(3, 4, 0)), Item("d", Y)])
        rows = [
            (9, -1.0, "abcd"),
            (2, -1.0, "ab"),
            (9, 0.7, "ab"),
            (9, 0.5, "abc"),
            (1, 0.5, "a"),
            (9, 1.0, "a"),
            (1000, 0.0, "abcd"),
        ]
        for k, floor, found in rows:
            assert names(await index.search("bounds", "p", X, k=k, floor=floor)) == list(found), (k, floor)
        assert await index.search("bounds", "p", Z, k=3, floor=0.5) == []


async def equal_scores_come_in_the_order_of_ids(make: MakeVectors) -> None:
    keys = ["中", "b", "a", "é", "B", "文", "c"]
    async with collection(make, "ties") as index:
        await index.upsert("ties", "p", [Item(key, vector(0.3, 0.1, 0.7)) for key in keys] + [Item("best", X)])
        hits = await index.search("ties", "p", X, k=20)
        assert names(hits) == ["best", *sorted(keys, key=str.encode)]
        assert len({hit.score for hit in hits[1:]}) == 1
        assert names(await index.search("ties", "p", X, k=3)) == ["best", "B", "a"]


async def a_search_never_leaves_its_partition(make: MakeVectors) -> None:
    async with collection(make, "parts") as index:
        places = ["p", "P", "租户一", "租户二", "p'\"\\ p", "{p}", "a:b"]
        for number, place in enumerate(places):
            await index.upsert("parts", place, [Item("same", X, {"n": number}), Item(f"own {number}", Y)])
        for number, place in enumerate(places):
            hits = await index.search("parts", place, X, k=50)
            assert [(hit.id, dict(hit.fields)) for hit in hits] == [("same", {"n": number}), (f"own {number}", {})]
        assert await index.partitions("parts") == sorted(places, key=str.encode)
        await index.delete("parts", "p", ["same", "own 0"])
        assert await index.partitions("parts") == sorted(places[1:], key=str.encode)
        assert [await index.count("parts", place) for place in places] == [0, 2, 2, 2, 2, 2, 2]
        assert await index.search("parts", "p", X, k=5) == []
        assert await index.search("parts", "never", X, k=5) == []
        assert await index.get("parts", "never", ["same"]) == [None]
        assert (await index.ids("parts", "never"), await index.count("parts", "never")) == ([], 0)


# Filters

_FILTERED: Mapping[str, Mapping[str, Scalar]] = {
    "a": {"语": "中文", "n": 1, "ok": True, "day": "2026-01-02"},
    "b": {"语": "en", "n": 2.5, "ok": False, "day": "2026-11-30"},
    "c": {"语": '日"本\\', "n": -3, "day": "２０２６"},
    "d": {},
    "e": {"语": True, "n": "1", "ok": 1, "day": 20260102},
    "f": {"语": "", "n": 0, "day": ""},
    "g": {"语": "中文文", "n": -0.0},
}

_ANSWERS: Sequence[tuple[Clause, str]] = (
    (Clause("语", "eq", "中文"), "a"),
    (Clause("语", "eq", '日"本\\'), "c"),
    (Clause("语", "eq", ""), "f"),
    (Clause("语", "ne", "中文"), "bcdefg"),
    (Clause("语", "in", ("中文", "en", "de")), "ab"),
    (Clause("语", "in", ()), ""),
    (Clause("n", "eq", 1), "a"),
    (Clause("n", "eq", 1.0), "a"),
    (Clause("n", "eq", "1"), "e"),
    (Clause("n", "eq", 0), "fg"),
    (Clause("n", "ne", 1), "bcdefg"),
    (Clause("n", "lt", 0), "c"),
    (Clause("n", "le", 0), "cfg"),
    (Clause("n", "gt", 1), "b"),
    (Clause("n", "ge", 1), "ab"),
    (Clause("n", "ge", -1e300), "abcfg"),
    (Clause("n", "gt", 1.5e-217), "ab"),
    (Clause("n", "le", 5e-324), "cfg"),
    (Clause("n", "lt", -1e-7), "c"),
    (Clause("n", "in", (1, 2.5, "1")), "abe"),
    (Clause("ok", "eq", True), "a"),
    (Clause("ok", "eq", False), "b"),
    (Clause("ok", "eq", 1), "e"),
    (Clause("ok", "ne", True), "bcdefg"),
    (Clause("ok", "in", (True, False)), "ab"),
    (Clause("day", "lt", "2026-06"), "af"),
    (Clause("day", "ge", "2026-06"), "bc"),
    (Clause("day", "gt", ""), "abc"),
    (Clause("day", "le", "２０２６"), "abcf"),
    (Clause("none", "eq", 1), ""),
    (Clause("none", "ne", 1), "abcdefg"),
    (Clause("none", "lt", 1), ""),
    (Clause("none", "in", (1, "x")), ""),
)


async def filters_choose_exactly(make: MakeVectors) -> None:
    async with collection(make, "filters") as index:
        await index.upsert(
            "filters", "p", [Item(key, vector(1, place, 0), row) for place, (key, row) in enumerate(_FILTERED.items())]
        )
        for clause, found in _ANSWERS:
            assert "".join(key for key, row in _FILTERED.items() if meets(row, [clause])) == found, f"the table: {clause}"
            hits = await index.search("filters", "p", X, k=20, where=[clause])
            assert "".join(names(hits)) == found, clause
        both = [Clause("n", "lt", 2), Clause("语", "ne", "中文")]
        assert "".join(names(await index.search("filters", "p", X, k=20, where=both))) == "cfg"
        assert "".join(names(await index.search("filters", "p", X, k=2, where=both))) == "cf"
        assert await index.search("filters", "p", X, k=2, where=[*both, Clause("n", "gt", 5)]) == []
        text = [Clause("day", "ge", "2026"), Clause("n", "lt", 2)]
        assert "".join(names(await index.search("filters", "p", X, k=1, where=text))) == "a"


async def many_items_are_found_and_filtered(make: MakeVectors) -> None:
    """1,200 items: recall of the top 5 at least 0.95, the filter exact, the far end of a rare filter reached."""
    rows = clustered(1200, 32, seed=7)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    async with collection(make, "many", 32) as index:
        for start in range(0, len(rows), 400):
            await index.upsert(
                "many", "p", [Item(f"{n:04}", rows[n], {"n": n, "third": n % 3 == 0}) for n in range(start, start + 400)]
            )
        assert await index.count("many", "p") == 1200
        right = 0
        for number in range(0, 1200, 60):
            best = np.argsort(-(units @ units[number]))[:5]
            hits = await index.search("many", "p", rows[number], k=5)
            assert (hits[0].id, hits[0].score) == (f"{number:04}", 1.0)
            right += len({f"{n:04}" for n in best} & set(names(hits)))
            chosen = await index.search("many", "p", rows[number], k=5, where=[Clause("third", "eq", True)])
            assert [int(key) % 3 for key in names(chosen)] == [0] * 5
        assert right >= 0.95 * 100, f"{right} of 100"
        rare = [Clause("n", "in", (3, 600, 1199))]
        assert sorted(names(await index.search("many", "p", rows[0], k=5, where=rare))) == ["0003", "0600", "1199"]


# Collections, partitions, ids


async def ids_come_in_pages_in_the_order_of_their_bytes(make: MakeVectors) -> None:
    keys = [
        "a",
        "A",
        "ab",
        "中",
        "中文",
        "文",
        "é",
        "😀",
        "\uffee",
        " ",
        "%",
        '"',
        "\\",
        "'",
        "{x}",
        "a\nb",
        "0",
        "00",
        "-",
        "x" * 256,
    ]
    ordered = sorted(keys, key=str.encode)
    async with collection(make, "pages") as index:
        await index.upsert("pages", "p", [Item(key, X) for key in keys])
        await index.upsert("pages", "q", [Item("other", X)])
        assert await index.ids("pages", "p") == ordered
        got: list[str] = []
        while page := await index.ids("pages", "p", after=got[-1] if got else "", limit=7):
            got += page
        assert got == ordered
        assert await index.ids("pages", "p", after="b", limit=2) == [key for key in ordered if key > "b"][:2]
        found = await index.get("pages", "p", keys)
        assert [item and item.id for item in found] == keys


async def a_partition_or_a_collection_is_dropped_whole(make: MakeVectors) -> None:
    async with collection(make, "dropped") as index:
        for place in ("p", "q"):
            await index.upsert("dropped", place, [Item("a", X, {"n": 1}), Item("b", Y)])
        await index.search("dropped", "p", X, k=1)
        await index.drop("dropped", "p")
        await index.drop("dropped", "never")
        assert await index.search("dropped", "p", X, k=5) == []
        assert (await index.partitions("dropped"), await index.count("dropped", "q")) == (["q"], 2)
        await index.upsert("dropped", "p", [Item("c", X)])
        assert names(await index.search("dropped", "p", X, k=5)) == ["c"]
        await index.drop("dropped")
        await index.drop("dropped")
        assert (await refusal(index.search("dropped", "q", X, k=1))).code is Code.NOT_FOUND
        await index.create("dropped", 2)
        assert await index.partitions("dropped") == []
        await index.upsert("dropped", "p", [Item("d", vector(0, 1))])
        assert names(await index.search("dropped", "p", vector(0, 1), k=5)) == ["d"]


async def a_collection_keeps_its_dimension(make: MakeVectors) -> None:
    async with collection(make, "dimensions") as index:
        await index.create("dimensions", 3)
        error = await refusal(index.create("dimensions", 4))
        assert (error.code, error.param) == (Code.CONFLICT, "dimension")
        assert "3" in error.message
        await index.upsert("dimensions", "p", [Item("a", X)])
        assert await index.count("dimensions", "p") == 1


async def a_collection_that_is_not_there_is_named(make: MakeVectors) -> None:
    index = await make()
    try:
        calls = (
            index.upsert("nowhere", "p", [Item("a", X)]),
            index.search("nowhere", "p", X, k=1),
            index.get("nowhere", "p", ["a"]),
            index.delete("nowhere", "p", ["a"]),
            index.ids("nowhere", "p"),
            index.partitions("nowhere"),
            index.count("nowhere", "p"),
        )
        for call in calls:
            error = await refusal(call)
            assert (error.code, error.param) == (Code.NOT_FOUND, "collection"), error
            assert "nowhere" in error.message
        await index.drop("nowhere")
        await index.drop("nowhere", "p")
    finally:
        await index.aclose()


# What is refused


async def vectors_that_have_no_direction_or_another_shape_are_refused(make: MakeVectors) -> None:
    bad = [
        vector(0, 0, 0),
        vector(np.nan, 1, 0),
        vector(np.inf, 0, 0),
        vector(-np.inf, 1, 1),
        vector(1, 0),
        vector(1, 0, 0, 0),
        np.ones((1, 3), dtype=np.float32),
    ]
    async with collection(make, "directions") as index:
        for row in bad:
            for call in (
                index.upsert("directions", "p", [Item("good", X), Item("bad", row)]),
                index.search("directions", "p", row, k=1),
            ):
                error = await refusal(call)
                assert (error.code, error.param) == (Code.INVALID_REQUEST, "vector"), (row, error)
        assert await index.count("directions", "p") == 0, "the good one was put in"
        tiny = vector(1e-30, 0, 0)
        await index.upsert("directions", "p", [Item("tiny", tiny)])
        assert (await index.search("directions", "p", tiny, k=1))[0].score == 1.0


async def names_fields_and_clauses_that_may_not_be_are_refused(make: MakeVectors) -> None:
    async with collection(make, "refusals") as index:

        def put(part: str = "p", key: str = "a", **fields: Scalar) -> Awaitable[object]:
            return index.upsert("refusals", part, [Item(key, X, fields)])

        def find(*where: Clause, k: int = 1) -> Awaitable[object]:
            return index.search("refusals", "p", X, k=k, where=where)

        calls: list[Awaitable[object]] = [
            *(index.create(name, 3) for name in ("", "A", "a-b", "1a", "名", "a" * 42, "a\n")),
            *(index.create("refusals", dimension) for dimension in (0, -1, 1_000_000)),
            *(put(part=name) for name in ("", "a\0b", "x" * 257, "中" * 86, "\ud800")),
            *(put(key=name) for name in ("", "a\0b", "x" * 257, "\ud800")),
            *(put(f=value) for value in (float("nan"), float("inf"), 2**53 + 1, "a\0b", "\ud800", "x" * 9000)),
            put(f=[1]),  # type: ignore[arg-type] # on purpose
            index.upsert("refusals", "p", [Item("a", X, {"": 1})]),
            index.upsert("refusals", "p", [Item("a", X, {"名" * 22: 1})]),
            *(find(k=k) for k in (0, -1, 1001)),
            find(Clause("f", "eq", (1, 2))),
            find(Clause("f", "in", 1)),
            find(Clause("f", "lt", True)),
            find(Clause("f", "eq", float("nan"))),
            find(Clause("", "eq", 1)),
            index.ids("refusals", "p", limit=0),
            index.get("refusals", "p", ["a\0"]),
            index.delete("refusals", "p", ["x" * 257]),
            index.count("refusals", ""),
        ]
        for number, call in enumerate(calls):
            error = await refusal(call)
            assert error.code is Code.INVALID_REQUEST, (number, error)
        assert await index.partitions("refusals") == []


async def flushing_and_closing_may_be_repeated(make: MakeVectors) -> None:
    index = await make()
    await index.flush()
    await index.flush()
    await index.aclose()
    await index.aclose()


# What outlives an index


async def what_was_flushed_is_there_when_opened_again(make: MakeVectors) -> None:
    rows = clustered(300, 3, seed=3)
    index = await make()
    await index.drop("reopened")
    await index.create("reopened", 3)
    await index.upsert("reopened", "p", [Item(f"{n:03}", row, {"n": n}) for n, row in enumerate(rows)])
    await index.delete("reopened", "p", [f"{n:03}" for n in range(0, 300, 2)])
    await index.flush()
    before = await index.search("reopened", "p", rows[1], k=10, where=[Clause("n", "gt", 100)])
    await index.aclose()
    again = await make()
    try:
        assert await again.count("reopened", "p") == 150
        assert await again.ids("reopened", "p") == [f"{n:03}" for n in range(1, 300, 2)]
        assert await again.search("reopened", "p", rows[1], k=10, where=[Clause("n", "gt", 100)]) == before
        assert (await refusal(again.create("reopened", 4))).code is Code.CONFLICT
        await again.drop("reopened")
    finally:
        await again.aclose()


async def two_indexes_on_one_place_see_each_others_writes(make: MakeVectors) -> None:
    async with collection(make, "shared") as one:
        two = await make()
        try:
            assert await two.search("shared", "p", X, k=5) == []
            await one.upsert("shared", "p", [Item("a", X, {"by": 1}), Item("b", Y)])
            assert names(await two.search("shared", "p", X, k=5)) == ["a", "b"]
            await two.upsert("shared", "p", [Item("a", Y, {"by": 2})])
            (hit, _) = await one.search("shared", "p", Y, k=5)
            assert (hit.id, dict(hit.fields)) == ("a", {"by": 2})
            await two.delete("shared", "p", ["b"])
            assert names(await one.search("shared", "p", Y, k=5)) == ["a"]
            await two.drop("shared", "p")
            assert await one.search("shared", "p", Y, k=5) == []
            await two.upsert("shared", "p", [Item("c", Z)])
            assert names(await one.search("shared", "p", Z, k=5)) == ["c"]
            await two.drop("shared")
            assert (await refusal(one.search("shared", "p", Z, k=5))).code is Code.NOT_FOUND
            await two.create("shared", 2)
            await one.upsert("shared", "p", [Item("d", vector(1, 1))])
            assert names(await two.search("shared", "p", vector(1, 1), k=5)) == ["d"]
        finally:
            await two.aclose()


# Against the exact one


class Step(NamedTuple):
    """One call of a script: `put`, `delete`, `drop` (the partition) or `search`."""

    call: str
    partition: str
    items: tuple[Item, ...] = ()
    ids: tuple[str, ...] = ()
    vector: Vector | None = None
    k: int = 3
    floor: float = -1.0
    where: tuple[Clause, ...] = ()


async def compare(index: Vectors, exact: Vectors, name: str, steps: Sequence[Step]) -> None:
    """Play a script to both, into a collection that both have, and see that every answer is as good."""
    for step in steps:
        for one in (index, exact):
            if step.call == "put":
                await one.upsert(name, step.partition, step.items)
            elif step.call == "delete":
                await one.delete(name, step.partition, step.ids)
            elif step.call == "drop":
                await one.drop(name, step.partition)
        if step.call == "search":
            await _compare_search(index, exact, name, step)
    assert await index.partitions(name) == await exact.partitions(name)
    for partition in await exact.partitions(name):
        ids = await exact.ids(name, partition)
        assert await index.ids(name, partition) == ids
        for mine, theirs in zip(await index.get(name, partition, ids), await exact.get(name, partition, ids), strict=True):
            assert mine is not None
            assert theirs is not None
            assert dict(mine.fields) == dict(theirs.fields)
            np.testing.assert_allclose(mine.vector, theirs.vector, atol=NEAR)


async def _compare_search(index: Vectors, exact: Vectors, name: str, step: Step) -> None:
    """The scores place by place, and each hit against its own exact score: which of two that nearly tie is first may differ."""
    assert step.vector is not None
    found = await index.search(name, step.partition, step.vector, k=step.k, floor=step.floor, where=step.where)
    wanted = await exact.search(name, step.partition, step.vector, k=1000, where=step.where)
    right = {hit.id: hit for hit in wanted}
    for hit in found:
        assert hit.id in right, f"{hit} is not among {names(wanted)}"
        assert abs(hit.score - right[hit.id].score) <= NEAR
        assert dict(hit.fields) == dict(right[hit.id].fields)
    assert len(set(names(found))) == len(found)
    assert [hit.score for hit in found] == sorted((hit.score for hit in found), reverse=True)
    sure = [hit for hit in wanted if hit.score >= step.floor + NEAR][: step.k]
    assert len(found) >= len(sure), f"{names(found)} of {names(sure)}"
    for mine, theirs in zip(found, sure, strict=False):
        assert mine.score >= theirs.score - NEAR


CHECKS: tuple[Check, ...] = (
    what_was_put_is_got_back,
    a_put_over_another_replaces_all_of_it,
    of_two_with_one_id_the_later_is_kept,
    what_is_deleted_is_gone_and_deleting_again_is_no_error,
    every_call_sees_the_writes_before_it,
    calls_at_the_same_time_do_not_disturb_each_other,
    scores_are_cosines_whatever_the_lengths,
    the_floor_and_k_bound_the_hits,
    equal_scores_come_in_the_order_of_ids,
    a_search_never_leaves_its_partition,
    filters_choose_exactly,
    many_items_are_found_and_filtered,
    ids_come_in_pages_in_the_order_of_their_bytes,
    a_partition_or_a_collection_is_dropped_whole,
    a_collection_keeps_its_dimension,
    a_collection_that_is_not_there_is_named,
    vectors_that_have_no_direction_or_another_shape_are_refused,
    names_fields_and_clauses_that_may_not_be_are_refused,
    flushing_and_closing_may_be_repeated,
)

LASTING: tuple[Check, ...] = (
    what_was_flushed_is_there_when_opened_again,
    two_indexes_on_one_place_see_each_others_writes,
)
