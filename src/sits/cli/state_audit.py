"""`sitsctl state`: whether records and their vectors agree, and mending where they do not."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from sits.cli.service import Service
from sits.inner.errors import SitsError
from sits.ports.store import Store, every, open_store
from sits.ports.store.sqlite import FILE
from sits.ports.vectors import Vectors, open_vectors
from sits.state.outbox import layout

F = TypeVar("F", bound=Callable[..., Any])
_SECONDS = 30.0
"""The longest that one call to store or index may take: nobody waits for a request here."""


class Where(msgspec.Struct, frozen=True):
    """Which store and index."""

    folder: Path
    store: str
    vectors: str
    namespace: str


def _where(command: F) -> F:
    for option in (
        click.option(
            "--namespace", default="sits", show_default=True, help="What keeps several installations on one server apart."
        ),
        click.option("--vectors", default="embedded", show_default=True, help="Where the vectors are, as in Settings."),
        click.option("--store", default="sqlite", show_default=True, help="Where the records are, as in Settings."),
        click.option(
            "--data",
            "folder",
            type=click.Path(file_okay=False, path_type=Path),
            envvar="SITS_DATA",
            default=Path("data"),
            show_default=True,
            help="The data folder of the service; also by SITS_DATA.",
        ),
        click.option("--json", "as_json", is_flag=True, help="One object."),
    ):
        command = option(command)
    return command


@click.group("state")
def state() -> None:
    """What lies in two places: check that it agrees, mend it."""


@state.command("audit")
@_where
@click.option("--url", help="Ask a running gateway instead, at this address.")
@click.option("--key", envvar="SITS_API_KEY", help="API key of that gateway; also by SITS_API_KEY.")
def audit(url: str | None, key: str | None, as_json: bool, **where: Any) -> None:
    """Compare every record with its vector. Exit 1 when they are apart and no pending change explains it, when a change has
    waited for too long, or when one waits for a person."""
    if url is not None:
        found = Service(url, key).ask("GET", "/v1/admin/state/audit")["data"]
    else:
        found = _run(lambda: _audit(Where(**where)))
    sound = all(one["sound"] for one in found)
    if as_json:
        click.echo(json.dumps({"sound": sound, "data": found}, ensure_ascii=False))
    else:
        for one in found:
            _show(one)
        said = "records and vectors agree" if sound else "records and vectors are NOT as they should be"
        click.secho(said if found else "no record was ever written with a vector", fg="green" if sound else "red")
    if not sound:
        raise SystemExit(1)


@state.command("repair")
@_where
@click.option("--seconds", type=click.FloatRange(min=0), default=60.0, show_default=True, help="How long to wait for the index.")
def repair(seconds: float, as_json: bool, **where: Any) -> None:
    """Mend what is apart, and try again what was parked. Running gateways do no harm. Exit 1 when not all of it was done."""
    found = _run(lambda: _repair(Where(**where), seconds))
    if as_json:
        click.echo(json.dumps({"data": found}, ensure_ascii=False))
    else:
        for one in found:
            click.echo(
                f"{one['collection']}: {one['records']} records and {one['vectors']} vectors looked at; "
                f"{one['restored']} vectors restored, {one['removed']} removed, {one['dropped']} wanted no more, "
                f"{one['retried']} tried again; {one['left']} left"
            )
        if not found:
            click.echo("no record was ever written with a vector")
    if any(one["left"] for one in found):
        raise SystemExit(1)


async def _audit(where: Where) -> list[dict[str, Any]]:
    from sits.state.outbox import audit_all

    async with _store(where) as store:
        if not await _collections(store):
            return []
        async with _vectors(where) as vectors:
            found = await audit_all(store, vectors, now=time.time())
    return [{"sound": one.sound, **msgspec.to_builtins(one)} for one in found]


async def _repair(where: Where, seconds: float) -> list[dict[str, Any]]:
    from sits.state.outbox import Outbox
    from sits.state.outbox import repair as mend

    done = []
    async with _store(where) as store:
        collections = await _collections(store)
        if not collections:
            return []
        async with _vectors(where) as vectors:
            for name, dimension in collections:
                outbox = Outbox(store, vectors, name, dimension, owner=f"sitsctl {secrets.token_hex(8)}")
                await outbox.start()
                try:
                    done.append(await mend(outbox, now=time.time(), seconds=seconds))
                finally:
                    await outbox.aclose()
    return [msgspec.to_builtins(one) for one in done]


async def _collections(store: Store) -> list[tuple[str, int]]:
    rows = [
        (row.key.removeprefix(layout.COLLECTIONS), layout.read_collection(row)) async for row in every(store, layout.COLLECTIONS)
    ]
    return [(name, row.dimension) for name, row in rows if row is not None]


@asynccontextmanager
async def _store(where: Where) -> AsyncIterator[Store]:
    if where.store == "sqlite" and not (where.folder / FILE).exists():
        raise click.ClickException(f"there is no store in {where.folder}; say which data folder with --data, or --store")
    store = await open_store(where.store, where.folder, timeout=_SECONDS, namespace=where.namespace)
    try:
        yield store
    finally:
        await store.aclose()


@asynccontextmanager
async def _vectors(where: Where) -> AsyncIterator[Vectors]:
    vectors = await open_vectors(where.vectors, where.folder, timeout=_SECONDS, namespace=where.namespace)
    try:
        yield vectors
    finally:
        await vectors.aclose()


def _run(work: Callable[[], Awaitable[list[dict[str, Any]]]]) -> list[dict[str, Any]]:
    """What goes wrong is one line on stderr and exit code 1."""

    async def told() -> list[dict[str, Any]]:
        return await work()

    try:
        return asyncio.run(told())
    except SitsError as error:
        raise click.ClickException(error.message) from error


def _show(one: dict[str, Any]) -> None:
    click.echo(
        f"{one['collection']}: {one['records']} records, {one['vectors']} vectors ({one['expired']} expired); "
        f"{one['waiting']} changes wait for the index, the oldest for {one['oldest']:.1f} s, {one['parked']} are parked; "
        f"{one['undone']} were undone"
    )
    for fault in one["faults"]:
        said = f" ({fault['message']})" if fault["message"] else ""
        click.secho(f"  {fault['kind']}: {fault['id']!r} of {fault['partition']!r}{said}", fg="red")
    if one["left_out"]:
        click.secho(f"  and {one['left_out']} more", fg="red")
    for undoing in one["undoings"][:10]:
        click.echo(f"  undone: {undoing['record']} ({undoing['reason']})")
