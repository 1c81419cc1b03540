"""Whatever comes in, the gateway answers or closes in time, is never at fault, and keeps nothing.

`SITS_HOSTILE=10000` makes ten thousand cases of each kind; a case that fails is named by its number, from which
`mutate.Mutator` makes it again.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
import uvloop
from hostile_gateway import PATIENCE, Gateway
from hostile_seeds import bodies, seeds
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutate import Mutator

CASES = int(os.environ.get("SITS_HOSTILE", "500"))
SOMEWHERE = "http://127.0.0.1:54321"
"""Stands for the model server while cases are made, so that a case does not depend on the port that was free."""
AT_ONCE = 24
QUIET_SECONDS = 0.1
"""After so long without a byte, a client that will send no more says so and expects the end."""
PATIENT = 40
"""Every so many cases a client never says that it will send no more: the gateway must end it."""
GROWTH = 24 * 1024 * 1024
RIGHT_5XX = {501, 502, 503, 505}
_DEFECT = re.compile(rb'x-sits-error: internal_error|"sits_code":"internal_error"')
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) [A-Z]")


async def converse(port: int, pieces: list[bytes], patient: bool, quiet_seconds: float = QUIET_SECONDS) -> bytes:
    """Send the pieces and read to the end of the connection; after so long without an answer our side is closed.

    Raises:
        TimeoutError: the end does not come.
    """
    said = b""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            for piece in pieces:
                writer.write(piece)
                await asyncio.sleep(0)
            quiet = patient
            while True:
                try:
                    async with asyncio.timeout(None if quiet else quiet_seconds):
                        piece = await reader.read(65536)
                except TimeoutError:
                    quiet = True
                    writer.write_eof()
                    continue
                if not piece:
                    return said
                said += piece
        except (ConnectionResetError, BrokenPipeError):
            return said
        finally:
            writer.transport.abort()


def wrong(said: bytes) -> list[str]:
    """What an answer should not be."""
    statuses = [int(one) for one in _STATUS.findall(said)]
    found = [f"status {status}" for status in statuses if status >= 500 and status not in RIGHT_5XX]
    if said and not said.startswith(b"HTTP/1.1 "):
        found.append("no HTTP")
    if _DEFECT.search(said):
        found.append("internal_error")
    return found


@pytest.fixture
def steady(gateway: Gateway) -> Iterator[None]:
    """Around many cases: no growth, and everything that was opened is closed again."""
    uvloop.run(storm(gateway, range(-60, 0)))  # what is made once is made now
    gateway.calm(1 << 20)
    gateway.let_go()
    memory, held = gateway.rss(), gateway.sockets()
    yield
    gateway.calm(held + 4)
    assert gateway.lives
    assert gateway.rss() - memory < GROWTH
    assert gateway.threads() < 40


async def storm(gateway: Gateway, numbers: range) -> dict[str, int]:
    """Run these cases, some at once; how many answers of each status there were.

    Raises:
        AssertionError: one of them went wrong.
    """
    tally: dict[str, int] = {}
    waiting = iter(numbers)
    sources = seeds(SOMEWHERE)
    address = gateway.upstream.encode()

    async def worker() -> None:
        for number in waiting:
            mutator = Mutator(random.Random(f"case {number}"), sources)
            wire = mutator.case().replace(SOMEWHERE.encode(), address)
            try:
                said = await converse(gateway.port, mutator.cut(wire), number % PATIENT == 0)
            except TimeoutError:
                raise AssertionError(f"case {number} hangs: {wire!r}") from None
            assert not wrong(said), f"case {number}: {wrong(said)}: {wire!r} -> {said[-3000:]!r}"
            for status in _STATUS.findall(said) or [b"none"]:
                tally[status.decode()] = tally.get(status.decode(), 0) + 1

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
    return tally


@pytest.mark.usefixtures("steady")
def test_mutated_requests_on_raw_sockets(gateway: Gateway) -> None:
    began = time.perf_counter()
    tally = uvloop.run(storm(gateway, range(CASES)))
    print(f"{CASES} cases in {time.perf_counter() - began:.1f} s: {dict(sorted(tally.items()))}")
    assert tally["200"] > CASES // 10, "some must get through, or nothing is tested"
    assert tally["400"] > CASES // 10


def test_every_honest_request_is_answered_as_it_should_be(gateway: Gateway) -> None:
    async def story() -> list[bytes]:
        return await asyncio.gather(*(converse(gateway.port, [wire], False, 4.0) for wire in honest))

    honest = seeds(gateway.upstream)
    answers = uvloop.run(story())
    for wire, said in zip(honest, answers, strict=True):
        assert not wrong(said), (wire, said)
        assert _STATUS.findall(said)[-1] in (b"200", b"201", b"400", b"404", b"405", b"409", b"422"), (wire, said)
    assert sum(b"HTTP/1.1 200 OK" in said for said in answers) > 60


# JSON bodies

WORDS = ["", "user", "auto", "text", "你好", "\x00", "a\nb", "data:,", "http://[", "env:HOME", "file:/etc/passwd", "9" * 400]
ELSEWHERE = ["/v1/models", "/v1/models/", "/v1/admin/records", "/v1/admin/status", "/v1/models/%00", "/nowhere"]
ATOMS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([10**30, -(2**63), 0, 1, -1])
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(WORDS)
)
VALUES = st.recursive(
    ATOMS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=8
)
METHODS = st.sampled_from(["POST", "POST", "POST", "POST", "GET", "DELETE", "PUT", "OPTIONS", "PATCH", "HEAD"])


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The way to every part of a JSON value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places(inner, (*path, key))


def changed(value: Any, path: tuple[Any, ...], how: str, new: Any) -> Any:
    """A copy of the value with one part replaced, removed or doubled."""
    if not path:
        return new
    key, rest = path[0], path[1:]
    copy = dict(value) if isinstance(value, dict) else list(value)
    if rest or how == "replace":
        copy[key] = changed(copy[key], rest, how, new)
    elif how == "remove":
        del copy[key]
    elif isinstance(copy, list):
        copy.insert(key, copy[key])
    else:
        copy[f"{key}_"] = copy[key]
    return copy


@st.composite
def questions(draw: st.DrawFn) -> tuple[str, str, bytes]:
    """Method, path and a body of which up to three parts are not as they should be."""
    model = draw(st.sampled_from(["small", "small", "claude", "generator", "llama", "mixed", "混合", "nobody"]))
    all_bodies = bodies(model, "http://127.0.0.1:9")
    path = draw(st.sampled_from(sorted(all_bodies)))
    body = all_bodies[path]
    for _ in range(draw(st.integers(0, 3))):
        where = draw(st.sampled_from(list(places(body))))
        body = changed(body, where, draw(st.sampled_from(["replace", "replace", "remove", "double"])), draw(VALUES))
    method = draw(METHODS)
    if draw(st.integers(0, 9)) == 0:
        path = draw(
            st.sampled_from(["/v1/models", "/v1/models/", "/v1/admin/records", "/v1/admin/status", "/v1/models/%00", "/nowhere"])
        )
    text = json.dumps(body, ensure_ascii=draw(st.booleans()))
    return method, path, text.encode("utf-8", "surrogatepass")


@pytest.mark.usefixtures("steady")
def test_json_bodies_that_are_almost_right(gateway: Gateway) -> None:
    @settings(max_examples=CASES, deadline=None, database=None, suppress_health_check=list(HealthCheck))
    @given(question=questions())
    def story(question: tuple[str, str, bytes]) -> None:
        method, path, body = question
        client = http.client.HTTPConnection("127.0.0.1", gateway.port, timeout=PATIENCE)
        client.request(method, path, body, {"content-type": "application/json"})
        response = client.getresponse()
        said = response.read()
        client.close()
        status = response.status
        assert status < 500 or status in RIGHT_5XX, (status, said)
        assert not _DEFECT.search(said)
        if status >= 400 and method != "HEAD":
            error = json.loads(said)["error"]
            assert error["message"], said
            assert response.headers["x-sits-error"]
            assert response.headers["x-request-id"]

    story()
