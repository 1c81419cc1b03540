"""`sitsctl switch`: replace a model by another while requests run, and watch it happen.

Exit codes: 0 when it was done (and, with `--wait`, the old model is retired), 1 when it was refused or rolled back, 2 for a wrong
command, 3 when `--seconds` were over before the switch was.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from sits.cli.service import Service, quoted, service_options

F = TypeVar("F", bound=Callable[..., Any])
LOOK_SECONDS = 0.2
PATIENCE_SECONDS = 15.0
"""How long a gateway that does not answer is asked again while a switch is watched."""
WIDTH = 24
COLOURS = {"retired": "green", "aborted": "red"}


def _watching(command: F) -> F:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="JSON: one object, or one a line for each change with --watch."),
        click.option("--seconds", type=click.FloatRange(min=0), help="Wait or watch no longer than this; exit 3 then."),
        click.option("--watch", is_flag=True, help="Show how it goes on until it is over."),
        click.option("--wait", is_flag=True, help="Return when it is over: exit 0 when retired, 1 when rolled back."),
    ):
        command = option(command)
    return service_options(command)


@click.group("switch")
def switch() -> None:
    """Replace a model by another while requests run."""


@switch.command("status")
@click.argument("name", required=False)
@_watching
def status(name: str | None, wait: bool, watch: bool, seconds: float | None, as_json: bool, url: str, key: str | None) -> None:
    """How a switch is, or all of them. Exit 1 when NAME was rolled back."""
    service = Service(url, key)
    if name is None:
        if wait or watch:
            raise click.UsageError("which one? say its name to wait for it or watch it")
        _list(service.ask("GET", "/v1/admin/switches")["data"], as_json)
        return
    if wait or watch:
        _follow(service, name, watch=watch, seconds=seconds, as_json=as_json)
        return
    found = service.ask("GET", f"/v1/admin/switches/{quoted(name)}")
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        _show(found["switch"], found["audit"])
    if found["switch"]["state"] == "aborted":
        raise SystemExit(1)


def _command(action: str, text: str) -> click.Command:
    @click.command(action, help=text)
    @click.argument("name")
    @click.option("--why", default="", help="The reason, for the audit.")
    @_watching
    def run(
        name: str, why: str, wait: bool, watch: bool, seconds: float | None, as_json: bool, url: str, key: str | None
    ) -> None:
        service = Service(url, key)
        found = service.ask("POST", f"/v1/admin/switches/{quoted(name)}/{action}", {"why": why} if why else None)
        if wait or watch:
            _follow(service, name, watch=watch, seconds=seconds, as_json=as_json)
        elif as_json:
            click.echo(json.dumps(found, ensure_ascii=False))
        else:
            click.echo(_line(found))

    return run


for _action, _text in (
    ("start", "Begin to move requests to the new model; while it is under way already, nothing happens."),
    ("pause", "Stay at this share until it is resumed. A broken gate still rolls back."),
    ("resume", "Go on after a pause."),
    ("abort", "Roll back: everything is as declared, at once and on all gateways."),
    ("promote", "Let a canary go on to everybody."),
):
    switch.add_command(_command(_action, _text))


def _follow(service: Service, name: str, *, watch: bool, seconds: float | None, as_json: bool) -> None:
    """Look until it is over; then exit by how it ended."""
    until = None if seconds is None else time.monotonic() + seconds
    live = watch and not as_json and sys.stdout.isatty()
    shown: Any = None
    while True:
        found = _asked(service, name)
        # What changes with every request is news on a terminal only.
        news = found if live else {key: found[key] for key in ("state", "step", "paused", "generation")}
        if watch and news != shown:
            shown = news
            _tell(found, live=live, as_json=as_json)
        if found["over"] or found["state"] == "idle" or (until is not None and time.monotonic() >= until):
            break
        time.sleep(LOOK_SECONDS)
    if live:
        click.echo()
    if not watch:
        click.echo(json.dumps(found, ensure_ascii=False) if as_json else _line(found))
    elif found["over"] and not as_json:
        click.secho(found["why"], fg=COLOURS.get(found["state"]))
    if found["state"] == "retired":
        return
    raise SystemExit(1 if found["state"] in ("aborted", "idle") else 3)


def _asked(service: Service, name: str) -> dict[str, Any]:
    """The switch; a gateway that is away is asked again for a while, since the switch goes on without it."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            found: dict[str, Any] = service.ask("GET", f"/v1/admin/switches/{quoted(name)}")["switch"]
            return found
        except click.ClickException as error:
            if "no gateway answers" not in error.message or time.monotonic() >= until:
                raise
        time.sleep(LOOK_SECONDS)


def _tell(found: dict[str, Any], *, live: bool, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    elif live:
        click.echo(f"\r\x1b[2K{_line(found)[: _columns()]}", nl=False)
    else:
        click.echo(_line(found))


def _columns() -> int:
    import shutil

    return max(40, shutil.get_terminal_size().columns - 1)


def _line(found: dict[str, Any]) -> str:
    """One line: a bar by share, the state, what was seen."""
    filled = round(found["share"] * WIDTH)
    bar = "#" * filled + "." * (WIDTH - filled)
    step = f" {found['step']}/{len(found['steps'])}" if found["state"] == "shift" else ""
    new, old = found["observed"]["new"], found["observed"]["old"]
    seen = f"  new {new['failures']}/{new['requests']} failed, old {old['failures']}/{old['requests']}" if found["share"] else ""
    paused = " (paused)" if found["paused"] else ""
    why = f"  {found['why']}" if found["why"] else ""
    return f"{found['old']} -> {found['new']} [{bar}] {found['share']:4.0%} {found['state']}{step}{paused}{seen}{why}"


def _list(rows: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"data": rows}, ensure_ascii=False))
        return
    if not rows:
        click.echo("no switch is declared", err=True)
    for row in rows:
        click.echo(f"{row['name']:<24} {_line(row)}")


def _show(found: dict[str, Any], audit: list[dict[str, Any]]) -> None:
    click.secho(_line(found), fg=COLOURS.get(found["state"]))
    for gate in found["gates"]:
        click.echo(f"  gate {gate['gate']:<8} {gate['state']:<7} {gate['why']}")
    for one in found["gateways"]:
        there = "there" if one["there"] else "not heard"
        ready = one["ready"] or "nothing"
        busy = f", {one['busy']} answers of {found['old']} under way" if one["busy"] else ""
        click.echo(f"  gateway {one['id']}: {there}, has done {ready}{busy}")
    for event in audit:
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"]))
        why = f": {event['why']}" if event["why"] else ""
        click.echo(f"  {at}  {event['generation']}  {event['event']:<16} {event['who']}{why}")
