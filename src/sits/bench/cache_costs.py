"""What a look into the caches costs, in this process, one after the other.

The exact cache is asked as the gateway asks it (`gateway/recall.py`): partition, fingerprint, the client's wish, what bypasses
a cache, and the lookup. A figure is the least of its batches, as `timeit` advises: what makes others longer is the machine's
other programs. Their median is told beside it.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar, cast

from blake3 import blake3

from sits.bench import bodies
from sits.bench.figure import Figure, bounded
from sits.gateway.exchange import Exchange
from sits.gateway.recall import Caches, RouteCache
from sits.inner.sweep import Sweep
from sits.state.cache import fingerprint
from sits.state.cache.answer import Answer
from sits.state.cache.rules import ANY, Policy
from sits.state.limits import Limit, Reservation, open_limits

LOOKUP = "<= 12"
LIMITS = "<= 5"
BATCHES = 41
NOW = 1_800_000_000.0
ENTRIES = 5000
"""Answers that are held while lookups are timed."""

T = TypeVar("T")


def rows(batch: int = 1000) -> list[Figure]:
    """All figures; `batch`: calls that are timed together."""
    return [*lookups(batch), *limits(batch)]


def lookups(batch: int) -> list[Figure]:
    """A hit and a miss of the exact cache, by the gateway's own way to it."""
    loop = asyncio.new_event_loop()
    try:
        caches = Caches(loop, Sweep(), lambda: NOW, mib=64)
        route = RouteCache("bench", "models", Policy(sampled="always"))
        for number in range(ENTRIES):
            caches.own.store(blake3(b"%d" % number).digest(), _answer(), NOW, caches.own.moment)
        body = bodies.plain_request()
        held = caches.questions.read(fingerprint.partition(Policy(), "chat", "bench", "models", "team"), body)
        assert held is not None
        caches.own.store(held.fingerprint, _answer(), NOW, caches.own.moment)
        hit, miss = _exchange(body), _exchange(body.replace(b"gateway", b"doorway"))

        def look(x: Exchange) -> object:
            recall = caches.recall(x, route)
            assert recall is not None
            found = at_once(recall.look())
            recall.leave()
            return found

        assert look(hit) is not None
        assert look(miss) is None
        place = fingerprint.partition(Policy(), "chat", "bench", "models", "team")
        parts = {
            "fingerprint": timed(lambda: caches.questions.read(place, body), batch),
            "lookup alone": timed(lambda: caches.own.lookup(held.fingerprint, NOW, ANY), batch),
            "a miss, with its seat in the line": timed(lambda: look(miss), batch),
        }
        whole = timed(lambda: look(hit), batch)
        said = f"{len(body)} B, {ENTRIES} answers held; {_median(whole)}; "
        said += ", ".join(f"{name} {min(us):.1f}" for name, us in parts.items())
        return [bounded("cache_exact_lookup_us", min(whole), "us", LOOKUP, said)]
    finally:
        loop.close()


def limits(batch: int) -> list[Figure]:
    """A reservation of a request and its tokens, in the file that the workers of a machine share."""
    names = [Limit("key:bench/requests/minute", 2**40), Limit("key:bench/tokens/minute", 2**50)]
    checks, settlings = [], []
    with tempfile.TemporaryDirectory(prefix="sits-bench-") as folder:
        limiter = open_limits(Path(folder))
        for _ in range(BATCHES):
            held: list[Reservation] = []

            def check() -> None:
                found = at_once(limiter.reserve(names, (1, 500), now=NOW, ttl=600.0))
                assert isinstance(found, Reservation)
                held.append(found)  # noqa: B023

            checks.append(_spent(check, batch))
            settlings.append(_spent(lambda: at_once(limiter.settle(held.pop(), (1, 300), now=NOW)), batch))  # noqa: B023
        at_once(limiter.aclose())
    said = f"two limits in one step over all workers of the machine; {_median(checks)}; to settle {min(settlings):.1f}"
    return [bounded("limits_check_us", min(checks), "us", LIMITS, said)]


def timed(work: Callable[[], object], batch: int) -> list[float]:
    """Microseconds of one call, batch by batch."""
    gc.collect()
    return [_spent(work, batch) for _ in range(BATCHES)]


def _spent(work: Callable[[], object], batch: int) -> float:
    start = time.perf_counter()
    for _ in range(batch):
        work()
    return 1e6 * (time.perf_counter() - start) / batch


def _median(batches: list[float]) -> str:
    return f"median of {len(batches)} batches {statistics.median(batches):.1f}"


def at_once(work: Coroutine[Any, Any, T]) -> T:
    """What a coroutine returns that has nothing to wait for."""
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise RuntimeError("it waits for something")


def _answer() -> Answer:
    return Answer("chat", bodies.answer(), NOW, NOW + 3600, "upstream", ("route:bench", "model:upstream", "tenant:team"))


def _exchange(body: bytes) -> Exchange:
    """What the caches look at of an exchange."""
    request = SimpleNamespace(headers={b"content-type": b"application/json"}, body=body)
    key = SimpleNamespace(name="team")
    known = {"request": request, "key": key, "operation": "chat", "wall": NOW, "stream": False, "seat": None, "facts": None}
    return cast("Exchange", SimpleNamespace(**known, plan=None))
