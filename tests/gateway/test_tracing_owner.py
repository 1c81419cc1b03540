"""Who records traffic: the same requests on every gateway, and what is known of each."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sits.bench import replay_world
from sits.bench.replay_world import World
from sits.gateway.tracing import Recorder, Tracing, bound_of, spread
from sits.observe.record import Record
from sits.observe.redact import Redactor
from sits.observe.trace_row import Feedback, Row, read
from sits.resources.tracing import TraceSpec

IDS = [
    pytest.param([f"{number}" for number in range(20_000)], id="counted"),
    pytest.param([f"{number:032x}" for number in range(20_000)], id="hexadecimal"),
    pytest.param([f"请求-{number * 7919}" for number in range(20_000)], id="Chinese"),
]


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("share", [0.01, 0.1, 0.5])
def test_the_share_is_kept_whatever_ids_clients_choose(ids: list[str], share: float) -> None:
    below = bound_of(share)
    found = sum(spread(one) < below for one in ids) / len(ids)
    assert found == pytest.approx(share, abs=4 * (share * (1 - share) / len(ids)) ** 0.5)


def test_gateways_agree_and_a_larger_share_has_the_smaller_one_in_it(tmp_path: Path) -> None:
    few, more, other, all_ = (Tracing(TraceSpec(share=share), tmp_path, Redactor()) for share in (0.1, 0.4, 0.1, 1.0))
    for number in range(2000):
        one = f"r-{number}"
        assert few.wanted(one) == other.wanted(one)
        assert more.wanted(one) or not few.wanted(one)
        assert all_.wanted(one)


def exchange(world: World, headers: dict[bytes, bytes]) -> Any:
    request = SimpleNamespace(
        headers=headers, body=b'{"model":"drawn","messages":[{"role":"user","content":"mail eve@example.com"}]}'
    )
    key = SimpleNamespace(name="team-a", team="search")
    snapshot = replay_world.snapshot()
    return SimpleNamespace(
        facts=None, operation="chat", request=request, priority=2, tint=SimpleNamespace(plain=False, colour="green"), key=key,
        table=SimpleNamespace(snapshot=snapshot), learned=None, id="r-1",
    )  # fmt: skip


def test_what_is_taken_of_a_request_is_in_its_row(tmp_path: Path) -> None:
    world = World(replay_world.snapshot(), None)
    choice = world.choices["ruled"]
    tracing = Tracing(TraceSpec(bodies="redacted", headers=["x-more"]), tmp_path, Redactor())
    headers = {
        b"x-tier": b"gold",
        b"x-more": "多".encode(),
        b"x-else": b"no",
        b"authorization": b"Bearer abcdefgh",
        b"x-sits-region": b"eu",
    }
    sample = tracing.taken(exchange(world, headers), choice, frozenset(("chat",)), frozenset(("small",)), 0.25, 12.5)
    sample.plan = choice.plan("chat", frozenset(("chat",)), 0.25, 12.5, frozenset(("small",)))
    tracing.put(sample, Record("r-1", 1.7e9, "chat", requested="ruled", snapshot=replay_world.snapshot().hash), 0.5)
    tracing.feedback("r-1", 0.75, None)
    tracing.stop()
    _, row, feedback = read(tmp_path / "trace")
    assert isinstance(row, Row)
    assert isinstance(feedback, Feedback)
    asked = row.asked
    assert (asked.draw, asked.now, asked.needs, asked.known) == (0.25, 12.5, ("chat",), False)
    assert (asked.key, asked.team, asked.priority, asked.colour, asked.region) == ("team-a", "search", 2, "green", "eu")
    assert asked.headers == {"x-tier": "gold", "x-more": "多"}
    assert (row.out, row.dollars, row.order[0], feedback.score) == (("small",), 0.5, "middle", 0.75)
    assert set(row.states) == set(choice.order)
    assert row.body is not None
    assert "eve" not in row.body


def test_what_was_refused_is_recorded_without_an_order(tmp_path: Path) -> None:
    world = World(replay_world.snapshot(), None)
    tracing = Tracing(TraceSpec(folder=str(tmp_path / "elsewhere")), tmp_path, Redactor())
    sample = tracing.taken(exchange(world, {}), world.choices["drawn"], frozenset(("vision",)), frozenset(), 0.5, 1.0)
    tracing.put(sample, Record("r-1", 1.7e9, "chat", snapshot=replay_world.snapshot().hash, code="unsupported", status=400))
    tracing.stop()
    _, row = read(tmp_path / "elsewhere")
    assert isinstance(row, Row)
    assert (row.order, row.record.code, row.body) == ((), "unsupported", None)


def test_another_configuration_ends_the_old_file_and_begins_another(tmp_path: Path) -> None:
    async def reload() -> list[Tracing | None]:
        recorder = Recorder(tmp_path, Redactor(), asyncio.get_running_loop())
        found = [recorder.take(spec) for spec in (None, TraceSpec(), TraceSpec(), TraceSpec(share=0.5), None)]
        recorder.take(TraceSpec(keep=3))
        recorder.stop()
        return found

    off, first, same, other, ended = asyncio.run(reload())
    assert (off, ended) == (None, None)
    assert first is same
    assert first is not other
    assert not [thread for thread in threading.enumerate() if thread.name == "sits-trace"]


SWITCHES = [
    pytest.param(TraceSpec(), False, id="bodies are switched off"),
    pytest.param(None, False, id="all is"),
    pytest.param(TraceSpec(bodies="redacted", keep=3), True, id="something else is changed"),
]


@pytest.mark.parametrize(("spec", "bodies"), SWITCHES)
def test_what_waits_to_be_written_when_bodies_are_switched_off_is_written_without_them(
    tmp_path: Path, spec: TraceSpec | None, bodies: bool
) -> None:
    async def switch() -> bool:
        recorder = Recorder(tmp_path, Redactor(), asyncio.get_running_loop())
        old = recorder.take(TraceSpec(bodies="redacted"))
        assert old is not None
        assert old.file.bodies
        new = recorder.take(spec)
        assert new is None or new.file.bodies is bodies
        recorder.stop()
        return old.file.bodies

    assert asyncio.run(switch()) is bodies
