"""Who stands in for whom on real embeddings, and what becomes of those that were made."""

from __future__ import annotations

import asyncio
import os
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench.substitutes_set import cards, choices, embeddings, share, texts
from sits.engines.base import Call, Deadlines, Outgoing, Reply
from sits.gateway.substituting import AGAIN_SECONDS, Substituting, embed, embedding_model
from sits.inner.errors import Code, SitsError
from sits.resilience.substitutes import NOBODY, choose, texts_of
from sits.resilience.substitutes.card import card
from sits.resilience.substitutes.shelf import EMBEDDER, Shelf
from sits.resilience.substitutes.space import FILE, Fitted, space, unit
from sits.resources.reading import read_value
from sits.resources.snapshot import Snapshot, compile

MODELS = Path(os.environ.get("SITS_TEST_MODELS", Path(__file__).parents[3] / ".cache" / "models"))


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder whose store of model files is the one that all tests share."""
    data = tmp_path_factory.mktemp("substitutes") / "data"
    data.mkdir()
    MODELS.mkdir(parents=True, exist_ok=True)
    (data / "models").symlink_to(MODELS)
    return data


def model(name: str, description: str | None = None, *, engine: str = "openai", **more: Any) -> dict[str, Any]:
    labels = more.pop("labels", {})
    spec = {"engine": engine, "endpoint": "http://127.0.0.1:1", **more}
    if description is not None:
        spec["description"] = description
    return {"apiVersion": "sits/v1", "kind": "Model", "metadata": {"name": name, "labels": labels}, "spec": spec}


def route(name: str, *backends: str, **spec: Any) -> dict[str, Any]:
    spec = {"backends": [{"model": one} for one in backends], "substitutes": {}, **spec}
    return {"apiVersion": "sits/v1", "kind": "Route", "metadata": {"name": name}, "spec": spec}


def snapshot(*resources: Mapping[str, Any]) -> Snapshot:
    return compile([read_value(dict(one)) for one in resources], 1)


HOUSE = (
    model("sql", "Turns questions in plain language into SQL for PostgreSQL and MySQL.", domains=["databases", "sql"]),
    model("sql-2", "Turns plain-language questions into SQL queries for MySQL and PostgreSQL.", domains=["sql"]),
    model("java", "Writes Java and Spring services, with explanations.", domains=["programming", "java"]),
    model("zh-en", "Translates Chinese into English: contracts, manuals and letters.", domains=["translation"]),
    model("zh-en-2", "Chinese-to-English translator for contracts, manuals and letters.", domains=["translation"]),
    model("en-zh", "Translates English into Chinese: contracts, manuals and letters.", domains=["translation"]),
    model("notes", "病历书写助手，生成病程记录和出院小结。", domains=["病历书写"]),
    model("notes-2", "撰写病历，包括病程记录和出院小结。", domains=["病历"]),
    model("molecules", "设计有机分子的合成路线。", domains=["化学", "合成路线"]),
    model("molecules-2", "Proposes routes for the synthesis of organic molecules.", domains=["chemistry"]),
    model("tax", "Tax adviser for individuals: deductions, returns, deadlines.", domains=["tax advice"]),
    model("silent"),
)


@pytest.fixture(scope="module")
def vectors(house: Path) -> dict[str, bytes]:
    later = [one for one in cards() if one.split == "later"]
    return embeddings(house, [*texts(later), *texts_of(snapshot(*HOUSE, route("r", "sql")))])


def test_the_nearest_that_can_do_the_same_stands_in_whatever_its_language(vectors: dict[str, bytes]) -> None:
    wishes = {
        "queries": route("queries", "sql"),
        "letters": route("letters", "zh-en"),
        "back": route("back", "en-zh"),
        "clinic": route("clinic", "notes-2"),
        "laboratory": route("laboratory", "molecules"),
        "alone": route("alone", "tax"),
        "declared": route("declared", "sql", fallbacks=["sql-2"]),
        "picked": route("picked", "sql", substitutes={"candidates": ["java"]}),
        "strict": route("strict", "sql", substitutes={"least": 0.999}),
        "mute": route("mute", "silent"),
        "plain": {**route("plain", "sql"), "spec": {"backends": [{"model": "sql"}]}},
    }
    chosen = choose(snapshot(*HOUSE, *wishes.values()), vectors)
    assert {name: found for name in (*wishes, "unknown") if (found := chosen.of(name))} == {
        "queries": ("sql-2",),
        "letters": ("zh-en-2",),
        "clinic": ("notes",),
        "laboratory": ("molecules-2",),
    }
    cosine = chosen.cosine("queries", "sql-2")
    assert cosine is not None
    assert 0.92 <= cosine < 1
    assert chosen.cosine("queries", "java") is None
    assert "plain" not in chosen.rows


def test_of_several_backends_each_must_be_near(vectors: dict[str, bytes]) -> None:
    chosen = choose(snapshot(*HOUSE, route("both", "sql", "tax"), route("quiet", "sql", "silent")), vectors)
    assert (chosen.of("both"), chosen.of("quiet")) == ((), ("sql-2",))


def test_without_a_wish_nothing_is_embedded() -> None:
    house = snapshot(*HOUSE, {**route("plain", "sql"), "spec": {"backends": [{"model": "sql"}]}})
    assert (texts_of(house), choose(house, {})) == ([], NOBODY)


def test_a_substitute_hardly_ever_lacks_what_was_asked_of_its_primary(vectors: dict[str, bytes]) -> None:
    later = [one for one in cards() if one.split == "later"]
    taken, wrong = share(choices(later, vectors, space()), 0.92)
    assert wrong / taken < 0.013
    assert taken >= 20


def test_the_labelled_set_is_large_and_half_chinese() -> None:
    everything = cards()
    chinese = sum(one.lang == "zh" for one in everything)
    domains = {split: {one.domain for one in everything if one.split == split} for split in ("tune", "test", "later")}
    assert len(everything) >= 120
    assert 0.45 <= chinese / len(everything) <= 0.55
    assert len(domains["test"]) >= 12
    assert not domains["tune"] & domains["test"]
    assert len({one.id for one in everything}) == len(everything)


def test_the_map_is_of_the_embedder_that_is_asked() -> None:
    import importlib.resources

    import msgspec

    raw = importlib.resources.files("sits.resilience.substitutes").joinpath(FILE).read_bytes()
    fitted = msgspec.msgpack.decode(raw, type=Fitted)
    assert (fitted.embedder, fitted.dimension) == (EMBEDDER, 384)
    local = embedding_model().spec.local
    assert local is not None
    assert local.sha256 is not None
    assert EMBEDDER.endswith(local.sha256[:8])


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 2**32), min_size=1, max_size=3))
def test_places_have_length_one_or_none_at_all(seeds: list[int]) -> None:
    rows = [random.Random(seed).choices((-1.0, 0.0, 0.5), k=384) if seed else [0.0] * 384 for seed in seeds]
    found = space().place([struct.pack("<384f", *row) for row in rows])
    assert found.shape == (len(rows), 128)
    assert (abs((found**2).sum(axis=1) - 1) < 1e-9).all()
    assert (unit(found * 0) == 0).all()


CARDS = {
    "description and domains": (model("a", "Writes poems.", domains=["poetry"]), "Writes poems. poetry"),
    "domains alone": (model("a", domains=["poetry", "poetry", "rhyme"]), "poetry, rhyme"),
    "labels that say what for": (model("a", "Writes.", labels={"task": "poems", "language": "zh"}), "Writes. poems, zh"),
    "labels that do not": (model("a", "Writes.", labels={"family": "coder", "team": "search"}), "Writes."),
    "nothing": (model("a", labels={"family": "coder"}), None),
    "white space": (model("a", " Writes\n  poems. "), "Writes poems."),
}


@pytest.mark.parametrize(("resource", "whole"), CARDS.values(), ids=CARDS.keys())
def test_a_card_says_what_its_model_is_for_and_nothing_else(resource: dict[str, Any], whole: str | None) -> None:
    (found,) = snapshot(resource).models.values()
    made = card(found, frozenset(("chat", "tools")))
    assert (made.whole if made is not None else None) == whole
    assert made is None or made.operations == {"chat"}


# The embeddings that were made.


def test_what_was_made_is_found_by_the_next_process_and_by_no_other_embedder(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "embeddings.bin"
    Shelf(path, "a").keep({"一": b"1234", "two": b"5678"})
    assert Shelf(path, "a").take(["一", "three"]) == {"一": b"1234"}
    Shelf(path, "a").keep({"three": b"9"})
    assert Shelf(path, "a").take(["一", "two", "three"]) == {"一": b"1234", "two": b"5678", "three": b"9"}
    assert Shelf(path, "b").take(["一"]) == {}
    path.write_bytes(b"broken")
    assert Shelf(path, "a").take(["一"]) == {}
    assert [one.name for one in path.parent.iterdir()] == ["embeddings.bin"]


def test_what_is_not_asked_for_any_more_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sits.resilience.substitutes.shelf.MOST", 3)
    shelf = Shelf(tmp_path / "embeddings.bin", "a")
    shelf.keep({"one": b"1", "two": b"2", "three": b"3"})
    shelf.keep({"four": b"4", "five": b"5"})
    assert len(shelf.take(["one", "two", "three", "four", "five"])) == 3
    assert set(shelf.take(["four", "five"])) == {"four", "five"}


class Canned:
    """An engine that answers embeddings from those that were made, or fails as it is told to."""

    def __init__(self, vectors: Mapping[str, bytes], failures: Sequence[SitsError] = ()) -> None:
        self._vectors = vectors
        self._failures = list(failures)
        self.asked: list[list[str]] = []

    def send(self, request: Outgoing, reply: Reply, deadlines: Deadlines) -> Call:
        import base64
        import json

        wanted = json.loads(request.body)["input"]
        self.asked.append(wanted)
        if self._failures:
            asyncio.get_running_loop().call_soon(reply.fail, self._failures.pop(0))
        else:
            data = [
                {"index": index, "embedding": base64.b64encode(self._vectors[text]).decode()}
                for index, text in reversed(list(enumerate(wanted)))
            ]
            asyncio.get_running_loop().call_soon(self._answer, reply, json.dumps({"data": data}).encode())
        return self  # type: ignore[return-value]

    def _answer(self, reply: Reply, body: bytes) -> None:
        reply.head(200, [])
        reply.data(body)
        reply.end()

    def cancel(self) -> None:
        """Nothing is under way."""

    async def probe(self, path: str | None, deadlines: Deadlines) -> None:
        """It is well."""

    async def aclose(self) -> None:
        """It holds nothing."""


def test_a_choice_survives_a_restart_without_the_model(vectors: dict[str, bytes], tmp_path: Path) -> None:
    house = snapshot(*HOUSE, route("queries", "sql"))
    engine = Canned(vectors)

    async def story() -> None:
        first = Substituting(tmp_path, lambda: engine)
        assert first.current is NOBODY
        await first.want(house)
        asked = len(engine.asked)
        second = Substituting(tmp_path, lambda: engine)
        await second.want(house)
        assert first.current.of("queries") == second.current.of("queries") == ("sql-2",)
        once = sorted(text for batch in engine.asked for text in batch)
        assert (once, len(engine.asked)) == (sorted(texts_of(house)), asked)

    asyncio.run(story())


def test_what_fails_is_tried_again_and_said_meanwhile(vectors: dict[str, bytes], tmp_path: Path) -> None:
    house = snapshot(*HOUSE, route("queries", "sql"))
    engine = Canned(vectors, [SitsError(Code.MODEL_UNAVAILABLE, "no room")] * 4)
    waited: list[tuple[float, str]] = []

    async def story() -> None:
        made: list[Substituting] = []

        async def sleep(seconds: float) -> None:
            waited.append((seconds, made[0].trouble))

        one = Substituting(tmp_path, lambda: engine, sleep=sleep)
        made.append(one)
        await one.want(house)
        assert (one.current.of("queries"), one.trouble) == (("sql-2",), "")

    asyncio.run(story())
    assert waited == [(seconds, "no room") for seconds in (*AGAIN_SECONDS, AGAIN_SECONDS[-1])]


def test_a_configuration_that_is_gone_is_not_chosen_for(vectors: dict[str, bytes], tmp_path: Path) -> None:
    house, other = snapshot(*HOUSE, route("queries", "sql")), snapshot(*HOUSE, route("letters", "zh-en"))
    engine = Canned(vectors, [SitsError(Code.MODEL_UNAVAILABLE, "not yet")])

    async def story() -> None:
        made: list[Substituting] = []

        async def sleep(seconds: float) -> None:
            await made[0].want(other)

        one = Substituting(tmp_path, lambda: engine, sleep=sleep)
        made.append(one)
        await one.want(house)
        assert (one.current.of("queries"), one.current.of("letters")) == ((), ("zh-en-2",))

    asyncio.run(story())


def answered(status: int, body: bytes) -> Callable[[Reply], None]:
    def tell(reply: Reply) -> None:
        reply.head(status, [])
        reply.data(body)
        reply.end()

    return tell


def failed(reply: Reply) -> None:
    reply.fail(SitsError(Code.UPSTREAM_TIMEOUT, "slow"))


ANSWERS = [
    ("an error", answered(500, b"no"), Code.UPSTREAM_ERROR),
    ("no JSON", answered(200, b"<html>"), Code.UPSTREAM_BROKEN),
    ("too few", answered(200, b'{"data":[]}'), Code.UPSTREAM_BROKEN),
    ("no base64", answered(200, b'{"data":[{"index":0,"embedding":"*"}]}'), Code.UPSTREAM_BROKEN),
    ("a failure", failed, Code.UPSTREAM_TIMEOUT),
]


@pytest.mark.parametrize(("tell", "code"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_an_answer_that_is_no_list_of_embeddings_is_an_error(tell: Callable[[Reply], None], code: Code) -> None:
    class Odd(Canned):
        def send(self, request: Outgoing, reply: Reply, deadlines: Deadlines) -> Call:
            asyncio.get_running_loop().call_soon(tell, reply)
            return self  # type: ignore[return-value]

    async def story() -> None:
        await embed(Odd({}), ["one"])

    with pytest.raises(SitsError) as caught:
        asyncio.run(story())
    assert caught.value.code is code
