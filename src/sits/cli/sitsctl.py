"""`sitsctl`: look into a running gateway."""

from __future__ import annotations

import json

import click

from sits import __version__
from sits.cli.lazy import LazyGroup
from sits.cli.service import Service, quoted, service_options

COMMANDS = {
    "status": ("sits.cli.status:status", "What is in force, what was refused, how the models are."),
    "switch": ("sits.cli.switch:switch", "Replace a model by another while requests run."),
    "ledger": ("sits.cli.ledger:ledger", "What was used and what it cost; works on the data folder."),
    "find": ("sits.cli.registry:find", "Which services do what is meant."),
    "state": ("sits.cli.state_audit:state", "Whether records and vectors agree, and how to mend them."),
    "sync": ("sits.cli.sync:sync", "Whether sessions are what they should be."),
}


@click.group(cls=LazyGroup, rows=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sitsctl")
def main() -> None:
    """Look into a running gateway."""


@main.command()
@click.argument("request_id")
@click.option("--json", "as_json", is_flag=True, help="The whole record.")
@service_options
def explain(request_id: str, as_json: bool, url: str, key: str | None) -> None:
    """Why a request was answered as it was: REQUEST_ID is in the header x-request-id of the answer, and in the log."""
    record = Service(url, key).ask("GET", f"/v1/admin/records/{quoted(request_id)}")
    explanation = record.pop("explanation")
    click.echo(json.dumps(record, ensure_ascii=False) if as_json else explanation, nl=as_json)


@main.command()
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="How many.")
@click.option("--json", "as_json", is_flag=True, help="The whole records, one object.")
@service_options
def records(limit: int, as_json: bool, url: str, key: str | None) -> None:
    """The newest requests, one a line."""
    found = Service(url, key).ask("GET", f"/v1/admin/records?limit={limit}")
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False))
        return
    if not found["data"]:
        click.echo("no requests yet", err=True)
    for record in found["data"]:
        total = record["anatomy"]["total"] * 1e3
        what = f"{record['operation']:<12} {record.get('requested', ''):<24} -> {record.get('target', '-'):<24}"
        click.echo(
            f"{record['request_id']:<34} {record.get('status', 0)} {total:9.1f} ms  {what} {record.get('code', '')}".rstrip()
        )
