"""Who may ask for what."""

from __future__ import annotations

import pathlib
from typing import Any

import pytest
from gateway_rig import Gateway, bearer, inside_loop, key, model, route, settings
from gateway_wires import PATHS, WIRES, request

from sits.engines.scripted import AGAIN, READ, ScriptedServer

KEYS = [
    key("user"),
    key("off", disabled=True),
    key("old", expires="2020-01-01T00:00:00Z"),
    key("narrow", models=["allowed"]),
    key("boss", admin=True),
]
ROWS: dict[str, tuple[dict[str, str], str, int, str]] = {
    "no key": ({}, "one", 401, "unauthenticated"),
    "an unknown key": ({"authorization": "Bearer who"}, "one", 401, "unauthenticated"),
    "another scheme": ({"authorization": "Basic c2VjcmV0"}, "one", 401, "unauthenticated"),
    "a disabled key": (bearer("off"), "one", 401, "unauthenticated"),
    "an expired key": (bearer("old"), "one", 401, "unauthenticated"),
    "a good key": (bearer("user"), "one", 200, ""),
    "a good key as Anthropic sends it": ({"x-api-key": "secret-of-user"}, "one", 200, ""),
    "a name that the key may use": (bearer("narrow"), "allowed", 200, ""),
    "a name that the key may not use": (bearer("narrow"), "one", 403, "forbidden"),
    "a name that is not there": (bearer("narrow"), "nothing", 404, "model_not_found"),
}


@pytest.mark.parametrize("operation", list(PATHS))
@inside_loop
async def test_keys_open_what_they_are_for(tmp_path: pathlib.Path, operation: str) -> None:
    engine = "anthropic" if operation == "messages" else "openai"
    async with (
        ScriptedServer([READ, WIRES[operation, engine].answers("好"), AGAIN]) as server,
        Gateway(tmp_path, model("one", server.url, engine), route("allowed", "one"), *KEYS) as gateway,
    ):
        for what, (fields, name, status, code) in ROWS.items():
            asking = await gateway.ask(PATHS[operation], request(operation, name), fields)
            assert (what, asking.status, asking.code) == (what, status, code)
            assert ("www-authenticate" in asking.headers) is (status == 401)
            assert b"secret-of" not in asking.body
            record = gateway.record(asking)
            assert (what, record.status, record.code) == (what, status, code)
            assert record.key == (None if status == 401 else "narrow" if fields == bearer("narrow") else "user")
        assert all("secret-of" not in repr(one) for one in server.requests)
        assert len(server.requests) == sum(status == 200 for _, _, status, _ in ROWS.values())


ADMIN = [
    ("GET", "/v1/admin/status"),
    ("GET", "/v1/admin/records"),
    ("GET", "/v1/admin/records/x"),
    ("POST", "/v1/admin/reload"),
    ("POST", "/v1/models/register"),
    ("GET", "/v1/models/registered"),
    ("DELETE", "/v1/models/one"),
]


@inside_loop
async def test_admin_pages_need_an_admin_key_and_open_ones_none(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ]) as server,
        Gateway(tmp_path, model("one", server.url), route("allowed", "one"), *KEYS) as gateway,
    ):
        for method, path in ADMIN:
            body = b"{}" if method == "POST" else None
            nobody = await gateway.ask(path, body, {}, method)
            user = await gateway.ask(path, body, bearer("user"), method)
            boss = await gateway.ask(path, body, bearer("boss"), method)
            assert (path, nobody.status, nobody.code) == (path, 401, "unauthenticated")
            assert (path, user.status, user.code) == (path, 403, "forbidden")
            assert (path, boss.status in (200, 400, 404)) == (path, True)
        for path in ("/healthz", "/readyz", "/metrics", "/openapi.json"):
            assert (await gateway.ask(path)).status == 200
        assert (await gateway.ask("/v1/models")).status == 401
        everything = await gateway.ask("/v1/models", None, bearer("user"))
        narrow = await gateway.ask("/v1/models", None, bearer("narrow"))
        other = await gateway.ask("/v1/models/one", None, bearer("narrow"))
        own = await gateway.ask("/v1/models/allowed", None, bearer("narrow"))
    assert [one["id"] for one in everything.json["data"]] == ["allowed", "one"]
    assert [one["id"] for one in narrow.json["data"]] == ["allowed"]
    assert (other.status, other.code) == (403, "forbidden")
    assert (own.status, own.json["targets"]) == (200, ["one"])


@pytest.mark.parametrize(
    ("mode", "keys", "status"), [("auto", [], 200), ("auto", KEYS[:1], 401), ("required", [], 401), ("off", KEYS[:1], 200)]
)
@inside_loop
async def test_the_mode_says_whether_a_key_is_asked_for(tmp_path: pathlib.Path, mode: str, keys: list[Any], status: int) -> None:
    async with (
        ScriptedServer([READ, WIRES["chat", "openai"].answers("好")]) as server,
        Gateway(tmp_path, settings(auth=mode), model("one", server.url), *keys) as gateway,
    ):
        assert (await gateway.ask(PATHS["chat"], request("chat", "one"))).status == status
