"""How long a client waits for a rung below a model that has gone: `sits serve` on a socket, one connection."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from sits.bench import BenchError
from sits.bench.cache_served import Line, Reply
from sits.bench.child import Child, answers
from sits.bench.declared import declare, resource
from sits.bench.figure import Figure, bounded, measured
from sits.bench.load import percentile
from sits.bench.upstream import Paced
from sits.ports.servers.process import free_port

CACHE = "<= 50"
TEMPLATE = "<= 10"
REWORDED = (
    ("How do I reset my password?", "how can I reset my password"),
    ("What are your opening hours?", "what are your opening hours please"),
)
TTL = 0.001
"""Seconds that answers are fresh: by the next request they are the ladder's alone."""


def rows(count: int) -> list[Figure]:
    """All figures, of `count` requests each."""
    with tempfile.TemporaryDirectory(prefix="sits-bench-") as folder, ExitStack() as stack:
        root = Path(folder)
        cores = sorted(os.sched_getaffinity(0))
        upstream = Paced(root, cores[-1])
        stack.enter_context(upstream.child)
        upstream.await_ready()
        port = free_port()
        command = [sys.executable, "-c", "from sits.cli.sits import main; main()", "serve", "--host", "127.0.0.1"]
        command += ["--port", str(port), "--config", str(_config(root, upstream.url)), "--data", str(root / "data")]
        child = stack.enter_context(Child("sits", command, core=cores[0], log=root / "log"))
        child.await_ready(answers(f"http://127.0.0.1:{port}/readyz"), seconds=30.0)
        line = Line(port)
        stack.callback(line.close)
        live = [_ask(line, f"Question number {number}?") for number in range(count)]
        for kept, _ in REWORDED:
            _ask(line, kept)
        upstream.child.stop()
        exact = [_ask(line, f"Question number {number}?") for number in range(count)]
        alike = [_ask(line, asked) for _ in range(count // 2) for _, asked in REWORDED]
        new = [_ask(line, f"Something else, number {number}?") for number in range(count)]
    return [
        _figure("rung_cache_ms", exact, ("cache", "stale"), CACHE),
        _figure("rung_semantic_ms", alike, ("cache", "semantic-stale"), CACHE),
        _figure("rung_template_ms", new, ("template", "miss"), TEMPLATE),
        measured("rung_live_ms", percentile(sorted(reply.took for reply in live), 0.95), "ms", "p95 of a model that is there"),
    ]


def _config(root: Path, upstream: str) -> Path:
    config = root / "config"
    config.mkdir()
    resources = [
        resource("Model", "upstream", engine="openai", endpoint=upstream, upstreamModel="bench"),
        resource(
            "Route",
            "laddered",
            backends=[{"model": "upstream"}],
            cache={"ttlSeconds": TTL, "semantic": {}},
            ladder={"cacheSeconds": 3600, "template": "Please try again later. 请稍后再试。"},
        ),
    ]
    declare(config, "all", resources)
    return config


def _ask(line: Line, text: str) -> Reply:
    body = msgspec.json.encode({"model": "laddered", "messages": [{"role": "user", "content": text}]})
    reply = line.ask("/v1/chat/completions", body)
    if reply.status != 200:
        raise BenchError(f"the gateway answers {reply.status}: {reply.body[:300].decode(errors='replace')}")
    return reply


def _figure(name: str, replies: Sequence[Reply], expected: tuple[str, str], bound: str) -> Figure:
    """The 95th percentile of those that came from that rung; none when one did not."""
    told = [(reply.fields.get("x-sits-rung", ""), reply.fields.get("x-sits-cache", "")) for reply in replies]
    right = sum(one == expected for one in told)
    took = sorted(reply.took for reply in replies)
    said = f"p95 of {len(replies)}; median {percentile(took, 0.5):.2f}, p99 {percentile(took, 0.99):.2f}; {right} came from there"
    return bounded(name, percentile(took, 0.95) if right == len(replies) else None, "ms", bound, said)
