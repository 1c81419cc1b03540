"""`sits import litellm config.yaml -o DIR`: a LiteLLM configuration as SITS resources."""

from __future__ import annotations

import json
import pathlib

import click
import msgspec

from sits.cli.validate import line
from sits.resources.litellm import files, import_config
from sits.resources.problem import ConfigError


@click.group("import")
def import_() -> None:
    """Make resources from the configuration of another gateway."""


@import_.command()
@click.argument("config", type=click.Path(path_type=pathlib.Path, exists=True, dir_okay=False))
@click.option(
    "-o", "--output", type=click.Path(path_type=pathlib.Path, file_okay=False), required=True, help="Folder to write to."
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of lines.")
@click.option("--force", is_flag=True, help="Overwrite files that are there already.")
def litellm(config: pathlib.Path, output: pathlib.Path, as_json: bool, force: bool) -> None:
    """Write resources for the LiteLLM CONFIG and list what could not be carried over."""
    try:
        imported = import_config(config)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    texts = files(imported)
    there = [name for name in texts if (output / name).exists()]
    if there and not force:
        raise click.ClickException(f"{output / there[0]} is there already; choose another folder or give --force")
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            (output / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"cannot write to {output}: {error.strerror}") from error
    written = [str(output / name) for name in texts]
    if as_json:
        notes = msgspec.to_builtins(imported.notes)
        click.echo(json.dumps({"written": written, "resources": len(imported.resources), "notes": notes}, ensure_ascii=False))
        return
    for name in written:
        click.echo(f"wrote {name}")
    if imported.notes:
        click.echo(f"{len(imported.notes)} thing{'s' if len(imported.notes) != 1 else ''} to look at:")
    for note in imported.notes:
        click.echo(line(note))
