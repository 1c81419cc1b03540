"""`sits domains`: the domains that come with the package."""

from __future__ import annotations

from pathlib import Path

import click

from sits.resources.domains import DOMAINS_FOLDER
from sits.resources.problem import did_you_mean


@click.group()
def domains() -> None:
    """Kinds of task that requests can be told by: those that come with the package."""


@domains.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.option("--only", multiple=True, metavar="NAME", help="This domain; may be repeated. All of them without.")
@click.option("--force", is_flag=True, help="Overwrite files that are there and differ.")
def export(folder: Path, only: tuple[str, ...], force: bool) -> None:
    """Write Domain resources into FOLDER, one file each, to be used as they are or changed: put FOLDER into the configuration."""
    shipped = {path.stem: path.read_bytes() for path in sorted(DOMAINS_FOLDER.glob("*.yaml"))}
    for name in only:
        if name not in shipped:
            hint = did_you_mean(name, shipped)
            named = f"{hint} there are: " if hint else "there are: "
            raise click.BadParameter(f"there is no {name!r}; {named}{', '.join(shipped)}", param_hint="--only")
    wanted = {folder / f"{name}.yaml": text for name, text in shipped.items() if not only or name in only}
    for path, text in wanted.items():
        if path.exists() and not force and path.read_bytes() != text:
            raise click.ClickException(f"{path} is there and differs; --force overwrites it")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for path, text in wanted.items():
            path.write_bytes(text)
    except OSError as error:
        raise click.ClickException(f"{error.filename}: {error.strerror}") from error
    click.echo(f"{len(wanted)} {'domain' if len(wanted) == 1 else 'domains'} in {folder}")
