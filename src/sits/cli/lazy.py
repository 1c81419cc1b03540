"""A group of commands of which some are import paths, so that none slows another, or needs what another needs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping

import click

from sits.cli.utf8 import refuse_other


class LazyGroup(click.Group):
    """`rows`: name -> where the command is, and the line that `--help` shows without importing it."""

    def __init__(self, *args: object, rows: Mapping[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._rows = rows

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Raises NotUtf8 for what no command could do anything with."""
        refuse_other(args, os.environ)
        return super().parse_args(ctx, args)

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
