"""The built-in configuration: what is served when no other is given."""

from __future__ import annotations

import pathlib

DEFAULT_FOLDER = pathlib.Path(__file__).parent / "default"
"""A folder of resources like any other: two chat models, one embedding model, and the routes `default` and `embeddings`."""


def base_of(config: pathlib.Path, data: pathlib.Path) -> pathlib.Path | None:
    """The folder that relative paths of what others declare are relative to, where it is not that of the configuration: the data
    folder of a gateway that has no configuration of its own."""
    return data if config.resolve() == DEFAULT_FOLDER.resolve() else None
