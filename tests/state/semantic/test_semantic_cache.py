"""The semantic cache as a whole: what is a hit, what is kept, and what happens when a part fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Awaitable, Callable

import numpy as np
import pytest
from semantic_rig import EMBEDDER, HOUR, NOW, ROOM, Rig, answered, asked

from sits.bench import semantic_pairs
from sits.inner.errors import Code, SitsError
from sits.ports.store.memory import Away, MemoryStore
from sits.ports.vectors.memory import MemoryVectors
from sits.state.cache.eviction import Limit
from sits.state.cache.exact import ExactCache
from sits.state.cache.rules import Wish
from sits.state.cache.semantic import Facet, Freshness, Policy, Query, SemanticCache, SharedAnswers, WordLlama, sources
from sits.state.cache.semantic.cache import collection
from sits.state.cache.shared import SharedCache
from sits.state.cache.tinylfu import TinyLfu

KEPT = "How do I reset my password?"
REWORDED = "Could you tell me how I can reset my password, please?"


def with_rig(test: Callable[[Rig], Awaitable[None]], limit: Limit = ROOM) -> None:
    async def run() -> None:
        await test(await Rig(limit).started())

    asyncio.run(run())


def test_another_wording_is_a_hit_and_another_question_is_not() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep(KEPT)
        assert await rig.find(REWORDED) == KEPT
        assert await rig.find("How do I change my password?") is None
        assert await rig.find("Why do I reset my password?") is None
        assert (rig.cache.tally.hits, rig.cache.tally.misses) == (1, 2)

    with_rig(run)


def test_a_hit_brings_the_answer_and_says_how_near_it_was() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep(KEPT)
        found = await rig.cache.lookup(asked(REWORDED), NOW)
        assert found is not None
        assert (found.answer, found.text, found.key) == (answered(KEPT), KEPT, asked(KEPT).key)
        assert 0.9 <= found.score < 1
        same = await rig.cache.lookup(asked(KEPT), NOW)
        assert same is not None
        assert same.score == 1

    with_rig(run)


def test_the_nearest_wording_wins() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep("Tell me how my password can be reset")
        await rig.keep(KEPT)
        assert await rig.find("How do I reset my password, please?") == KEPT

    with_rig(run)


def test_callers_raise_the_threshold_and_never_lower_it() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep(KEPT)
        assert await rig.find(REWORDED, threshold=0.5) == KEPT
        assert await rig.find(REWORDED, threshold=0.999) is None
        strict = Policy(threshold=0.999)
        assert await rig.cache.lookup(asked(REWORDED, threshold=0.1), NOW, strict) is None
        assert rig.cache.tally.below == 2

    with_rig(run)


def test_partitions_are_borders() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep(KEPT, partition="north")
        assert await rig.find(KEPT, partition="south") is None
        assert await rig.find(REWORDED, partition="south") is None
        assert await rig.find(REWORDED, partition="north") == KEPT

    with_rig(run)


def test_the_same_question_over_other_documents_is_another_question() -> None:
    async def run(rig: Rig) -> None:
        over = (sources(["handbook@7"]), Facet("domain", "hr"))
        await rig.keep("How many days of leave do I have?", facets=over)
        question = "How many days of leave have I got?"
        assert await rig.find(question, facets=over) is not None
        assert await rig.find(question, facets=(sources(["handbook@8"]), over[1])) is None
        assert await rig.find(question, facets=(sources(["handbook@7", "faq@1"]), over[1])) is None
        assert await rig.find(question, facets=(over[0], Facet("domain", "law"))) is None
        assert await rig.find(question, facets=over[:1]) is None
        assert await rig.find(question) is None

    with_rig(run)


def test_facets_may_be_compared_within_a_distance() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep("What is the stock price?", facets=(Facet("time", 1000.0, within=60.0),))
        for moment, hit in ((1000, True), (940, True), (1060, True), (939, False), (1061, False)):
            found = await rig.find("what's the stock price", facets=(Facet("time", float(moment), within=60.0),))
            assert (found is not None) == hit

    with_rig(run)


def test_a_contract_of_freshness_is_kept() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep(KEPT, freshness=Freshness("faq", "eu"))
        assert await rig.find(REWORDED, freshness=Freshness("faq", "eu", max_age=1.0)) == KEPT
        assert await rig.find(REWORDED, freshness=Freshness("faq", "us")) is None
        assert await rig.find(REWORDED, freshness=Freshness("chat", "eu")) is None
        later = NOW + 0.6 * HOUR
        assert await rig.find(REWORDED, later, freshness=Freshness("faq", "eu", max_age=0.5)) is None
        assert await rig.find(KEPT, later, freshness=Freshness("faq", "eu", max_age=0.5)) is None
        assert await rig.find(REWORDED, later, freshness=Freshness("faq", "eu", max_age=0.7)) == KEPT

    with_rig(run)


def test_stale_answers_are_not_given() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep(KEPT)
        assert await rig.find(REWORDED, NOW + HOUR - 1) == KEPT
        assert await rig.find(REWORDED, NOW + HOUR) is None

    with_rig(run)


def test_the_clients_wish_is_heard() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep(KEPT)
        for wish, hit in (
            (Wish(read=False), False),
            (Wish(max_age=5), False),
            (Wish(max_age=20), True),
            (Wish(min_fresh=HOUR), False),
        ):
            found = await rig.cache.lookup(asked(REWORDED), NOW + 10, wish=wish)
            assert (found is not None) == hit
        assert await rig.find(REWORDED) == KEPT

    with_rig(run)


UNFIT = [
    ("cut", answered(KEPT, finish="length")),
    ("filtered", answered(KEPT, finish="content_filter")),
    ("a tool call", answered(KEPT, finish="tool_calls")),
    ("stale", answered(KEPT, NOW - 2 * HOUR)),
]


@pytest.mark.parametrize("answer", [row[1] for row in UNFIT], ids=[row[0] for row in UNFIT])
def test_only_complete_good_answers_are_kept(answer: object) -> None:
    async def run(rig: Rig) -> None:
        assert not await rig.cache.store(asked(KEPT), answer, NOW, rig.cache.moment)  # type: ignore[arg-type]
        assert (await rig.vectors_held(), rig.cache.tally.unfit) == (0, 1)

    with_rig(run)


def test_a_question_of_no_words_is_only_itself() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep("How are you?")
        assert await rig.find("how are you") == "How are you?"
        assert await rig.find("How am I?") is None
        assert await rig.find("???") is None

    with_rig(run)


class Renamed(WordLlama):
    def __init__(self, version: str) -> None:
        super().__init__(64)
        self.version = version


def test_vectors_of_two_embedders_are_never_compared() -> None:
    names = {collection(embedder) for embedder in (WordLlama(64), WordLlama(128), WordLlama(256), Renamed("9"))}
    assert len(names) == 4
    assert all(len(name) <= 41 for name in names)

    async def run() -> None:
        vectors = MemoryVectors()
        old = await Rig(vectors=vectors, embedder=Renamed("1")).started()
        new = await Rig(vectors=vectors, embedder=Renamed("2")).started()
        await old.keep(KEPT)
        assert await old.find(REWORDED) == KEPT
        assert await new.find(REWORDED) is None

    asyncio.run(run())


def test_a_vector_without_an_answer_is_a_miss_and_goes() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep(KEPT)
        await rig.answers.delete(asked(KEPT).key)
        assert await rig.find(REWORDED) is None
        assert (await rig.vectors_held(), rig.cache.tally.dangling) == (0, 1)
        await rig.keep(KEPT)
        assert await rig.find(REWORDED) == KEPT

    with_rig(run)


def test_what_is_evicted_leaves_the_index() -> None:
    async def run(rig: Rig) -> None:
        for number in range(100):
            await rig.keep(f"How do I open door number {number}?")
        assert len(rig.answers.cache) <= 20
        assert await rig.vectors_held() == len(rig.answers.cache)

    with_rig(run, Limit(1 << 20, 20))


def test_purge_by_tag_takes_answers_and_vectors() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep(KEPT, tags=("model:a", "route:r"))
        await rig.keep("Where is the nearest bank?", tags=("model:b", "route:r"))
        late = rig.cache.moment
        assert await rig.cache.purge("model:a") == 1
        assert await rig.find(REWORDED) is None
        assert await rig.find("Where's the nearest bank?") is not None
        assert await rig.vectors_held() == 1
        assert not await rig.cache.store(asked(KEPT), answered(KEPT, tags=("model:a",)), NOW, late)
        assert await rig.cache.purge() == 1
        assert await rig.vectors_held() == 0

    with_rig(run)


def test_what_is_stale_leaves_the_index_though_nobody_asks_for_it() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep(KEPT)
        await rig.keep("Where is the nearest bank?", now=NOW + HOUR)
        assert await rig.cache.sweep(NOW + HOUR + 60) == 1
        assert (await rig.vectors_held(), len(rig.answers.cache)) == (1, 1)

    with_rig(run)


def test_what_all_nodes_share_is_looked_through_for_what_is_stale() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        vectors = MemoryVectors()

        def node() -> SemanticCache:
            answers = SharedAnswers(SharedCache(ExactCache(TinyLfu(ROOM)), MemoryStore(), loop=loop))
            return SemanticCache(embedder=EMBEDDER, vectors=vectors, answers=answers, clock=lambda: 0.0)

        made, other = node(), node()
        await made.start()
        for number in range(300):
            await made.store(asked(f"How do I open door {number}?"), answered("x"), NOW, made.moment)
        await made.store(asked(KEPT, partition="q"), answered(KEPT, NOW + HOUR), NOW + HOUR, made.moment)
        assert [await other.sweep(NOW + HOUR) for _ in range(4)] == [256, 44, 0, 0]
        assert (await vectors.count(other.collection, "p"), await vectors.count(other.collection, "q")) == (0, 1)

    asyncio.run(run())


def test_an_index_that_is_away_is_a_miss_and_left_alone_for_a_while() -> None:
    async def run(rig: Rig) -> None:
        await rig.keep(KEPT)
        rig.vectors.away = True
        assert await rig.find(REWORDED) is None
        assert await rig.find(KEPT) == KEPT, "the very words need no index"
        rig.vectors.away = False
        assert await rig.find(REWORDED) is None, "it rests"
        assert not await rig.keep("Where is the bank?")
        rig.time += 1.5
        assert await rig.find(REWORDED) == KEPT
        assert (rig.cache.tally.failures, rig.cache.tally.skipped) == (1, 2)

    with_rig(run)


def test_a_store_that_fails_costs_the_vector_only() -> None:
    async def run(rig: Rig) -> None:
        rig.vectors.away = True
        assert not await rig.keep(KEPT)
        rig.vectors.away, rig.time = False, 5.0
        assert await rig.find(REWORDED) is None
        assert await rig.find(KEPT) == KEPT

    with_rig(run)


def test_what_happens_to_one_cache_never_cools_the_other() -> None:
    async def run(rig: Rig) -> None:
        exact = ExactCache(TinyLfu(Limit(1 << 20, 50)))
        await rig.keep(KEPT, now=NOW)
        for number in range(500):
            exact.store(number.to_bytes(16, "big"), answered("x"), NOW, exact.moment)
        exact.purge()
        exact.sweep(NOW + 9 * HOUR)
        assert await rig.find(REWORDED) == KEPT

    with_rig(run)


def test_processes_that_share_an_index_but_not_their_answers_have_collections_of_their_own() -> None:
    async def run() -> None:
        vectors = MemoryVectors()
        one = await Rig(vectors=vectors, owner="1").started()
        await one.keep(KEPT)
        two = await Rig(vectors=vectors, owner="2").started()
        assert await two.find(REWORDED) is None
        assert await one.find(REWORDED) == KEPT

    asyncio.run(run())


def test_answers_in_the_store_are_shared_and_outlive_the_process() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        vectors, store = MemoryVectors(), MemoryStore()

        async def node() -> SemanticCache:
            answers = SharedAnswers(SharedCache(ExactCache(TinyLfu(ROOM)), store, loop=loop, patience=1.0))
            made = SemanticCache(embedder=EMBEDDER, vectors=vectors, answers=answers, clock=lambda: 0.0)
            await made.start()
            return made

        one, two = await node(), await node()
        tagged = answered(KEPT, tags=("model:a",))
        assert await one.store(asked(KEPT), tagged, NOW, one.moment)
        await one._answers.cache.settle()  # type: ignore[attr-defined]
        found = await two.lookup(asked(REWORDED), NOW)
        assert found is not None
        assert found.answer == tagged
        await one.purge("model:a")
        third = await node()
        assert await third.lookup(asked(REWORDED), NOW) is None
        assert third.tally.dangling == 1

    asyncio.run(run())


def test_a_store_that_does_not_answer_takes_no_vectors_away() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        vectors, store = MemoryVectors(), MemoryStore()
        shared = SharedCache(ExactCache(TinyLfu(Limit(1 << 20, 100))), store, loop=loop, patience=1.0)
        cache = SemanticCache(embedder=EMBEDDER, vectors=vectors, answers=SharedAnswers(shared), clock=lambda: 0.0)
        await cache.start()
        await cache.store(asked(KEPT), answered(KEPT), NOW, cache.moment)
        await shared.settle()
        shared.own.purge()
        store.away = Away.BEFORE
        assert await cache.lookup(asked(REWORDED), NOW) is None
        assert (cache.tally.failures, cache.tally.dangling) == (1, 0)
        assert await vectors.count(cache.collection, "p") == 1

    asyncio.run(run())


def test_a_defect_is_not_taken_for_an_outage() -> None:
    class Broken(MemoryVectors):
        async def search(self, *args: object, **more: object) -> list[object]:  # type: ignore[override]
            raise SitsError(Code.INVALID_REQUEST, "a defect")

    async def run() -> None:
        rig = await Rig(vectors=Broken()).started()
        with pytest.raises(SitsError, match="a defect"):
            await rig.find(KEPT)

    asyncio.run(run())


def test_no_tenant_is_ever_given_anothers_answer() -> None:
    crossed, own = asyncio.run(semantic_pairs.cross_tenant(25_000, 7, semantic_pairs.pairs(), EMBEDDER))
    assert crossed == 0
    assert own > 750, "there was something to hit"


def test_the_bench_holds_its_bounds_but_those_of_time() -> None:
    figures = semantic_pairs.rows(trials=2000, crowd=200)
    held = {figure.name.removeprefix("semantic_") for figure in figures if figure.bound}
    assert held == {"hit_ratio", "false_hits", "crowded_false_hits", "cross_tenant_hits", "lookup_p50"}
    assert [figure for figure in figures if figure.ok is False and figure.unit != "ms"] == []


def test_vectors_are_those_of_the_package() -> None:
    texts = ["How do I pay?", "怎么退款？", "naïve café"]
    code = (
        "import sys, pathlib, wordllama; root = str(pathlib.Path(wordllama.__file__).parent);"
        "found = wordllama.WordLlama.load(disable_download=True, cache_dir=root);"
        f"sys.stdout.buffer.write(found.embed({texts!r}, norm=True).tobytes())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    theirs = np.frombuffer(done.stdout, dtype=np.float32).reshape(3, 256)
    assert np.allclose(WordLlama(256).embed(texts), theirs, atol=1e-5)


def test_a_text_without_tokens_has_no_vector() -> None:
    assert not EMBEDDER.embed([""]).any()


def test_another_dimension_is_refused() -> None:
    with pytest.raises(SitsError) as caught:
        WordLlama(100)
    assert caught.value.code is Code.INVALID_REQUEST


def test_queries_with_the_same_words_but_another_case_of_code_have_keys_of_their_own() -> None:
    assert Query("what is `A`", "p").key != Query("what is `a`", "p").key
