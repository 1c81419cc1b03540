"""Who asks an engine keeps it, over every release of what nobody needs; and what nobody asks is ended."""

from __future__ import annotations

import asyncio
import os
import pathlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from embedding_kit import KINDS, LAW, MATHS, Server, domain, ready, shrink
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, settings, write

from sits.engines.local.engine import LocalEngine
from sits.gateway.fleet import Fleet
from sits.gateway.registry import unloaded
from sits.gateway.substituting import embedding_model
from sits.inner.sweep import Sweep
from sits.inner.turn import Turn
from sits.resources.kinds import Model, SettingsSpec

MODELS = pathlib.Path(os.environ.get("SITS_TEST_MODELS", pathlib.Path(__file__).parents[2] / ".cache" / "models"))
NOWHERE = "http://127.0.0.1:1"
PAY = model("pay", NOWHERE, description="Scores card payments.", capabilities=["chat"])
TWIN = model("twin", NOWHERE, description="Judges payments by card.", capabilities=["chat"])
DOMAINS = (domain("law", *LAW), domain("maths", *MATHS))


class Loaded(Server):
    """A local model: from its making to its end."""

    def __init__(self) -> None:
        super().__init__()
        self.closed = False

    async def aclose(self) -> None:
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Loaded]:
    """Every local model that was loaded, in order."""
    shrink(monkeypatch, *KINDS)
    found: list[Loaded] = []

    def local_engine(model: Model, models: Any) -> Loaded:
        found.append(Loaded())
        return found[-1]

    monkeypatch.setattr("sits.gateway.fleet.local_engine", local_engine)
    return found


@pytest.fixture
def data(tmp_path: pathlib.Path) -> pathlib.Path:
    """A data folder that has the model files that all tests share."""
    MODELS.mkdir(parents=True, exist_ok=True)
    (tmp_path / "models").symlink_to(MODELS)
    return tmp_path


async def search(gateway: Gateway, number: int) -> None:
    found = await gateway.ask(f"/v1/registry/find?q=pay{number}", method="GET")
    assert (found.status, found.json.get("left_out")) == (200, None)


async def verdict(gateway: Gateway, number: int) -> None:
    await ready(gateway.node.routing.intent)
    found = await gateway.ask("/v1/admin/intent", {"text": f"text {number}"})
    assert (found.status, found.json["stage"]) == (200, "deep")


async def both(gateway: Gateway, number: int) -> None:
    await search(gateway, number)
    await verdict(gateway, number)


Act = Callable[[Gateway, int], Awaitable[None]]


@pytest.mark.parametrize(
    ("resources", "act"),
    [
        pytest.param((PAY,), search, id="searches of the registry, no domain declared"),
        pytest.param((PAY, settings(registry={})), search, id="searches of a registry that grades"),
        pytest.param((PAY, *DOMAINS), verdict, id="verdicts"),
        pytest.param((PAY, *DOMAINS), both, id="searches and verdicts"),
        pytest.param((PAY, TWIN, route("r", "pay", substitutes={})), search, id="searches where substitutes were chosen"),
    ],
)
@inside_loop
async def test_who_is_asked_again_and_again_is_loaded_once(
    tmp_path: pathlib.Path, made: list[Loaded], resources: tuple[dict[str, Any], ...], act: Act
) -> None:
    async with Gateway(tmp_path, *resources) as gateway:
        await act(gateway, 0)
        first, asked = made[-1], made[-1].asked
        for number in range(1, 5):
            await gateway.node._release()
            await act(gateway, number)
        assert (made[-1] is first, first.closed) == (True, False)
        assert first.asked >= asked + 4
    assert all(one.closed for one in made)


@inside_loop
async def test_the_embedder_of_domains_ends_when_the_last_domain_has_gone(tmp_path: pathlib.Path, made: list[Loaded]) -> None:
    async with Gateway(tmp_path, PAY, *DOMAINS) as gateway:
        await verdict(gateway, 0)
        write(tmp_path, PAY, settings())
        await gateway.node.reload()
        await gateway.node._release()
        assert [one.closed for one in made] == [True]


@inside_loop
async def test_the_embedder_of_substitutes_is_kept_while_they_are_chosen_and_ends_then(
    tmp_path: pathlib.Path, made: list[Loaded]
) -> None:
    async with Gateway(tmp_path, PAY, TWIN) as gateway:
        go = asyncio.Event()
        engine = gateway.node._embedding()
        assert isinstance(engine, Loaded)
        engine.hold = go
        write(tmp_path, PAY, TWIN, settings(), route("r", "pay", substitutes={}))
        await gateway.node.reload()
        await eventually(lambda: any(one.asked for one in made), "it is asked for embeddings")
        asked = made[-1]
        for _ in range(3):
            await gateway.node._release()
        assert not asked.closed
        go.set()
        substituting = gateway.node.substituting
        await eventually(lambda: not substituting.engines() and "r" in substituting.current.rows, "they are chosen")
        await gateway.node._release()
        assert (asked.closed, made[-1] is asked) == (True, True)


@inside_loop
async def test_a_model_that_nobody_asks_is_not_loaded_for_the_registry(tmp_path: pathlib.Path, made: list[Loaded]) -> None:
    async with Gateway(tmp_path, PAY) as gateway:
        await gateway.node._release()
        assert made == []


@inside_loop
async def test_a_model_is_said_to_be_unloaded_only_where_it_was_loaded(data: pathlib.Path) -> None:
    fleet = Fleet(asyncio.get_running_loop(), Sweep(), data, Turn(asyncio.get_running_loop().call_soon))
    engine = fleet.engine(embedding_model(), [], SettingsSpec())
    assert isinstance(engine, LocalEngine)
    said = [await unloaded(None), await unloaded(engine)]
    await engine.warm()
    said += [await unloaded(engine), await unloaded(engine)]
    await fleet.aclose()
    assert said == [False, False, True, False]
