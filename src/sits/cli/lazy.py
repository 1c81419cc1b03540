"""A group of commands of which some are import paths, so that none slows another, or needs what another needs."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click


class LazyGroup(click.Group):
    """`rows`: name -> where the command is, and the line that `--help` shows without importing it."""

    def __init__(self, *args: object, rows: Mapping[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._rows = rows

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.commands, *self._rows]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = self._rows.get(cmd_name)
        if row is None:
            return self.commands.get(cmd_name)
        module, _, name = row[0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            told = [(name, command.get_short_help_str(80)) for name, command in self.commands.items()]
            formatter.write_dl([*told, *((name, line) for name, (_, line) in self._rows.items())])
