"""`sits keys`: make, list and remove API keys in a data folder. A running service notices by itself."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

import click

from sits.inner.errors import SitsError
from sits.security.keys import expiry, moment, new_key
from sits.state.database import FILE, Database
from sits.state.stored_keys import StoredKey, StoredKeys

F = TypeVar("F", bound=Callable[..., Any])


def _data(command: F) -> F:
    return click.option(
        "--data",
        "folder",
        type=click.Path(file_okay=False, path_type=Path),
        envvar="SITS_DATA",
        default=Path("data"),
        show_default=True,
        help="The data folder of the service; also by SITS_DATA.",
    )(command)


def _json(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


@contextmanager
def _stored(folder: Path, *, make: bool = False) -> Iterator[StoredKeys]:
    """The keys in `folder`, which is made only when asked; what goes wrong is one line on stderr and exit code 1."""
    if not make and not (folder / FILE).exists():
        raise click.ClickException(f"{folder} is no data folder of the service ({FILE} is not in it); say which one with --data")
    try:
        database = Database(folder)
        try:
            yield StoredKeys(database)
        finally:
            database.close()
    except SitsError as error:
        raise click.ClickException(error.message) from error


@click.group("keys")
def keys() -> None:
    """API keys: make, list and remove them."""


@keys.command("new")
@click.option("--name", required=True, help="What the key is called in logs and records.")
@click.option("--models", help="Names it may ask for, separated by commas; all when not given.")
@click.option("--admin", is_flag=True, help="It may call the admin API and register models.")
@click.option("--expires", help="When it stops working: an RFC 3339 time, or a span such as 12h, 30d, 8w.")
@_data
@_json
def new(name: str, models: str | None, admin: bool, expires: str | None, folder: Path, as_json: bool) -> None:
    """Make a key and print it. It is shown this once; only its hash is kept."""
    now = time.time()
    with _stored(folder, make=True) as stored:
        made = new_key(
            name,
            secrets.token_bytes,
            models=None if models is None else _names(models),
            admin=admin,
            expires=None if expires is None else expiry(expires, now),
        )
        stored.add(made.key, by="cli", at=now)
    if as_json:
        click.echo(json.dumps({"name": name, "key": made.secret, "created": _utc(now)}))
        return
    click.echo(made.secret)
    click.echo(f"This is key {name!r}, good for the service on {folder.resolve()}. It is not shown again.", err=True)


@keys.command("ls")
@_data
@_json
def ls(folder: Path, as_json: bool) -> None:
    """List the keys in the data folder; their secrets are not there to be shown."""
    with _stored(folder) as stored:
        rows = [_row(key, time.time()) for key in stored.all()]
        for row in stored.unreadable():
            click.echo(f"key {row.name!r} cannot be read: {row.why}", err=True)
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    if not rows:
        click.echo("no keys", err=True)
        return
    table = [("NAME", "STATE", "ADMIN", "MODELS", "CREATED", "EXPIRES")]
    table += [
        (
            row["name"],
            row["state"],
            "yes" if row["admin"] else "no",
            "all" if row["models"] is None else ",".join(row["models"]),
            row["created"],
            row["expires"] or "never",
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


@keys.command("rm")
@click.argument("name")
@_data
def rm(name: str, folder: Path) -> None:
    """Remove the key NAME: requests that carry it are refused from then on."""
    with _stored(folder) as stored:
        stored.remove(name)
        last = not stored.all()
    click.echo(f"removed key {name!r}", err=True)
    if last:
        warning = (
            "that was the last stored key: unless the configuration declares one, or says `auth: required`, "
            "nobody is asked for a key from now on"
        )
        click.secho(warning, fg="yellow", err=True)


def _names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise click.BadParameter("give at least one name, or leave it out to allow all", param_hint="--models")
    return names


def _row(kept: StoredKey, now: float) -> dict[str, Any]:
    spec = kept.resource.spec
    expired = spec.expires is not None and moment(spec.expires) <= now
    return {
        "name": kept.name,
        "state": "disabled" if spec.disabled else "expired" if expired else "active",
        "admin": spec.admin,
        "models": spec.models,
        "created": _utc(kept.at),
        "expires": spec.expires,
    }


def _utc(unix: float) -> str:
    return datetime.fromtimestamp(int(unix), UTC).isoformat().replace("+00:00", "Z")
