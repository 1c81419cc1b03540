"""A configuration that somebody cannot bear leaves the old one serving; nothing is kept of what is declared no more; and clients
cannot make records long."""

from __future__ import annotations

import json
import logging
import pathlib
from collections.abc import Sequence
from typing import Any

import pytest
from gateway_client import eventually
from gateway_rig import Gateway, inside_loop, model, route, settings, write
from gateway_wires import OPENAI_CHAT, PATHS, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer
from sits.gateway.standing import Offered
from sits.routing.scheduling.base import Candidate, Facts, Made, Score
from sits.routing.scheduling.builtin import FILTERS, SCORES


class Odd(Score):
    """Divides by what it is told to."""

    name = "odd"
    scale = 100.0

    def __init__(self, made: Made) -> None:
        self.share = 1.0 / made.settings.get("by", 1)

    def score(self, facts: Facts, candidates: Sequence[Candidate]) -> Sequence[float]:
        return [self.share for _ in candidates]


class Later(Odd):
    """The same, seen only when it is made for good."""

    @staticmethod
    def judge(made: Made) -> None:
        """Anything goes."""


ODD: Any = Odd
LATER: Any = Later


async def known(gateway: Gateway, name: str) -> bool:
    return (await gateway.ask(PATHS["chat"], request("chat", name))).status == 200


@pytest.mark.parametrize("make", [pytest.param(ODD, id="while it is judged"), pytest.param(LATER, id="while it is made")])
@inside_loop
async def test_a_score_that_cannot_be_made_leaves_the_old_configuration_and_the_watch(
    make: Any, tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server:

        def declared(by: float, *more: str) -> list[dict[str, Any]]:
            models = [model(name, server.url) for name in ("one", "two", *more)]
            return [*models, route("asked", "one", "two", scores=[{"name": "odd", "settings": {"by": by}}]), settings()]

        async with Gateway(tmp_path, model("one", server.url), settings()) as gateway:
            node = gateway.node
            node.standing.plugins = Offered(FILTERS, {**SCORES, "odd": make})
            write(tmp_path, *declared(2))
            await eventually(lambda: "asked" in node.service.table.names, "the good one is taken")
            write(tmp_path, *declared(0, "unseen"))
            said = "a defect: ZeroDivisionError: "
            await eventually(
                lambda: said in (node.swap_error or "") or any(said in one.message for one in node.reloader.status.last_error),
                "the defect is told",
            )
            assert await known(gateway, "asked")
            assert not await known(gateway, "unseen")
            status = (await gateway.ask("/v1/admin/status", method="GET")).body
            assert said.encode() in status
            assert [one for one in caplog.records if one.levelno == logging.ERROR and one.exc_info is not None]
            write(tmp_path, *declared(4, "new"))
            await eventually(lambda: "new" in node.service.table.names, "the next good one is taken")
            assert await known(gateway, "new")
            assert not any(task.done() for task in node._tasks)


@inside_loop
async def test_nothing_is_kept_of_rules_that_are_declared_no_more(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server:

        def declared(number: int) -> list[dict[str, Any]]:
            rule = {"name": f"rule{number}", "match": {"team": ["x"]}, "backends": [{"model": "b"}]}
            asked = route("asked", "a", "b", scores=[{"name": "prefix-affinity"}], rules=[rule])
            return [model("a", server.url), model("b", server.url), asked, settings(accessLog=False)]

        async with Gateway(tmp_path, *declared(0)) as gateway:
            standing = gateway.node.standing
            first = standing.schedulers["asked\n"]
            for number in range(1, 6):
                write(tmp_path, *declared(number))
                gateway.node.reloader.reload(float(number))
            mine = [name for name in standing.schedulers if name.startswith("asked")]
            assert sorted(mine) == ["asked\n", "asked\nrule5"]
            assert standing.schedulers["asked\n"] is not first  # made anew, with what the one before had learned
            write(tmp_path, model("a", server.url), settings(accessLog=False))
            gateway.node.reloader.reload(9.0)
            assert set(standing.schedulers) <= {"a\n"}


LONG = "東" * 200
HEADERS = [("x-sits-region", "region"), ("x-sits-adapter", "adapter")]


@pytest.mark.parametrize(("header", "place"), HEADERS)
@inside_loop
async def test_the_longest_name_passes_and_a_longer_one_is_refused_rather_than_cut(
    header: str, place: str, tmp_path: pathlib.Path
) -> None:
    rule = {"name": "there", "match": {place: [LONG]}, "backends": [{"model": "b"}]}
    async with ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server:
        models = [model("a", server.url, adapters=[LONG]), model("b", server.url, adapters=[LONG], region=LONG)]
        async with Gateway(tmp_path, *models, route("asked", "a", rules=[rule])) as gateway:
            asked = await gateway.ask(PATHS["chat"], request("chat", "asked"), {header: LONG})
            assert (asked.status, asked.headers.get("x-sits-target")) == (200, "b")
            for longer in (LONG + "東", LONG + "x", "x" * 5000):
                asked = await gateway.ask(PATHS["chat"], request("chat", "asked"), {header: longer})
                error = json.loads(asked.body)["error"]
                said = f"{header} has {len(longer)} characters; a name has 200 at the most"
                assert (asked.status, error["sits_code"], error["param"], error["message"]) == (
                    400,
                    "invalid_request",
                    header,
                    said,
                )


@inside_loop
async def test_what_a_client_says_where_nobody_looks_at_it_makes_no_trace_long(tmp_path: pathlib.Path) -> None:
    traced = settings(trace={"folder": str(tmp_path / "trace")})
    async with ScriptedServer([READ, OPENAI_CHAT.answers("好"), AGAIN]) as server:
        async with Gateway(tmp_path, model("a", server.url), traced) as gateway:
            headers = {
                "x-sits-region": "r" * 9000,
                "x-sits-session": "s" * 9000,
                "x-request-id": "i" * 9000,
                "user-agent": "u" * 9000,
            }
            asked = await gateway.ask(PATHS["chat"], request("chat", "a"), headers)
            assert asked.status == 200
        written = b"".join(one.read_bytes() for one in (tmp_path / "trace").iterdir())
        assert b"r" * 200 in written
        assert not any(letter * 201 in written for letter in (b"r", b"s", b"i", b"u"))
