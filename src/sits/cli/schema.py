"""`sits schema`: the JSON Schema of the resources."""

from __future__ import annotations

import json

import click

from sits.resources.kinds import KINDS
from sits.resources.schema import json_schema


@click.command()
@click.option("--kind", type=click.Choice(list(KINDS)), help="Of this kind only.")
def schema(kind: str | None) -> None:
    """Print the JSON Schema (2020-12) of the resources, for editors and other tools."""
    click.echo(json.dumps(json_schema(kind), indent=2, ensure_ascii=False))
