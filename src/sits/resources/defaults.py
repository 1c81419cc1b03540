"""The built-in configuration: what is served when no other is given."""

from __future__ import annotations

import pathlib

DEFAULT_FOLDER = pathlib.Path(__file__).parent / "default"
"""A folder of resources like any other: two chat models, one embedding model, and the routes `default` and `embeddings`."""
