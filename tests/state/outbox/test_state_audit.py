"""`sitsctl state`: whether records and vectors agree, and mending."""

from __future__ import annotations

import asyncio
import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sits.cli.state_audit import state
from sits.ports.store import Put, open_store
from sits.ports.vectors import Item, open_vectors
from sits.state.outbox import Outbox
from sits.state.outbox.checks import toward


def _run(*arguments: str) -> Result:
    return CliRunner().invoke(state, list(arguments))


def _filled(folder: Path, *, relay: bool = True, lose: bool = False) -> None:
    """Three records with vectors; with `lose` one vector is taken away by somebody."""

    async def fill() -> None:
        store, vectors = await open_store("sqlite", folder), await open_vectors("embedded", folder)
        outbox = Outbox(store, vectors, "notes", 4, owner="test")
        await outbox.start(relay=relay)
        for id in ("一", "二", "三"):
            await outbox.write("租户", Item(id, toward(id)), Put(f"note/{id}", b"..."))
        if relay:
            assert await outbox.settle(seconds=20.0) == 0
        if lose:
            await vectors.delete("notes", "租户", ["二"])
        await outbox.aclose()
        await vectors.aclose()
        await store.aclose()

    asyncio.run(fill())


def test_a_folder_whose_records_and_vectors_agree_is_exit_code_zero(tmp_path: Path) -> None:
    _filled(tmp_path)
    result = _run("audit", "--data", str(tmp_path))
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "records and vectors agree")
    told = json.loads(_run("audit", "--data", str(tmp_path), "--json").stdout)
    assert told["sound"]
    assert {name: told["data"][0][name] for name in ("collection", "records", "vectors", "waiting")} == {
        "collection": "notes",
        "records": 3,
        "vectors": 3,
        "waiting": 0,
    }


def test_what_a_pending_change_explains_is_no_fault(tmp_path: Path) -> None:
    _filled(tmp_path, relay=False)
    result = _run("audit", "--data", str(tmp_path), "--json")
    one = json.loads(result.stdout)["data"][0]
    assert (result.exit_code, one["records"], one["vectors"], one["pending"], one["faults"]) == (0, 3, 0, 3, [])


def test_what_is_apart_is_exit_code_one_until_it_is_repaired(tmp_path: Path) -> None:
    _filled(tmp_path, lose=True)
    result = _run("audit", "--data", str(tmp_path))
    assert result.exit_code == 1
    assert "missing: '二' of '租户'" in result.stdout
    assert "NOT" in result.stdout
    mended = _run("repair", "--data", str(tmp_path), "--json")
    assert mended.exit_code == 0
    one = json.loads(mended.stdout)["data"][0]
    # The sweep of the relay may have seen it first.
    assert (one["restored"] + one["pending"], one["left"]) == (1, 0)
    assert _run("audit", "--data", str(tmp_path)).exit_code == 0
    assert "0 vectors restored" in _run("repair", "--data", str(tmp_path)).stdout


def test_a_store_without_an_outbox_has_nothing_to_compare(tmp_path: Path) -> None:
    missing = _run("audit", "--data", str(tmp_path))
    assert (missing.exit_code, "there is no store in" in missing.stderr) == (1, True)

    async def make() -> None:
        store = await open_store("sqlite", tmp_path)
        await store.commit([Put("a", b"")])
        await store.aclose()

    asyncio.run(make())
    for command in ("audit", "repair"):
        result = _run(command, "--data", str(tmp_path))
        assert (result.exit_code, result.stdout) == (0, "no record was ever written with a vector\n")
    assert not (tmp_path / "vectors").exists()


def test_a_store_that_cannot_be_reached_is_one_line(tmp_path: Path) -> None:
    result = _run("audit", "--store", "nowhere://", "--data", str(tmp_path))
    assert (result.exit_code, result.stderr.count("\n")) == (1, 1)
    assert "store 'nowhere://'" in result.stderr


@pytest.fixture
def gateway() -> Iterator[tuple[str, dict[str, Any]]]:
    """An address that answers the admin API's path, and what it answers."""
    answer: dict[str, Any] = {}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps(answer).encode() if self.path == "/v1/admin/state/audit" else b"{}"
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", answer
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(("sound", "code"), [(True, 0), (False, 1)])
def test_a_running_gateway_can_be_asked(gateway: tuple[str, dict[str, Any]], tmp_path: Path, sound: bool, code: int) -> None:
    url, answer = gateway
    _filled(tmp_path)
    answer["data"] = [{**json.loads(_run("audit", "--data", str(tmp_path), "--json").stdout)["data"][0], "sound": sound}]
    result = _run("audit", "--url", url, "--json")
    assert (result.exit_code, json.loads(result.stdout)) == (code, {"sound": sound, "data": answer["data"]})
