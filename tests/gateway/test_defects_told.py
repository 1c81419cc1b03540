"""A defect on the way of an answer is told by one id, in the body, the header, the log, and the record, which is the access line
too. And what else an error says of itself: whose deadline it was, which header."""

from __future__ import annotations

import json
import logging
import pathlib
from typing import Any

import pytest
from gateway_rig import Gateway, inside_loop, model, route
from gateway_wires import PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer, answer
from sits.gateway import spine
from sits.inner.errors import Code, SitsError
from sits.observe.redact import LONGEST_MESSAGE, Redactor

WIRE = WIRES["chat", "openai"]
DOWN = answer(503, b'{"error": {"message": "down"}}')


def breaks(monkeypatch: pytest.MonkeyPatch, *, always: bool = False) -> None:
    """Whoever tells a client of an error raises, `always` or of other errors than defects."""
    plain = Redactor.message

    def message(self: Redactor, text: str, most: int = LONGEST_MESSAGE) -> str:
        if most == LONGEST_MESSAGE and (always or not text.startswith("a defect of the gateway")):
            raise ZeroDivisionError
        return plain(self, text, most)

    # What is compiled cannot be given another function; this class is not.
    monkeypatch.setattr(Redactor, "message", message)


def stacks(caplog: pytest.LogCaptureFixture) -> list[Any]:
    return [getattr(one, "request_id", None) for one in caplog.records if one.exc_info and one.levelno == logging.ERROR]


@pytest.mark.parametrize("name", ["nobody", "r"], ids=["before the first wait", "after a wait"])
@inside_loop
async def test_a_defect_while_refusing_has_one_id_and_one_status(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    breaks(monkeypatch)
    async with ScriptedServer([READ, DOWN, AGAIN]) as server, Gateway(tmp_path, model("a", server.url), route("r", "a")) as gw:
        asking = await gw.ask(PATHS["chat"], request("chat", name))
        said, id = asking.json["error"], asking.headers["x-request-id"]
        assert (asking.status, asking.code, said["code"], said["request_id"]) == (500, "internal_error", "internal_error", id)
        assert said["message"] == f"a defect of the gateway; its log has the details under request id {id}"
        record = gw.record(asking)
        assert (record.request_id, record.status, record.code) == (id, 500, "internal_error")
        assert stacks(caplog) == [id]
        told = await gw.ask(f"/v1/admin/records/{id}", method="GET")
        assert (told.status, told.json["code"]) == (200, "internal_error")


@inside_loop
async def test_who_cannot_even_be_told_of_a_defect_is_cut_off_and_the_record_says_so(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    breaks(monkeypatch, always=True)
    async with Gateway(tmp_path, model("a", "http://127.0.0.1:9")) as gw:
        asking = await gw.ask(PATHS["chat"], request("chat", "nobody"), {"x-request-id": "mine"})
        assert (asking.status, asking.whole) == (0, False)
        record = gw.node.service.books.ring.get("mine")
        assert record is not None
        assert (record.status, record.code) == (500, "internal_error")
        assert stacks(caplog) == ["mine", "mine"]


@inside_loop
async def test_half_a_surrogate_pair_in_what_is_said_reaches_client_record_and_pages_spelled_out(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise SitsError(Code.UNSUPPORTED, "说 \ud83d 完", param="\udc00", upstream_code="c\ud800")

    async with Gateway(tmp_path, model("a", "http://127.0.0.1:9")) as gw:
        with monkeypatch.context() as patched:
            patched.setattr(spine, "peek", refused)
            asking = await gw.ask(PATHS["chat"], request("chat", "a"))
        said = asking.json["error"]
        assert (asking.status, said["message"], said["param"], said["code"]) == (400, "说 \\ud83d 完", "\\udc00", "c\\ud800")
        gw.record(asking).filtered = [("a", "of a plugin: \ud800")]
        for path in ("/v1/admin/records", f"/v1/admin/records/{asking.headers['x-request-id']}"):
            page = await gw.ask(path, method="GET")
            assert (page.status, "of a plugin: \\ud800" in json.dumps(page.json).replace("\\\\", "\\")) == (200, True)


LIMITS: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "the client's": ({}, {"x-request-timeout": "150ms"}, "0.15 s (the client's header x-request-timeout)"),
    "the client's, which is shorter": (
        {"total": 20},
        {"x-request-timeout": "0.2"},
        "0.2 s (the client's header x-request-timeout)",
    ),
    "the route's": ({"total": 0.2}, {}, "0.2 s (`total` of the route)"),
    "the route's, which is shorter": ({"total": 0.2}, {"x-request-timeout": "9"}, "0.2 s (`total` of the route)"),
}


@pytest.mark.parametrize(("spec", "headers", "words"), LIMITS.values(), ids=LIMITS)
@inside_loop
async def test_a_total_deadline_is_told_as_it_was_declared_and_by_whom(
    tmp_path: pathlib.Path, spec: dict[str, Any], headers: dict[str, str], words: str
) -> None:
    async with ScriptedServer([READ]) as server, Gateway(tmp_path, model("a", server.url), route("r", "a", **spec)) as gw:
        asking = await gw.ask(PATHS["chat"], request("chat", "r"), headers)
        assert (asking.status, asking.json["error"]["message"]) == (504, f"a: the total deadline of {words} passed")


@inside_loop
async def test_a_later_attempt_that_has_what_is_left_says_what_was_declared(tmp_path: pathlib.Path) -> None:
    slow = model("b", "", deadlines={"total": 0.3})
    async with ScriptedServer([READ, DOWN, AGAIN]) as down, ScriptedServer([READ]) as server:
        slow["spec"]["endpoint"] = server.url
        async with Gateway(tmp_path, model("a", down.url), slow, route("r", "a", fallbacks=("b",))) as gw:
            asking = await gw.ask(PATHS["chat"], request("chat", "r"))
    words = "b: the total deadline of 0.3 s (for all attempts together) passed"
    assert (asking.status, asking.json["error"]["message"]) == (504, words)


SAID = {
    "x-sits-fallback": "maybe",
    "x-sits-priority": "P9",
    "x-request-timeout": "soon",
    "x-traffic-color": "gr ün",
    "x-experiment-id": "a b",
    "x-sits-callback": "nowhere",
}


@inside_loop
async def test_a_header_that_says_what_it_cannot_mean_is_refused_by_its_name(tmp_path: pathlib.Path) -> None:
    async with ScriptedServer([READ, WIRE.answers("好"), AGAIN]) as server, Gateway(tmp_path, model("a", server.url)) as gw:
        for name, value in SAID.items():
            asking = await gw.ask(PATHS["chat"], request("chat", "a"), {name: value})
            said = asking.json["error"]
            assert (name, asking.status, asking.code, said["param"]) == (name, 400, "invalid_request", name)
            assert said["message"].startswith(f"{name}: ")
        assert (await gw.ask(PATHS["chat"], request("chat", "a"), {"x-sits-fallback": "On"})).status == 200
