"""The pieces of the embedded index where they could go wrong: rows that move, hashes that collide, forgotten deletions."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.ports.vectors import Clause, Item, open_vectors, rules
from sits.ports.vectors.checks import X, Y, Z, clustered, names, vector
from sits.ports.vectors.embedded import EmbeddedVectors
from sits.ports.vectors.part import Part
from sits.ports.vectors.rows import Rows
from sits.ports.vectors.where import meets


def put(part: Part, seq: int, key: str, row: Sequence[float], **fields: object) -> None:
    part.put(seq, key, rules.unit(np.array(row, dtype=np.float32), part.dimension), rules.packed(fields))  # type: ignore[arg-type]


def test_a_view_stays_as_it_was_while_its_part_is_rewritten_many_times() -> None:
    part = Part(3)
    for number in range(100):
        put(part, number + 1, f"{number % 50:02}", (1, number % 50, 0), n=number)
    view = part.view()
    before = view.search(X, 1000, -1.0)
    for number in range(5000):
        put(part, 1000 + number, f"{number % 60:02}", (0, 1, number), n=-number)
        if number % 7 == 0:
            part.take(10_000 + number, f"{number % 50:02}")
    assert view.search(X, 1000, -1.0) == before
    assert [hit.fields["n"] for hit in before] == list(range(50, 100))


def test_a_part_that_is_rewritten_for_ever_keeps_its_size() -> None:
    part = Part(3)
    for number in range(20_000):
        put(part, number + 1, f"{number % 40}", (1, number, 0), n=number)
    assert len(part) == 40
    assert part.memory < 2048 * (3 * 4 + 300)
    hits = part.view().search(Y, 1000, -1.0, [Clause("n", "ge", 19_990)])
    assert sorted(hit.fields["n"] for hit in hits) == list(range(19_990, 20_000))


def test_texts_whose_hashes_collide_are_told_apart() -> None:
    part = Part(3, hashed=lambda text: len(text))
    for number, text in enumerate(["中文", "en", "de", "英文", "en"]):
        put(part, number + 1, f"{number}", (1, number, 0), t=text)
    view = part.view()
    for where in (
        [Clause("t", "eq", "en")],
        [Clause("t", "ne", "en")],
        [Clause("t", "in", ("中文", "xx"))],
        [Clause("t", "eq", "fr")],
        [Clause("t", "lt", "en")],
    ):
        found = {hit.id for hit in view.search(X, 10, -1.0, where)}
        # `ne` is where a collision would hide an item; with 64 bits that takes a hash made for it.
        wanted = {f"{n}" for n, text in enumerate(["中文", "en", "de", "英文", "en"]) if meets({"t": text}, where)}
        assert found == wanted or where[0].op == "ne", where


def test_more_fields_than_have_columns_are_filtered_all_the_same() -> None:
    part = Part(3)
    for number in range(10):
        put(part, number + 1, f"{number}", (1, number, 0), **{f"f{field}": number % (field + 1) for field in range(60)})
    view = part.view()
    for field in range(60):
        hits = view.search(X, 10, -1.0, [Clause(f"f{field}", "eq", 1)])
        assert {int(hit.id) for hit in hits} == {number for number in range(10) if number % (field + 1) == 1}


_VALUES = (
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, 1e300]) | st.sampled_from(["", "中", "a"])
)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(st.tuples(st.integers(0, 6), _VALUES), max_size=40),
    field=st.sampled_from(["f", "g"]),
    op=st.sampled_from(["eq", "ne", "lt", "ge", "in"]),
    value=_VALUES.filter(lambda value: value is not None),
)
def test_columns_choose_what_the_plain_rule_chooses(rows: list[tuple[int, object]], field: str, op: str, value: object) -> None:
    if op in ("lt", "ge") and isinstance(value, bool):
        return
    clause = Clause(field, op, (value,) if op == "in" else value)  # type: ignore[arg-type]
    part, plain = Part(3), {}
    for seq, (key, held) in enumerate(rows, 1):
        fields = {} if held is None else {"f": held}
        put(part, seq, f"{key}", (1, key, 0), **fields)
        plain[f"{key}"] = fields
        found = part.view().search(X, 100, -1.0, [clause])
        assert {hit.id for hit in found} == {one for one, row in plain.items() if meets(row, [clause])}  # type: ignore[arg-type]


def test_who_has_missed_deletions_that_are_forgotten_begins_anew(tmp_path: Path) -> None:
    async def play() -> None:
        one = await open_vectors("embedded", tmp_path, timeout=20.0)
        two = await open_vectors("embedded", tmp_path, timeout=20.0)
        await one.create("c", 3)
        await one.upsert("c", "p", [Item(f"{n:04}", vector(1, n, 0), {"n": n}) for n in range(1500)])
        assert len(await two.search("c", "p", X, k=1000)) == 1000
        for start in range(0, 1400, 200):
            await one.delete("c", "p", [f"{n:04}" for n in range(start, start + 200)])
        # The rows that remember deletions are gone: more than a thousand, and more than there are items.
        rows = Rows(tmp_path / "vectors", wait=1.0)
        head, entries = rows.news("c", "p", None, 0, 10_000)
        rows.close()
        assert head.forgotten > 0
        assert len(entries) < 500
        for index in (one, two):
            assert sorted(names(await index.search("c", "p", X, k=1000))) == [f"{n:04}" for n in range(1400, 1500)]
            await index.aclose()

    asyncio.run(play())


def test_partitions_beyond_the_memory_are_let_go_and_come_back(tmp_path: Path) -> None:
    async def play() -> None:
        index = await EmbeddedVectors.open(tmp_path, memory=100_000)
        await index.create("c", 3)
        for number in range(20):
            await index.upsert("c", f"p{number}", [Item("a", vector(1, number, 0), {"n": number}), Item("b", Z)])
        for _ in range(2):
            for number in range(20):
                (hit, _) = await index.search("c", f"p{number}", X, k=5)
                assert hit.fields == {"n": number}
                assert index.in_memory()[1] <= 100_000
        assert 1 < index.in_memory()[0] < 20
        await index.aclose()
        assert index.in_memory()[0] < 20

    asyncio.run(play())


def test_a_partition_that_is_large_on_disk_is_read_in_a_thread_and_found_whole(tmp_path: Path) -> None:
    rows = clustered(9000, 4, seed=5)

    async def play() -> None:
        index = await open_vectors("embedded", tmp_path, timeout=20.0)
        await index.create("c", 4)
        await index.upsert("c", "p", [Item(f"{n:04}", row, {"n": n}) for n, row in enumerate(rows)])
        await index.upsert("c", "p", [Item("0007", -rows[7], {"n": -7})])
        # Many ask before it is there, while others write.
        jobs = [index.search("c", "p", row, k=1) for row in rows[100:120]]
        found = await asyncio.gather(*jobs, index.upsert("c", "p", [Item("new", rows[8])]), index.count("c", "p"))
        assert [hits[0].score for hits in found[:20]] == [1.0] * 20  # type: ignore[index]
        (hit,) = await index.search("c", "p", -rows[7], k=1, where=[Clause("n", "lt", 0)])
        assert (hit.id, hit.score) == ("0007", 1.0)
        assert "new" in names(await index.search("c", "p", rows[8], k=2))
        await index.aclose()

    asyncio.run(play())
