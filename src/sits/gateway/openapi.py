"""The OpenAPI 3.1 document of the gateway's own API."""

from __future__ import annotations

from typing import Any

from sits import __version__


def document() -> dict[str, Any]:
    """The document, as `/openapi.json` serves it."""
    return {"openapi": "3.1.0", "info": {"title": "SITS", "version": __version__}, "paths": {}}
