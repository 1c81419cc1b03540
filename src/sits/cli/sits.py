"""`sits`: serve, look at and try the service. Each command is imported when it is used, so that none slows another."""

from __future__ import annotations

from collections.abc import Mapping

import click

from sits import __version__
from sits.cli.lazy import LazyGroup

COMMANDS: Mapping[str, tuple[str, str]] = {
    "serve": ("sits.cli.serve:serve", "Run the gateway."),
    "chat": ("sits.cli.chat:chat", "Talk to a model in the terminal."),
    "models": ("sits.cli.models:models", "List, add, remove and fetch models."),
    "keys": ("sits.cli.keys:keys", "Make, list and remove API keys."),
    "validate": ("sits.cli.validate:validate", "Check resources without running anything."),
    "schema": ("sits.cli.schema:schema", "Print the JSON Schema of the resources."),
    "import": ("sits.cli.import_litellm:import_", "Turn another product's configuration into resources."),
    "bench": ("sits.cli.bench:bench", "Measure, and hold the figures against their bounds."),
    "chaos": ("sits.cli.chaos:chaos", "Run chaos experiments."),
    "intent": ("sits.cli.intent:intent", "Try and tune what requests are understood to want."),
    "domains": ("sits.cli.domains:domains", "Domains that come with the package, to begin with."),
    "plugin": ("sits.cli.plugin:plugin", "Write, check and list plugins."),
    "replay": ("sits.cli.replay:replay_", "Decide recorded traffic again, by this or another configuration."),
    "registry": ("sits.cli.registry:registry", "Services that other registries know."),
    "docs": ("sits.cli.docs:docs", "Write the pages of docs/ that are generated from the code."),
}
"""Name -> where the command is, and the line that `--help` shows without importing it."""


@click.command(cls=LazyGroup, rows=COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="sits")
def main() -> None:
    """One dependable service in front of many models."""
