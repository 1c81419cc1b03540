"""What is said of Prometheus: whose value is the bad one, and that it does not answer, when that begins and when it is over."""

from __future__ import annotations

from typing import Any

import pytest
from vitals_rig import World, run

from prometheus_server import prometheus
from sits.gateway.vitals import Declared
from sits.gateway.vitals_queries import SILENT_SECONDS, Judge
from sits.gateway.vitals_troubles import Troubles
from sits.gateway.vitals_words import LONGEST_LABEL
from sits.resources.vitals import HealthSpec

INF = float("inf")
MANY = [{"__name__": "temp", "job": "gpu", "gpu": str(at), "node": f"n{at // 8}"} for at in range(800)]


@pytest.mark.parametrize(
    ("values", "labels", "reason"),
    [
        pytest.param([95.0], [], "95 is above 87", id="nobody says whose"),
        pytest.param([95.0], [{}], "95 is above 87", id="no labels"),
        pytest.param([95.0], [{"__name__": "temp", "a": "1", "b": "型", "c": "3", "d": "4"}],
                     '95 is above 87 (a="1", b="型", c="3")', id="three labels at the most"),
        pytest.param([50.0] * 398 + [90.0, 95.0] + [50.0] * 400, MANY,
                     '95 is above 87 (gpu="399", node="n49", job="gpu"), 2 of 800 are', id="those first that tell it apart"),
        pytest.param([1.0, 88.0], [{"__name__": "inlet"}, {"__name__": "outlet"}],
                     '88 is above 87 (__name__="outlet"), 1 of 2 are', id="the metric's name where that does"),
        pytest.param([INF], [{}], "+Inf is above 87", id="without end"),
        pytest.param([95.0], [{"key": "sk-secret" + "x" * 99}], '95 is above 87 (key="[masked]")', id="secrets, however long"),
        pytest.param([95.0], [{"a": 'x"\n' * 40}],
                     '95 is above 87 (a="' + ('x\\"\\n' * 22)[:-4] + '…")', id="what is long is cut, and quoted"),
    ],
)  # fmt: skip
def test_a_reason_says_whose_value_it_is_and_how_many_are_like_it(
    values: list[float], labels: list[dict[str, str]], reason: str
) -> None:
    judge = Judge(HealthSpec("q", above=87.0), lambda text: "[masked]" if text.startswith("sk-") else text)
    assert judge.look(values, 0.0, labels)
    assert judge.reason == reason
    assert LONGEST_LABEL == 64


def test_values_below_are_counted_from_the_other_side() -> None:
    judge = Judge(HealthSpec("q", below=1.0))
    assert judge.look([-INF, 0.5, 2.0], 0.0, [{"i": "a"}, {"i": "b"}, {"i": "c"}])
    assert judge.reason == '-Inf is below 1 (i="a"), 2 of 3 are'


Heard = list[tuple[float, str, Any, str]]
AWAY = "Prometheus does not answer, in a while models count as well without it: "
REFUSED = "Prometheus refuses a query, in a while models count as well without it: "


@pytest.mark.parametrize(
    ("heard", "said"),
    [
        pytest.param([(0, "q", "answered", "")], [], id="all is well"),
        pytest.param(
            [(0, "q", "failed", "no"), (5, "r", "failed", "no"), (10, "q", "failed", "no"), (20, "q", "answered", ""),
             (21, "r", "answered", ""), (22, "r", "answered", "")],
            [f"{AWAY}no: q", "Prometheus answers all queries again, after 21 s"], id="it is away: two lines for all queries",
        ),
        pytest.param(
            [(0, "型", "refused", "parse error"), (5, "型", "refused", "parse error"), (9, "型", "answered", "")],
            [f"{REFUSED}parse error: 型", "Prometheus answers a query again that it refused, after 9 s: 型"],
            id="a query is refused",
        ),
        pytest.param(
            [(at, "q", "failed" if at % 2 else "answered", "no") for at in range(1, 60)],
            [f"{AWAY}no: q", "Prometheus answers all queries again, after 1 s"], id="what flaps is said once a minute",
        ),
        pytest.param(
            [(0, "q", "refused", "bad"), (1, "q", "failed", "no"), (2, "q", "refused", "bad"), (3, "q", "answered", "")],
            [f"{REFUSED}bad: q", f"{AWAY}no: q", "Prometheus answers all queries again, after 1 s",
             "Prometheus answers a query again that it refused, after 3 s: q"], id="refused, then away, then refused",
        ),
    ],
)  # fmt: skip
def test_a_trouble_has_a_line_when_it_begins_and_one_when_it_is_over(
    heard: Heard, said: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    troubles = Troubles()
    for now, query, outcome, why in heard:
        troubles.heard(query, outcome, why, float(now))
    assert [record.getMessage() for record in caplog.records] == said
    assert sum(troubles.counts.values()) == len(heard)


def test_what_is_not_asked_any_more_is_over_without_a_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    troubles = Troubles()
    troubles.heard("q", "failed", "no", 0.0)
    troubles.heard("r", "refused", "bad", 0.0)
    troubles.retain(["other"])
    for query in ("q", "r"):
        troubles.heard(query, "answered", "", 1.0)
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]


def test_a_prometheus_that_falls_silent_is_counted_and_nobody_is_taken_for_known() -> None:
    async def story(world: World) -> None:
        async with prometheus(load=[("+Inf", {"gpu": "3"}), "5"]) as server:
            targets = [world.target(name, "http://127.0.0.1:9", "openai") for name in ("a", "b")]
            world.take(targets, {"a": Declared(health=HealthSpec("load", above=4.0))}, [("a", "b")], server.url)
            assert world.health("a")["unknown"]
            await world.at(101.0, lambda: world.watch.sick == {"a"})
            row = world.health("a")
            assert (row["values"], row["unknown"]) == (("+Inf", 5.0), False)
            assert row["reason"] == '+Inf is above 4 (gpu="3"), 2 of 2 are'
            server.values["load"] = None
            await world.at(106.0, lambda: world.watch.answers["failed"] == 1)
            server.values["load"] = "parse error"
            await world.at(111.0, lambda: world.watch.answers["refused"] == 1)
            assert (world.health("a")["sick"], world.health("a")["unknown"]) == (True, False)
            await world.at(101.1 + SILENT_SECONDS, lambda: world.health("a")["unknown"])
            assert (world.health("a")["sick"], world.health("a")["values"]) == (False, ())

    run(story)
