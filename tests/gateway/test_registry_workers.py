"""What one worker or gateway imports into the registry, as others on the same store find it."""

from __future__ import annotations

import asyncio
import json
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
from click.testing import CliRunner
from embedding_kit import KINDS, LAW, MATHS, Server, declared, shrink, story, until
from gateway_rig import Gateway, inside_loop, model

from sits.cli.registry import find
from sits.engines.base import Outgoing, Reply
from sits.gateway import registry as registry_module
from sits.gateway.registry import AGAIN_SECONDS, ENTRIES_SECONDS, TOPIC, ServiceRegistry
from sits.gateway.registry_answer import Answered, lacking_words
from sits.gateway.siblings import Siblings
from sits.inner.errors import Code, SitsError
from sits.ports.store.memory import MemoryStore
from sits.resources.reading import read_value
from sits.resources.registry import RegistrySpec
from sits.resources.snapshot import compile
from sits.routing.registry import ServiceCard

MODELS = compile([read_value(model("sums", "http://127.0.0.1:1", description=MATHS[1]))], 1)
OLD = ServiceCard("court-1", description=LAW[1], origin="consul")
NEW = ServiceCard("court-2", description=LAW[2], origin="consul")
ONE_LACKS = "1 of 2 services has no vector yet, and is found by its name and words alone"


@pytest.fixture(autouse=True)
def small_background(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return shrink(monkeypatch, *KINDS)


class Telling(Server):
    """Sees the subject of a text in its words, so that cards lie near queries."""

    async def _answer(self, request: Outgoing, reply: Reply) -> None:
        def spoil(data: list[Any]) -> Any:
            given = json.loads(request.body)["input"]
            for one, text in zip(data, [given] if isinstance(given, str) else given, strict=True):
                law, maths = (any(some in text for some in listed) for listed in (LAW, MATHS))
                one["embedding"][:2] = [3.0 * law, 3.0 * maths]
            return {"data": data}

        self.spoil = spoil
        await super()._answer(request, reply)


class Machine:
    """Workers on one store; of those on one machine each tells the others. The clock stands still unless it is moved."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.now = 1000.0
        self.store = MemoryStore(lambda: self.now)
        self.servers: list[Telling] = []
        self.workers: list[ServiceRegistry] = []

    async def start(self, folder: str = "", *, alone: bool = False, spec: RegistrySpec | None = None) -> ServiceRegistry:
        """One that knows the models and has been searched; with a folder of its own unless one is named."""
        server = Telling()
        embedder = declared(server)

        async def told() -> None:
            for one in self.workers:
                if one is not made:
                    one.heard()

        async def unload(name: str) -> bool:
            return False

        async def never(seconds: float) -> None:
            await asyncio.Event().wait()

        made = ServiceRegistry(
            self.folder / (folder or str(len(self.servers))),
            lambda: embedder,
            self.store,
            counts=dict,
            told=lambda event, said: None,
            unload=unload,
            clock=lambda: self.now,
            sleep=never,
            others=None if alone else told,
        )
        self.servers.append(server)
        if not alone:
            self.workers.append(made)
        await made.want(MODELS, spec)
        await made.find_by_intent(LAW[3])
        return made


def rows(found: Answered) -> list[tuple[str, bool]]:
    """Names, and whether the cosine is known."""
    return [(one.name, one.cosine is not None) for one in found.data]


def play_on(folder: pathlib.Path, play: Any) -> None:
    async def whole() -> None:
        machine = Machine(folder)
        started = machine.start
        made: list[ServiceRegistry] = []

        async def start(*what: str, **how: Any) -> ServiceRegistry:
            made.append(await started(*what, **how))
            return made[-1]

        machine.start = start  # type: ignore[method-assign]
        try:
            await play(machine)
        finally:
            for one in made:
                await one.aclose()

    story(whole)


@pytest.mark.parametrize("spec", [None, RegistrySpec()], ids=["not graded", "graded"])
def test_what_one_worker_imports_the_others_find_as_soon_as_it_is_answered(
    tmp_path: pathlib.Path, spec: RegistrySpec | None
) -> None:
    async def play(machine: Machine) -> None:
        one, other = await machine.start(spec=spec), await machine.start(spec=spec)
        for cards in ([OLD], [NEW], [OLD, NEW], []):
            await one.take_entries("consul", cards, allow_removal=True)
            names = {"sums", *(card.name for card in cards)}
            for worker in (other, one):
                found = await worker.find_by_intent(LAW[3])
                assert ({one.name for one in found.data}, found.left_out) == (names, "")
                assert all("meaning" in one.why for one in found.data)
                assert {row.name for row in worker.services()} == names

    play_on(tmp_path, play)


@pytest.mark.parametrize("spec", [None, RegistrySpec()], ids=["not graded", "graded"])
def test_another_gateway_finds_what_was_imported_after_the_seconds_between_two_looks(
    tmp_path: pathlib.Path, spec: RegistrySpec | None
) -> None:
    async def play(machine: Machine) -> None:
        here, there = await machine.start(alone=True), await machine.start(alone=True, spec=spec)
        await here.take_entries("consul", [NEW])
        machine.now += ENTRIES_SECONDS
        if spec is not None:
            await there._look(machine.now, entries=True)
        found = await there.find_by_intent(LAW[3])
        assert (rows(found), found.left_out) == ([("court-2", True), ("sums", True)], "")

    play_on(tmp_path, play)


def test_a_card_without_a_vector_is_found_by_words_and_it_is_said(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(machine: Machine) -> None:
        monkeypatch.setattr(registry_module, "CHANGE_PATIENCE", 0.05)
        one, other = await machine.start(), await machine.start()
        await other.find_by_intent(LAW[2])  # Known from here on, so that the model is not asked for it.
        machine.servers[1].hold = asyncio.Event()
        await one.take_entries("consul", [NEW])
        found = await other.find_by_intent(LAW[2])
        assert (rows(found), found.lacking, found.among) == ([("court-2", False), ("sums", True)], 1, 2)
        assert (found.left_out, found.data[0].why.startswith("words: ")) == (ONE_LACKS, True)
        machine.servers[1].hold.set()
        await until(lambda: "court-2" in other._known)
        found = await other.find_by_intent(LAW[2])
        assert (rows(found), found.left_out) == ([("court-2", True), ("sums", True)], "")

    play_on(tmp_path, play)


def test_why_new_cards_have_no_vectors_is_said_until_they_have_and_the_model_is_left_alone_meanwhile(
    tmp_path: pathlib.Path,
) -> None:
    async def play(machine: Machine) -> None:
        own = await machine.start(alone=True)
        (server,) = machine.servers
        server.fault = SitsError(Code.UPSTREAM_UNREACHABLE, "nobody there")
        await own.take_entries("consul", [NEW])
        asked = server.asked
        for _ in range(3):
            found = await own.find_by_intent(LAW[3])
            assert (rows(found), found.left_out) == ([("sums", True)], f"{ONE_LACKS}: nobody there")
        assert server.asked == asked
        server.fault, machine.now = None, machine.now + AGAIN_SECONDS + 1.0
        found = await own.find_by_intent(LAW[3])
        assert (rows(found), found.left_out) == ([("court-2", True), ("sums", True)], "")

    play_on(tmp_path, play)


def test_what_workers_with_one_folder_hear_of_at_once_is_embedded_once(tmp_path: pathlib.Path) -> None:
    async def play(machine: Machine) -> None:
        workers = [await machine.start("shared") for _ in range(3)]
        await workers[0].take_entries("consul", [OLD, NEW])
        for one in workers:
            found = await one.find_by_intent(LAW[3])
            assert ({row for row, known in rows(found) if known}, found.left_out) == ({"sums", "court-1", "court-2"}, "")
        texts = [text for server in machine.servers for text in server.texts]
        assert [texts.count(card.text) for card in (OLD, NEW)] == [1, 1]

    play_on(tmp_path, play)


def test_how_many_have_no_vectors_is_told_in_words() -> None:
    assert [lacking_words(1, 1), lacking_words(2, 1000, "no room")] == [
        "the service has no vector yet, and is found by its name and words alone",
        "2 of 1,000 services have no vectors yet, and are found by their names and words alone: no room",
    ]


@inside_loop
async def test_the_workers_of_a_gateway_tell_each_other_of_imports(tmp_path: pathlib.Path) -> None:
    heard: list[str] = []

    def hear(rest: str) -> bytes:
        heard.append(rest)
        return b"heard"

    async with Gateway(tmp_path, model("poet", "http://127.0.0.1:1")) as gateway:
        sibling = Siblings(tmp_path / "data" / "run", {TOPIC: hear})
        sibling._path = sibling._path.with_name("worker-0.sock")  # As of another process.
        await sibling.start()
        body = {"origin": "consul", "entries": [{"name": "geo"}]}
        assert (await gateway.ask("/v1/registry/entries", body, method="PUT")).status == 200
        assert (heard, await sibling.ask(TOPIC)) == ([""], ([b"heard"], 0))
        await sibling.aclose()


SHOWN: Sequence[tuple[str, list[Any], str | None, str, str]] = (
    ("by meaning", [0.583], None, "0.58", ""),
    ("by words", [None], "no model", "-", "by names and words alone: no model\n"),
    ("some", [0.1, None], "1 of 2", "0.10", "not all by meaning: 1 of 2\n"),
)


@pytest.mark.parametrize(("cosines", "left_out", "shown", "said"), [row[1:] for row in SHOWN], ids=[row[0] for row in SHOWN])
def test_a_cosine_that_is_not_known_is_shown_as_a_dash(
    monkeypatch: pytest.MonkeyPatch, cosines: list[float | None], left_out: str | None, shown: str, said: str
) -> None:
    data = [{"name": f"s{at}", "cosine": one, "why": "words: a", "grade": "warm"} for at, one in enumerate(cosines)]
    monkeypatch.setattr("sits.cli.service.Service.ask", lambda *given: {"data": data, "left_out": left_out})
    told = CliRunner().invoke(find, ["a"])
    assert (told.exit_code, told.stderr, told.stdout.split()[1]) == (0, said, shown)
    assert told.stdout.splitlines()[0] == f"{'s0':<40} {shown:>5}  {'warm':<5} words: a"
