"""`sits`: serve, look at and try the service. Each command is imported when it is used, so that none slows another."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

import click

from sits import __version__

COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("sits.cli.serve:serve", "Run the gateway."),
    "chat": ("sits.cli.chat:chat", "Talk to a model in the terminal."),
    "models": ("sits.cli.models:models", "List, add, remove and fetch models."),
    "keys": ("sits.cli.keys:keys", "Make, list and remove API keys."),
    "validate": ("sits.cli.validate:validate", "Check resources without running anything."),
    "schema": ("sits.cli.schema:schema", "Print the JSON Schema of the resources."),
    "import": ("sits.cli.import_litellm:import_", "Turn another product's configuration into resources."),
    "bench": ("sits.cli.bench:bench", "Measure, and hold the figures against their bounds."),
    "docs": ("sits.cli.docs:docs", "Write the pages of docs/ that are generated from the code."),
}
"""Name -> where the command is, and the line that `--help` shows without importing it."""


class LazyGroup(click.Group):
    """A group whose commands are import paths."""

    def __init__(self, *args: object, rows: Mapping[str, tuple[str, str]], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self._rows = rows

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._rows)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        row = self._rows.get(cmd_name)
        if row is None:
            return None
        module, _, name = row[0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in self._rows.items()])


@click.command(cls=LazyGroup, rows=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sits")
def main() -> None:
    """One dependable service in front of many models."""
