"""`sitsctl status`: what is in force, and what is not well with it: one line a model, and one for each thing to be mended."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import click

from sits.cli.service import Service, service_options

REFUSED, UNWELL = 1, 3
Rows = Sequence[Mapping[str, Any]]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="All of it, one object.")
@click.option("--config-only", is_flag=True, help="Which configuration is in force, and whether a change was refused; no more.")
@service_options
def status(as_json: bool, config_only: bool, url: str, key: str | None) -> None:
    """Which configuration is in force, what was refused, how the models are. Exit code 0: all is well; 1: a change was refused;
    3: a model, a plugin, a policy, a route or the cluster is not well, or something is not written, as its line says."""
    service = Service(url, key)
    found = service.ask("GET", "/v1/admin/status")
    config = found["config"]
    unwell: dict[str, list[str]] = {}
    others: list[str] = []
    if not config_only:
        for page in ("breakers", "vitals", "pressures"):
            found[page] = service.ask("GET", f"/v1/admin/{page}")
        found["plugins"] |= service.ask("GET", "/v1/admin/plugins")
        unwell = models_unwell(found["models"], found["breakers"]["data"], found["vitals"])
        others = [f"plugins: {line}" for line in found["plugins"]["problems"]]
        if found["cluster"] is not None and found["cluster"]["trouble"]:
            others.append(f"cluster: the bus is not heard: {found['cluster']['trouble']}")
        if found["intent"]["unwell"]:
            others.append(f"intent: requests are not read as is declared: {found['intent']['unwell']}")
        others += pressures_blind(found["pressures"]["data"])
        others += not_written(found["storage"])
        found["unwell"] = {"models": unwell, "others": others}
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
    else:
        _show(found, None if config_only else unwell, others)
    if config["error"]:
        raise SystemExit(REFUSED)
    if unwell or others:
        raise SystemExit(UNWELL)


def models_unwell(models: Mapping[str, Any], breakers: Rows, vitals: Mapping[str, Rows]) -> dict[str, list[str]]:
    """By model, what keeps it from being asked like any other, in words; who is well is not in it."""
    told = {row["target"]: row for row in vitals["data"]}
    verdicts = {row["target"]: row for row in vitals["health"]}
    seen: dict[str, list[Mapping[str, Any]]] = {}
    for row in breakers:
        seen.setdefault(row["name"], []).append(row)
    found = {
        name: [
            *_unusable(model),
            *_breaker(seen.get(name, [])),
            *(_verdict(verdicts[name]) if name in verdicts else ()),
            *(_away(told[name]) if name in told else ()),
        ]
        for name, model in models.items()
    }
    return {name: words for name, words in found.items() if words}


def pressures_blind(rows: Rows) -> list[str]:
    """Policies that no worker has a reading for, a line each."""
    seen = {row["name"] for row in rows if row["value"] is not None}
    blind = {row["name"]: row for row in rows if row["name"] not in seen and row["trouble"]}
    return [f"pressure {name}: nothing is known of {row['metric']}: {row['trouble']}" for name, row in blind.items()]


def not_written(rows: Rows) -> list[str]:
    """What does not reach its disk or server, a line each, however many workers say so."""
    said: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in rows:
        said.setdefault((row["what"], row["why"]), []).append(row)
    return [f"{what}, since {_clock(min(row['since'] for row in found))}: {why}" for (what, why), found in said.items()]


def _unusable(model: Mapping[str, Any]) -> Iterator[str]:
    local = model.get("local")
    if model.get("unusable"):
        yield f"cannot be used: {model['unusable']}"
    elif local and local["state"] == "failed":
        yield f"cannot be loaded: {local['error']}"


def _breaker(rows: Rows) -> Iterator[str]:
    """Of one model, a row for each worker."""
    out = [row for row in rows if row["out"]]
    if not out:
        return
    one = max(out, key=lambda row: float(row["until"] or 0.0))
    where = f" in {len(out)} of {len(rows)} workers" if len(out) < len(rows) else ""
    if one["state"] == "resting":
        when = "" if one["until"] is None else f" until {_clock(one['until'])}"
        yield f"resting{when}{where}: {one['detail']}"
    else:
        until = "" if one["until"] is None else f", to be tried at {_clock(one['until'])}"
        yield f"breaker {one['state']}{where} since {_clock(one['since'])}{until}: {one['detail']}"


def _verdict(row: Mapping[str, Any]) -> Iterator[str]:
    if row["sick"]:
        asked = "" if row["out"] else ", and asked all the same: no more of its route may be left out"
        yield f"sick by its query: {row['reason']}{asked}"
    if row["trouble"]:
        yield f"its query is not answered: {row['trouble']}"


def _away(row: Mapping[str, Any]) -> Iterator[str]:
    if row["state"] == "away":
        yield f"not reachable at {row['asked_at']}: {row['trouble']}"


def _clock(unix: float) -> str:
    """Of this machine."""
    return time.strftime("%H:%M:%S", time.localtime(unix))


def _show(found: Mapping[str, Any], unwell: Mapping[str, Sequence[str]] | None, others: Sequence[str]) -> None:
    config = found["config"]
    state = "draining" if found["draining"] else "serving"
    click.echo(f"sits {found['version']}, {state}, {found['live']} requests under way, up {found['uptime_seconds']:.0f} s")
    click.echo(f"configuration {config['version']} ({config['hash'][:12]}) from {config['path']}")
    for name, model in found["models"].items() if unwell is not None else ():
        local = model.get("local")
        how = local["state"] if local else model.get("endpoint") or ""
        line = f"  {name:<32} {model['engine']:<10} {how}"
        words = unwell.get(name) if unwell is not None else None
        click.echo(f"{line}  {click.style('; '.join(words), fg='yellow')}" if words else line.rstrip())
    if unwell is not None and found["intent"]["making"]:
        click.echo(f"intent: {found['intent']['making']}")
    for line in others:
        click.secho(line, fg="yellow")
    if config["error"]:
        click.secho(f"the last change was refused:\n{config['error']}", fg="red")
