"""Variables of the environment: an option has the same one in every command, and the pages name those that there are."""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

import click

from sits.cli.sits import main as sits
from sits.cli.sitsctl import main as sitsctl

ROOT = pathlib.Path(__file__).parents[2]


def options(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """(option, variable) of a command and all below it."""
    for one in command.params:
        if isinstance(one.envvar, str):
            yield one.opts[0], one.envvar
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from options(below, context)


def everywhere() -> set[tuple[str, str]]:
    return {found for main in (sits, sitsctl) for found in options(main, click.Context(main))}


def test_a_key_is_given_to_every_command_by_the_same_variable() -> None:
    assert {variable for option, variable in everywhere() if option == "--key"} == {"SITS_API_KEY"}


def test_pages_name_variables_that_commands_read() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py"))
    known = {variable for _, variable in everywhere()} | set(re.findall(r"environ(?:\.get\(|\[)\"(SITS_[A-Z_]+)\"", sources))
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
    named = {word for page in pages for word in re.findall(r"\bSITS_[A-Z_]+", page.read_text(encoding="utf-8"))}
    assert named - known == set()
