"""The semantic registry of a node: found by meaning in two languages, imported, graded; over its pages and by the commands."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import quote

import pytest
from click import Command
from click.testing import CliRunner, Result
from gateway_rig import Gateway, inside_loop, model, write
from gateway_wires import PATHS, WIRES, request

from sits.cli.registry import find, registry
from sits.engines.base import Engine
from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.engines.unusable import UnusableEngine
from sits.gateway.embedding import BuiltIn
from sits.gateway.registry import ServiceRegistry, counted
from sits.gateway.registry_pages import RegistryPages
from sits.gateway.substituting import embedding_model
from sits.inner.errors import Code, SitsError
from sits.ports.vectors import Vectors, open_vectors
from sits.resources.registry import ColdSpec, HotSpec, RegistrySpec
from sits.routing.registry import ServiceCard

MODELS = pathlib.Path(os.environ.get("SITS_TEST_MODELS", pathlib.Path(__file__).parents[2] / ".cache" / "models"))
NOWHERE = "http://127.0.0.1:1"
FRAUD = model(
    "transaction-behaviour-analysis",
    NOWHERE,
    description="Scores card payments by how unusual they are for the account holder.",
    domains=["payments", "risk"],
    capabilities=["chat", "tools"],
)
DIGEST = model("long-doc-digest", NOWHERE, description="Condenses reports of hundreds of pages to one.", capabilities=["chat"])
POET = model("poet", NOWHERE, description="创作古典诗词。", domains=["诗词"], capabilities=["chat"])
POET["metadata"]["labels"] = {"team": "文化"}
GRADED = RegistrySpec(HotSpec(qps=100.0), ColdSpec(hours=0.01))


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder whose data has the model files that all tests share."""
    (tmp_path / "data").mkdir()
    MODELS.mkdir(parents=True, exist_ok=True)
    (tmp_path / "data" / "models").symlink_to(MODELS)
    return tmp_path


async def never(seconds: float) -> None:
    """Nothing is looked at but by the test itself: its clock stands still."""
    await asyncio.Event().wait()


class Scene:
    """A gateway with a registry of our own before its pages; the clock and the counts are ours."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self.now = 1000.0
        self.counts: dict[str, float] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.unloaded: list[str] = []
        self.registry = self.made()

    def engine(self) -> Engine:
        node = self.gateway.node
        return node.fleet.engine(embedding_model(), [], node.reloader.current.settings)

    def made(self, **more: Any) -> ServiceRegistry:
        async def unload(name: str) -> bool:
            self.unloaded.append(name)
            return True

        node = self.gateway.node
        given: dict[str, Any] = {"embedder": lambda: BuiltIn(self.engine), "store": node.store, **more}
        return ServiceRegistry(
            self.gateway.folder / "data",
            counts=lambda: self.counts,
            told=lambda event, said: self.events.append((event, said)),
            unload=unload,
            clock=lambda: self.now,
            sleep=never,
            **given,
        )

    async def get(self, path: str) -> Any:
        return json.loads((await self.gateway.ask(path, method="GET")).body)

    async def command(self, command: Command, *arguments: str) -> Result:
        url = f"http://127.0.0.1:{self.gateway.port}"
        return await asyncio.to_thread(CliRunner().invoke, command, [*arguments, "--url", url])


@asynccontextmanager
async def scene(folder: pathlib.Path, *models: dict[str, Any], spec: RegistrySpec | None = None) -> AsyncIterator[Scene]:
    async with Gateway(folder, *models) as gateway:
        made = Scene(gateway)
        RegistryPages(made.registry).add_to(gateway.node._pages)
        try:
            await made.registry.want(gateway.node.reloader.current, spec)
            yield made
        finally:
            await made.registry.aclose()


def names(found: dict[str, Any]) -> list[str]:
    return [row["name"] for row in found["data"]]


@inside_loop
async def test_services_are_found_by_what_they_are_for_in_two_languages_over_pages_and_commands(folder: pathlib.Path) -> None:
    async with scene(folder, FRAUD, DIGEST, POET) as here:
        found = await here.get("/v1/registry/find?q=fraud%20detection&top=2")
        assert (names(found)[0], found["left_out"]) == ("transaction-behaviour-analysis", None)
        first = found["data"][0]
        assert (first["grade"], first["why"], first["cosine"] > 0.3) == ("warm", f"meaning {first['cosine']:.2f}", True)
        for query, name in {
            "欺诈检测": "transaction-behaviour-analysis",
            "长文摘要": "long-doc-digest",
            "write a poem": "poet",
            "POET": "poet",
            "transaction behaviour analysis": "transaction-behaviour-analysis",
        }.items():
            answer = await here.gateway.ask("/v1/registry/find", {"query": query, "top_k": 1})
            assert names(json.loads(answer.body)) == [name]
        asked = {"query": "fraud detection", "capabilities": ["chat"], "labels": {"team": "文化"}}
        assert names(json.loads((await here.gateway.ask("/v1/registry/find", asked)).body)) == ["poet"]
        assert names(await here.get("/v1/registry/find?q=poem&capability=tools")) == ["transaction-behaviour-analysis"]

        told = await here.command(find, "欺诈检测", "--top", "1", "--json")
        assert (told.exit_code, names(json.loads(told.stdout))) == (0, ["transaction-behaviour-analysis"])
        plain = await here.command(find, "fraud detection", "--top", "1")
        assert plain.stdout.split()[0] == "transaction-behaviour-analysis"

        page = await here.get("/v1/registry?limit=2")
        assert (names(page), page["has_more"], page["next"]) == (["long-doc-digest", "poet"], True, "poet")
        page = await here.get("/v1/registry?limit=2&after=poet")
        assert (names(page), page["has_more"], page["next"]) == (["transaction-behaviour-analysis"], False, None)
        assert page["data"][0]["standing"] is None


@pytest.mark.parametrize(
    ("method", "path", "body", "said"),
    [
        pytest.param("GET", "/v1/registry/find?q=%20", None, "the query is empty", id="blank"),
        pytest.param("GET", "/v1/registry/find?q=a&top=1000", None, "top=1000: wanted a number from 1 to 100", id="too many"),
        pytest.param("GET", "/v1/registry/find?q=a&label=b", None, "wanted NAME=VALUE", id="label"),
        pytest.param("GET", "/v1/registry?limit=x", None, "limit=x: wanted a number", id="page"),
        pytest.param(
            "POST", "/v1/registry/find", {"query": "a", "top": 1},
            'top: unknown key, did you mean "top_k"?', id="unknown field",
        ),
        pytest.param(
            "PUT", "/v1/registry/entries", {"origin": "consul", "entries": [{"name": "a\tb"}]},
            "is not a name on one line that does not begin with a blank", id="name",
        ),
        pytest.param(
            "PUT", "/v1/registry/entries", {"origin": "model", "entries": [{"name": "a"}]},
            'origin: "model" is not one of consul, eureka', id="a model by the back door",
        ),
        pytest.param(
            "PUT", "/v1/registry/entries", {"origin": "consul", "entries": [{"name": "a", "origin": "eureka"}]},
            "entries[0].origin: unknown key", id="an origin of its own",
        ),
    ],
)  # fmt: skip
@inside_loop
async def test_what_cannot_be_asked_is_refused(folder: pathlib.Path, method: str, path: str, body: Any, said: str) -> None:
    async with scene(folder, POET) as here:
        answer = await here.gateway.ask(path, body, method=method)
        assert (answer.status, said in json.loads(answer.body)["error"]["message"]) == (400, True)


@inside_loop
async def test_an_entry_that_is_refused_is_named_in_a_body_of_any_size(folder: pathlib.Path) -> None:
    async with scene(folder, POET) as here:
        for others in (1, 900):
            listed = [{"name": f"service-{number}", "description": "words " * 20} for number in range(others)]
            body = {"origin": "consul", "entries": [*listed, {"name": "支付", "healthy": "yes"}]}
            answer = await here.gateway.ask("/v1/registry/entries", body, method="PUT")
            assert (answer.status, json.loads(answer.body)["error"]["message"].endswith(f"(entry {others + 1}, '支付')")) == (
                400,
                True,
            )
        assert names(await here.get("/v1/registry")) == ["poet"]


HOSTILE = {
    "nothing": ("", 400),
    "blanks": (" \n\t\u3000", 400),
    "control characters alone": ("\x00\x1b\x07\x9b", 400),
    "100,000 characters": ("x" * 100_000, 400),
    "100,000 Chinese characters": ("诗" * 100_000, 400),
    "as much as is read, and more": ("poet " * 3000, 200),
    "NUL within": ("poet\x00poet", 200),
    "an escape sequence": ("\x1b[31mpoet\x1b[0m", 200),
    "Chinese": ("诗词" * 900, 200),
    "emoji": ("🧨👩‍👩‍👧 poet", 200),
    "right to left, and marks of none": ("\u202epoet\ufeff\u200d", 200),
    "punctuation": ("...%'\"", 200),
}


@inside_loop
async def test_whatever_is_looked_for_is_found_or_refused_over_pages_and_by_the_command(folder: pathlib.Path) -> None:
    async with scene(folder, POET) as here:
        # Not by meaning: half a second for each of the long ones.
        here.registry._used, here.registry._tried = True, here.now
        for what, (query, status) in HOSTILE.items():
            answer = await here.gateway.ask("/v1/registry/find", {"query": query})
            assert (what, answer.status) == (what, status)
            told = await here.command(find, query, "--json")
            assert (what, told.exit_code, "Traceback" in told.output) == (what, 0 if status == 200 else 1, False)
            if len(query) < 500:
                got = await here.gateway.ask(f"/v1/registry/find?q={quote(query)}", method="GET")
                assert (what, got.status) == (what, status)


@inside_loop
async def test_as_many_as_nobody_can_want_are_refused(folder: pathlib.Path) -> None:
    async with scene(folder, POET) as here:
        for top in ("0", "-1", "1000000000", "1" + "0" * 5000, "0000000001999", "1.0", "", "x"):
            for path in ("/v1/registry/find?q=poet&top=", "/v1/registry?limit="):
                assert (top, (await here.gateway.ask(path + quote(top), method="GET")).status) == (top, 400)
            body = f'{{"query": "poet", "top_k": {top or "null"}}}'.encode()
            assert (top, (await here.gateway.ask("/v1/registry/find", body)).status) == (top, 400)
            told = await here.command(find, "poet", "--top", top)
            assert (top, told.exit_code, "--top" in told.output) == (top, 2, True)


def test_what_is_not_in_utf_8_is_said_and_no_gateway_is_asked() -> None:
    told = CliRunner().invoke(find, ["\udcff", "--url", "http://127.0.0.1:1"])
    assert (told.exit_code, "not in UTF-8" in told.output) == (2, True)
    told = CliRunner().invoke(find, ["a", "--label", "b", "--url", "http://127.0.0.1:1"])
    assert (told.exit_code, "wanted NAME=VALUE" in told.output) == (2, True)


@inside_loop
async def test_what_consul_knows_is_found_beside_the_models_and_goes_with_the_next_import(folder: pathlib.Path) -> None:
    document = folder / "services.json"
    document.write_text(json.dumps({"pay-gw-01": ["checkout", "refunds"], "poet": ["mail"], "geo": ["postcodes"]}))
    async with scene(folder, POET) as here:
        done = await here.command(registry, "import", "consul", str(document), "--json")
        assert (done.exit_code, json.loads(done.stdout)) == (0, {"origin": "consul", "entries": 3, "removed": 0})
        assert names(await here.get(f"/v1/registry/find?q={quote('支付退款')}&top=1")) == ["pay-gw-01"]
        rows = (await here.get("/v1/registry"))["data"]
        assert [(row["name"], row["origin"]) for row in rows] == [("geo", "consul"), ("pay-gw-01", "consul"), ("poet", "model")]
        document.write_text(json.dumps({"geo": ["postcodes"]}))
        # All of it could not have gone by itself, nor more than half.
        for lost in ({}, {"consul": []}, {"geo": ["postcodes"]}):
            document.write_text(json.dumps(lost))
            refused = await here.command(registry, "import", "consul", str(document))
            figures = f"{3 - len(lost.keys() - {'consul'})} of the 3 entries that came from consul"
            assert (refused.exit_code, figures in refused.output, "--allow-removal" in refused.output) == (1, True, True)
            assert len((await here.get("/v1/registry"))["data"]) == 3
        told = await here.command(registry, "import", "consul", str(document), "--allow-removal")
        assert told.stdout == "1 services of consul, 2 that it no longer has\n"
        assert set(names(await here.get("/v1/registry/find?q=refunds"))) == {"poet", "geo"}
        wrong = await here.command(registry, "import", "eureka", str(document))
        assert (wrong.exit_code, "neither `applications` nor `application`" in wrong.output) == (1, True)
        # Another gateway on the same store knows them too.
        other = here.made()
        await other.want(here.gateway.node.reloader.current, None)
        assert [row.name for row in other.services()] == ["geo", "poet"]
        await other.aclose()


@inside_loop
async def test_hot_and_cold_services_are_told_labelled_and_cold_models_unloaded(folder: pathlib.Path) -> None:
    async with scene(folder, FRAUD, POET, spec=GRADED) as here:
        own = here.registry
        for second in range(12):
            here.now += 1
            here.counts["poet"] = 150.0 * second
            own.tick(here.now)
        assert here.events[-1] == (
            "service_grade",
            {"service": "poet", "before": "warm", "after": "hot", "why": "150 requests a second", "pool": "accelerator"},
        )
        here.now += 30.0
        await own.find_by_intent("写一首诗")
        here.now += 10.0
        changes = own.tick(here.now)
        assert {change.name: change.after for change in changes} == {"poet": "warm", "transaction-behaviour-analysis": "cold"}
        await own.act(changes)
        assert here.unloaded == ["transaction-behaviour-analysis"]
        row = next(row for row in (await here.get("/v1/registry"))["data"] if row["name"] == "transaction-behaviour-analysis")
        assert (row["standing"]["grade"], row["standing"]["pool"]) == ("cold", "cpu-low-priority")
        found = await own.find_by_intent("欺诈检测", 1)
        assert [(one.name, one.grade) for one in found.data] == [("transaction-behaviour-analysis", "cold")]
        assert [change.after for change in own.tick(here.now + 1)] == ["warm"]


@inside_loop
async def test_without_the_model_names_and_words_still_find_and_it_is_said(folder: pathlib.Path) -> None:
    async with scene(folder, FRAUD, POET) as here:
        loop = asyncio.get_running_loop()
        asked, away = 0, True

        def engine() -> Engine:
            nonlocal asked
            asked += 1
            return UnusableEngine("no such model here", loop) if away else here.engine()

        broken = here.made(embedder=lambda: BuiltIn(engine))
        await broken.want(here.gateway.node.reloader.current, None)
        found = await broken.find_by_intent("card payments")
        assert [one.name for one in found.data] == ["transaction-behaviour-analysis"]
        assert "no such model here" in found.left_out
        # It is not tried for every query, but again after a while.
        asked, away = 0, False
        await broken.find_by_intent("card payments")
        assert asked == 0
        here.now += 61.0
        assert [one.name for one in (await broken.find_by_intent("写诗", 1)).data] == ["poet"]
        assert (asked > 0, broken.trouble) == (True, "")
        await broken.aclose()


@inside_loop
async def test_vectors_that_are_away_are_left_out_and_said(folder: pathlib.Path) -> None:
    async with scene(folder, POET) as here:

        async def opened() -> Vectors:
            return await open_vectors("redis://127.0.0.1:1", folder, timeout=0.2)

        away = here.made(vectors=opened)
        await away.want(here.gateway.node.reloader.current, None)
        found = await away.find_by_intent("诗词")
        assert ([one.name for one in found.data], found.left_out != "") == (["poet"], True)
        await away.aclose()


@inside_loop
async def test_nothing_is_embedded_before_somebody_searches(folder: pathlib.Path) -> None:
    async with scene(folder, POET) as here:
        assert not (folder / "data" / "registry" / "embeddings.bin").exists()
        both = await asyncio.gather(here.registry.find_by_intent("poem"), here.registry.find_by_intent("写诗"))
        assert ["meaning" in found.data[0].why for found in both] == [True, True], "whoever comes meanwhile waits for it"
        assert (folder / "data" / "registry" / "embeddings.bin").exists()


@inside_loop
async def test_a_new_configuration_is_found_by_after_it_is_wanted(folder: pathlib.Path) -> None:
    async with scene(folder, FRAUD, POET) as here:
        own = here.registry
        await own.find_by_intent("fraud detection")
        write(folder, POET, DIGEST)
        await here.gateway.node.reload()
        await own.want(here.gateway.node.reloader.current, None)
        assert [one.name for one in (await own.find_by_intent("summarise", 5)).data] == ["long-doc-digest", "poet"]


@inside_loop
async def test_a_key_finds_the_models_that_it_may_use(folder: pathlib.Path) -> None:
    async with scene(folder, FRAUD, POET) as here:
        await here.registry.take_entries("eureka", [ServiceCard("FX", domains=("currencies",), origin="eureka")])

        async def seen(allowed: Sequence[str]) -> set[str]:
            found = await here.registry.find_by_intent("anything", 10, allows=lambda name: name in allowed)
            return {one.name for one in found.data}

        assert await seen(["poet"]) == {"poet", "FX"}
        assert await seen([]) == {"FX"}


@inside_loop
async def test_requests_that_came_are_counted_by_target(folder: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, WIRES["chat", "openai"].answers("4"), AGAIN]) as server,
        Gateway(folder, model("adder", server.url)) as gateway,
    ):
        for _ in range(3):
            assert (await gateway.ask(PATHS["chat"], request("chat", "adder"))).status == 200
        gateway.node.service.books.settle()
        assert counted(gateway.node.registry.attempts.children) == {"adder": 3.0}


@inside_loop
async def test_asking_for_nothing_or_too_many_is_an_error(folder: pathlib.Path) -> None:
    async with scene(folder, POET) as here:
        for query, top in (("", 1), ("a", 0), ("a", 101)):
            with pytest.raises(SitsError) as caught:
                await here.registry.find_by_intent(query, top)
            assert caught.value.code is Code.INVALID_REQUEST
