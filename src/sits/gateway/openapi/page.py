"""The document as a page for people: `docs/http-api.md`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from sits.gateway.openapi import document
from sits.gateway.openapi.paths import EVENTS, JSON
from sits.gateway.openapi.shapes import Schema

HEAD = """\
# HTTP API

Made from the OpenAPI document that `GET /openapi.json` serves; do not edit by hand (`sits docs`).

"""
MODEL_ERRORS = """\
## Errors of requests to models

The body is in the words of the client's dialect; `sits_code` is the code of [errors](errors.md), also in the header
`x-sits-error`. What a model server refuses keeps the server's own status, any 4xx, as `upstream_rejected`.
"""
FIELDS_OF_ANSWERS = """\
## Headers of answers

| header | meaning |
| --- | --- |
"""


def http_page() -> str:
    """The text of `docs/http-api.md`."""
    asked = document()
    description: str = asked["info"]["description"]
    return HEAD + description + "\n" + "\n".join(_sections(asked)) + "\n"


def _sections(asked: Mapping[str, Any]) -> Iterator[str]:
    rows = [
        (method.upper(), path, operation) for path, methods in asked["paths"].items() for method, operation in methods.items()
    ]
    yield "| endpoint | what it does | rights |"
    yield "| --- | --- | --- |"
    for method, path, operation in rows:
        link = f"[`{method} {path}`](#{operation['operationId'].lower()})"
        yield f"| {link} | {operation['summary']} | {_rights(operation)} |"
    yield ""
    yield FIELDS_OF_ANSWERS + "\n".join(
        f"| `{name}` | {header['description']} |" for name, header in asked["components"]["headers"].items()
    )
    yield ""
    yield MODEL_ERRORS
    yield from _statuses(_shared(asked, "OpenAI"))
    for tag in asked["tags"]:
        yield f"\n## {tag['name'].capitalize()}\n\n{tag['description']}"
        for method, path, operation in rows:
            if tag["name"] in operation["tags"]:
                yield from _operation(asked, method, path, operation)


def _rights(operation: Mapping[str, Any]) -> str:
    if not operation["security"]:
        return "none"
    # A 403 that is not about the key's rights to models is about its rights as an admin.
    of_models = "inference" in operation["tags"] or operation["operationId"] == "getModel"
    return "an admin key" if "403" in operation["responses"] and not of_models else "a key"


def _operation(asked: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]) -> Iterator[str]:
    yield f'\n<a id="{operation["operationId"].lower()}"></a>'
    yield f"### {method} {path}\n\n{operation['summary']}"
    if "parameters" in operation:
        yield "\n| parameter | in | type | meaning |\n| --- | --- | --- | --- |"
        for one in operation["parameters"]:
            yield f"| `{one['name']}` | {one['in']} | {_words(asked, one['schema'])} | {one['description']} |"
    if "requestBody" in operation:
        for one in operation.get("parameters", ()):
            path = path.replace(f"{{{one['name']}}}", one.get("example", "NAME"))
        yield from _request(asked, path, operation["requestBody"]["content"][JSON])
    good = next(status for status in operation["responses"] if status.startswith("2"))
    for kind, media in operation["responses"][good]["content"].items():
        if "example" in media:
            yield f"\n{good}, `{kind}`:\n\n```{'json' if kind == JSON else 'text'}\n{_example(kind, media['example'])}\n```"
    own = {status: response for status, response in operation["responses"].items() if "$ref" not in response and status != good}
    if own:
        yield ""
        yield from _statuses(own)


def _request(asked: Mapping[str, Any], path: str, media: Mapping[str, Any]) -> Iterator[str]:
    schema = _found(asked, media["schema"])
    for option in [_found(asked, one) for one in schema.get("anyOf", [schema])]:
        if "properties" in option:
            if option.get("description"):
                yield f"\n{option['description']}"
            yield "\n| field | type | needed |\n| --- | --- | --- |"
            for name, field in option["properties"].items():
                meaning = f"; {field['description'].rstrip('.')}" if "description" in field else ""
                needed = "yes" if name in option.get("required", ()) else ""
                yield f"| `{name}` | {_cell(_words(asked, field) + meaning)} | {needed} |"
    values = [media["example"]] if "example" in media else [one["value"] for one in media["examples"].values()]
    for value in values:
        body = shlex.quote(json.dumps(value, ensure_ascii=False))
        yield f"\n```sh\ncurl http://127.0.0.1:8080{path} -H 'content-type: application/json' -d {body}\n```"


def _example(kind: str, value: Any) -> str:
    if kind == EVENTS:
        return "\n".join(f"{name}: {held}" for name, held in value.items())
    return json.dumps(value, ensure_ascii=False, indent=2)


def _statuses(responses: Mapping[str, Any]) -> Iterator[str]:
    yield "| status | codes |"
    yield "| --- | --- |"
    for status, response in responses.items():
        yield f"| {status} | {_when(response)} |"


def _when(response: Mapping[str, Any]) -> str:
    """The codes that come with it, or what it says of itself where these are not all."""
    options = response["content"][JSON]["schema"].get("allOf")
    if options is None:
        return _cell(response["description"])
    codes = options[1]["properties"]["error"]["properties"]["sits_code"]["enum"]
    return ", ".join(f"`{code}`" for code in codes)


def _shared(asked: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    held = asked["components"]["responses"].items()
    return {name.removeprefix(prefix): response for name, response in held if name.startswith(prefix)}


def _found(asked: Mapping[str, Any], value: Any) -> Any:
    while "$ref" in value:
        held: Any = asked
        for step in value["$ref"].removeprefix("#/").split("/"):
            held = held[step]
        value = held
    return value


def _words(asked: Mapping[str, Any], schema: Schema) -> str:
    """A schema in a few words; objects are not opened."""
    if "$ref" in schema:
        return f"`{schema['$ref'].rpartition('/')[2]}`"
    if "anyOf" in schema:
        options = list(dict.fromkeys(_words(asked, option) for option in schema["anyOf"]))
        return " or ".join(options)
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    kind = schema.get("type")
    if kind == "array":
        return f"list of {_words(asked, schema['items'])}" if "items" in schema else "list"
    if isinstance(kind, list):
        return " or ".join(kind)
    bounds = [f"{sign} {schema[key]}" for key, sign in BOUNDS.items() if key in schema]
    return f"{kind or 'anything'}{', ' if bounds else ''}{', '.join(bounds)}"


BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤"}


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
