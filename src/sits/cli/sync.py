"""`sitsctl sync`: whether sessions are whole. Asks the running service, or looks into a data folder."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import click
import msgspec

from sits.cli.service import Service, service_options
from sits.inner.errors import SitsError
from sits.ports.store import open_store
from sits.ports.store.sqlite import FILE as STORE_FILE
from sits.state.sessions.audit import Audit, audit
from sits.state.sessions.pending import FILE as PENDING_FILE
from sits.state.sessions.pending import open_pending
from sits.state.sessions.terms import Terms


@click.group("sync")
def sync() -> None:
    """Sessions and what waits to be synced."""


@sync.command("verify")
@click.option("--session", "session_id", help="Only this session.")
@click.option(
    "--data",
    "folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Look into this data folder rather than asking the service; the service may run.",
)
@click.option(
    "--store",
    envvar="SITS_STORE",
    default="sqlite",
    show_default=True,
    help="With --data: where sessions are, as in Settings; also by SITS_STORE.",
)
@click.option("--json", "as_json", is_flag=True, help="One object.")
@service_options
def verify(session_id: str | None, folder: Path | None, store: str, as_json: bool, url: str, key: str | None) -> None:
    """Prove that no session has a hole, lies about its content, or forked without a record. Exit 1 when one does."""
    if folder is None:
        query = f"?{urlencode({'session': session_id})}" if session_id else ""
        told = Service(url, key).ask("GET", f"/v1/admin/sync/verify{query}")
    else:
        told = _offline(folder, store, session_id)
    if as_json:
        click.echo(json.dumps(told, ensure_ascii=False))
    else:
        _show(told)
    if not told["sound"]:
        raise SystemExit(1)


def _offline(folder: Path, store: str, session_id: str | None) -> dict[str, Any]:
    if store == "sqlite" and not (folder / STORE_FILE).exists():
        raise click.ClickException(
            f"there are no sessions in {folder} ({STORE_FILE} is not in it); say where they are with --store"
        )
    try:
        found = asyncio.run(_looked(folder, store, session_id))
    except SitsError as error:
        raise click.ClickException(error.message) from error
    return {"sound": found.sound, **msgspec.to_builtins(found)}


async def _looked(folder: Path, address: str, session_id: str | None) -> Audit:
    store = await open_store(address, folder, timeout=30.0)
    try:
        if not (folder / PENDING_FILE).exists():
            return await audit(store, Terms(), now=time.time(), session_id=session_id)
        pending = await open_pending(folder, "verify", Terms())
        try:
            return await audit(store, Terms(), now=time.time(), pending=pending, session_id=session_id)
        finally:
            await pending.aclose()
    finally:
        await store.aclose()


def _show(told: dict[str, Any]) -> None:
    click.echo(
        f"{told['sessions']} sessions, {told['deltas']} changes kept, {told['forks']} forks settled; "
        f"{told['pending']} changes wait, {told['given_up']} were given up"
    )
    for note in told["notes"]:
        click.echo(f"  {note}")
    for fault in told["faults"]:
        click.secho(f"{fault['session_id'] or '-'}: {fault['kind']}: {fault['message']}", fg="red")
    if told["left_out"]:
        click.secho(f"and {told['left_out']} more", fg="red")
    sound = told["sound"]
    click.secho("the sessions are sound" if sound else "the sessions are NOT sound", fg="green" if sound else "red")
