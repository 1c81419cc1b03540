"""When all models of a route are down, another one that is said to be good at the same answers, and says so."""

from __future__ import annotations

import os
import pathlib
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, write
from gateway_wires import PATHS, WIRES, request, said, streamed

from sits.engines.scripted import AGAIN, READ, ScriptedServer, answer

MODELS = pathlib.Path(os.environ.get("SITS_TEST_MODELS", pathlib.Path(__file__).parents[2] / ".cache" / "models"))
CHAT = WIRES["chat", "openai"]
BROKEN = answer(500, b'{"error":{"message":"no"}}')
LARGE = {"description": "Turns questions in plain language into SQL for PostgreSQL and MySQL.", "domains": ["databases", "sql"]}
SMALL = {"description": "Turns plain-language questions into SQL queries for MySQL and PostgreSQL.", "domains": ["sql"]}
POET = {"description": "创作古典诗词。", "domains": ["诗词"]}
LOADS = 30.0
"""Seconds for the embedding model to be found, loaded and asked."""


@pytest.fixture
def folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder whose data has the model files that all tests share."""
    (tmp_path / "data").mkdir()
    MODELS.mkdir(parents=True, exist_ok=True)
    (tmp_path / "data" / "models").symlink_to(MODELS)
    return tmp_path


def asked(**spec: Any) -> dict[str, Any]:
    return route("asked", "large", substitutes={}, **spec)


@inside_loop
async def test_the_nearest_model_answers_when_all_that_are_declared_have_failed(folder: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, BROKEN, AGAIN]) as down,
        ScriptedServer([READ, CHAT.answers("SELECT 1"), AGAIN]) as small,
        ScriptedServer([READ, CHAT.answers("诗"), AGAIN]) as poet,
        Gateway(
            folder,
            model("large", down.url, **LARGE),
            model("small", small.url, **SMALL),
            model("poet", poet.url, **POET),
            asked(),
        ) as gateway,
    ):
        substituting = gateway.node.service.substituting
        await eventually(lambda: substituting.current.of("asked") == ("small",), "it is chosen", LOADS)
        found = await gateway.ask(PATHS["chat"], request("chat", "asked"))
        assert (found.status, said("chat", found.body)) == (200, "SELECT 1")
        assert (found.headers["x-sits-target"], found.headers["x-sits-attempts"]) == ("small", "2")
        assert 0.92 <= float(found.headers["x-sits-substitute"]) < 1
        stream = await gateway.ask(PATHS["chat"], request("chat", "asked", stream=True))
        assert (streamed("chat", stream.body), stream.headers["x-sits-target"]) == ("SELECT 1", "small")
        assert "x-sits-substitute" in stream.headers
        none = await gateway.ask(PATHS["chat"], request("chat", "asked"), {"x-sits-fallback": "off"})
        assert (none.status, "x-sits-substitute" in none.headers, len(poet.requests)) == (502, False, 0)


@inside_loop
async def test_who_is_declared_and_up_answers_and_says_nothing_of_substitutes(folder: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, CHAT.answers("SELECT 2"), AGAIN]) as large,
        ScriptedServer([READ, CHAT.answers("SELECT 1"), AGAIN]) as small,
        Gateway(folder, model("large", large.url, **LARGE), model("small", small.url, **SMALL), asked()) as gateway,
    ):
        substituting = gateway.node.service.substituting
        await eventually(lambda: substituting.current.of("asked") == ("small",), "it is chosen", LOADS)
        found = await gateway.ask(PATHS["chat"], request("chat", "asked"))
        assert (found.headers["x-sits-target"], "x-sits-substitute" in found.headers) == ("large", False)
        # What is not said to be alike any more stands in no longer, and the embeddings of before are still there.
        write(gateway.folder, model("large", large.url, **LARGE), model("small", small.url, **POET), asked())
        await gateway.node.reload()
        await eventually(lambda: substituting.current.of("asked") == (), "it is chosen anew", LOADS)
        assert len(small.requests) == 0


@inside_loop
async def test_a_substitute_that_cannot_do_what_a_request_needs_is_not_asked(folder: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, BROKEN, AGAIN]) as down,
        ScriptedServer([READ, CHAT.answers("SELECT 1"), AGAIN]) as small,
        Gateway(
            folder,
            model("large", down.url, **LARGE),
            model("small", small.url, capabilities=["chat"], **SMALL),
            asked(),
        ) as gateway,
    ):
        substituting = gateway.node.service.substituting
        await eventually(lambda: substituting.current.of("asked") == ("small",), "it is chosen", LOADS)
        tools = [{"type": "function", "function": {"name": "f"}}]
        found = await gateway.ask(PATHS["chat"], request("chat", "asked", tools=tools))
        assert (found.status, len(small.requests)) == (502, 0)
        assert (await gateway.ask(PATHS["chat"], request("chat", "asked"))).status == 200
