"""The OpenAPI 3.1 document of the gateway's own API."""

from __future__ import annotations

from typing import Any

from sits import __version__
from sits.gateway.openapi import (
    answers,
    asks,
    behind,
    refusals,
    registration,
    registry,
    reliability,
    routing,
    sessions,
    switching,
    vitals,
)
from sits.gateway.openapi.paths import paths

DESCRIPTION = """\
One dependable service in front of many models, in OpenAI's and Anthropic's words.

Fields that a request schema does not name pass through. A model server that speaks the client's dialect gets the body as it
came, so it may take more than is said here, and what it refuses comes back with its own status as `upstream_rejected`; for
every other server the gateway reads the request and refuses what does not fit its schema.

Every error has a code of a closed vocabulary, in the header `x-sits-error` and as `sits_code` in the body. An error after a
stream has begun is its last event. Keys are asked for once a first key exists, unless Settings say otherwise.
"""
SESSIONS = """\
Contexts that several clients change, by key path and over all gateways of a cluster. A session belongs to the key that
made it: for others it is not there, except for admin keys. Values are bytes: base64 in JSON, as they are in
`application/msgpack`, which may be sent, and is answered where `accept` names it; errors are JSON.\
"""


def document() -> dict[str, Any]:
    """The document, as `/openapi.json` serves it."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "SITS",
            "version": __version__,
            "summary": "Smart Intelligence Transformation Stack",
            "description": DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "tags": [
            {"name": "inference", "description": "Requests to models."},
            {"name": "conversations", "description": "Answers of `/v1/responses` that are kept, for `previous_response_id`."},
            {"name": "sessions", "description": SESSIONS},
            {"name": "models", "description": "What can be asked for."},
            {"name": "operations", "description": "How the gateway is."},
        ],
        "paths": paths(),
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "OpenAI's way."},
                "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "Anthropic's way."},
            },
            "headers": refusals.headers(),
            "responses": refusals.components(),
            "schemas": {
                **asks.schemas(),
                **answers.schemas(),
                **refusals.schemas(),
                **sessions.schemas(),
                **behind.schemas(),
                **switching.schemas(),
                **registry.schemas(),
                **routing.schemas(),
                **registration.schemas(),
                **reliability.schemas(),
                **vitals.schemas(),
                "Document": {"type": "object", "required": ["openapi", "info", "paths"], "description": "An OpenAPI document."},
            },
        },
    }
