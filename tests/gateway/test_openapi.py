"""The OpenAPI document says what the gateway does: no more, no less."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import json
import os
import pathlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import jsonschema_rs
import pytest
import schemathesis
from gateway_process import Sits
from gateway_rig import Gateway, inside_loop, model, settings
from gateway_wires import WIRES

from sits import dialects
from sits.engines.scripted import AGAIN, READ, Received, ScriptedServer, answer
from sits.gateway.facts import ADAPTER, REGION, SESSION
from sits.gateway.grounding import DOMAIN as CACHED_DOMAIN
from sits.gateway.grounding import SOURCES
from sits.gateway.grounding import TIME as CACHED_TIME
from sits.gateway.intent_classifier import HEADER as DOMAIN
from sits.gateway.openapi import document, refusals
from sits.gateway.openapi.asks import PASSED
from sits.gateway.openapi.registration import snake
from sits.gateway.registration import camel, model_of
from sits.gateway.service import OPERATIONS
from sits.inner.ask import Operation
from sits.inner.errors import CODES, Code, SitsError
from sits.resilience.callback import FIELD as CALLBACK
from sits.resilience.qos.classes import HEADER as PRIORITY
from sits.resilience.qos.deadline import HEADER as TIMEOUT
from sits.resources.kinds import ModelSpec
from sits.routing.context.stages import HEADER as SERVICE
from sits.routing.semantics import HEADERS as GROUNDS

DOCUMENT = document()


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in DOCUMENT["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def found(value: dict[str, Any]) -> dict[str, Any]:
    """What a reference refers to."""
    while "$ref" in value:
        held: Any = DOCUMENT
        for step in value["$ref"].removeprefix("#/").split("/"):
            held = held[step]
        value = held
    return value


def validator(schema: Mapping[str, Any]) -> Any:
    return jsonschema_rs.validator_for({**schema, "components": DOCUMENT["components"]})


def test_the_document_is_valid_openapi_3_1() -> None:
    schemathesis.openapi.from_dict(DOCUMENT).validate()


@inside_loop
async def test_every_page_and_operation_is_in_the_document_and_nothing_else_is(tmp_path: pathlib.Path) -> None:
    async with Gateway(tmp_path) as gateway:
        served = {(method, path, rights == "open") for method, path, rights in gateway.node._pages.rows()}
        assert (await gateway.ask("/openapi.json")).json == DOCUMENT
    served |= {("POST", path.decode(), False) for path in OPERATIONS}
    assert {(method, path, operation["security"] == []) for method, path, operation in operations()} == served


def test_operation_ids_are_unique_and_each_has_a_tag_that_is_declared() -> None:
    ids = [operation["operationId"] for _, _, operation in operations()]
    assert len(ids) == len(set(ids))
    tags = {tag["name"] for tag in DOCUMENT["tags"]}
    assert all(set(operation["tags"]) <= tags and operation["summary"] for _, _, operation in operations())


def test_every_operation_on_models_says_which_headers_routing_and_caches_go_by() -> None:
    read = {REGION, ADAPTER, SESSION, DOMAIN, SERVICE, *GROUNDS, SOURCES, CACHED_TIME, CACHED_DOMAIN, PRIORITY, TIMEOUT, CALLBACK}
    for path in READS:
        said = {header["name"].encode() for header in DOCUMENT["paths"][path]["post"]["parameters"] if header["in"] == "header"}
        assert read <= said, path


def test_every_code_comes_with_its_status_somewhere_or_it_is_said_why_not() -> None:
    sent = set()
    for _, _, operation in operations():
        for status, response in operation["responses"].items():
            for option in found(response)["content"].get("application/json", {}).get("schema", {}).get("allOf", ()):
                narrow = option.get("properties", {}).get("error", {}).get("properties", {}).get("sits_code", {})
                sent |= {(status, code) for code in narrow.get("enum", ())}
    assert {code for code in Code if (str(CODES[code].status), code.value) not in sent} == set(refusals.UNLISTED)


def examples() -> Iterator[tuple[str, Mapping[str, Any], Any]]:
    for method, path, operation in operations():
        held = {"asked": operation.get("requestBody", {}), **{s: found(r) for s, r in operation["responses"].items()}}
        for place, holder in held.items():
            for kind, media in holder.get("content", {}).items():
                values = (
                    [media["example"]] if "example" in media else [one["value"] for one in media.get("examples", {}).values()]
                )
                for number, value in enumerate(values):
                    yield f"{method} {path} {place} {kind} {number}", media["schema"], value


EXAMPLES = {name: (schema, value) for name, schema, value in examples()}


def test_every_operation_with_a_body_has_an_example() -> None:
    asked = {f"{method} {path} asked application/json 0" for method, path, op in operations() if "requestBody" in op}
    assert asked <= EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_fits_its_schema(name: str) -> None:
    schema, value = EXAMPLES[name]
    validator(schema).validate(value)


FLAT = {"model_id": "m", "engine": "vllm", "endpoint": "http://h:1"}
REGISTRATIONS: dict[str, tuple[Any, bool]] = {
    "flat": (FLAT, True),
    "flat, by name": ({"name": "m", "engine": "vllm"}, True),
    "flat, camel case": ({**FLAT, "contextWindow": 8, "deadlines": {"firstToken": 1, "total": 2.5}}, True),
    "flat, nested in snake case": ({**FLAT, "deadlines": {"first_token": 1}, "tls": {"server_name": "h"}}, True),
    "flat, other names": ({**FLAT, "model": "x", "domain_tags": ["法律"], "lora_adapters": ["a"], "latency_p95_ms": 9}, True),
    "flat, local": ({"model_id": "m", "engine": "local", "local": {"source": "file:a", "unload_after": 3}}, True),
    "flat, without a name": ({"engine": "vllm"}, False),
    "flat, without an engine": ({"model_id": "m"}, False),
    "flat, with an unknown field": ({**FLAT, "endpont": "x"}, False),
    "flat, with a wrong type": ({**FLAT, "context_window": "many"}, False),
    "flat, with labels that are no text": ({**FLAT, "labels": {"a": 3}}, False),
    "a resource": ({"kind": "Model", "metadata": {"name": "m"}, "spec": {"engine": "vllm"}}, True),
    "a resource in snake case": ({"kind": "Model", "metadata": {"name": "m"}, "spec": {"engine": "vllm", "api_key": "a"}}, False),
    "a resource of another kind": ({"kind": "Route", "metadata": {"name": "m"}, "spec": {"backends": [{"model": "a"}]}}, False),
    "a resource without a name": ({"kind": "Model", "metadata": {}, "spec": {"engine": "vllm"}}, False),
    "no object": ([], False),
}  # fmt: skip


@pytest.mark.parametrize("name", REGISTRATIONS)
def test_the_document_and_the_gateway_agree_on_a_registration(name: str) -> None:
    value, taken = REGISTRATIONS[name]
    try:
        model_of(json.dumps(value).encode())
        read = True
    except SitsError:
        read = False
    schema = DOCUMENT["components"]["schemas"]["ModelRegistration"]
    assert (read, validator(schema).is_valid(value)) == (taken, taken)


TWICE: dict[str, tuple[dict[str, Any], str]] = {
    "two spellings": ({"context_window": 1, "contextWindow": 2}, "context_window and contextWindow are the same field"),
    "two names": ({"model": "a", "upstream_model": "b"}, "model and upstream_model are the same field"),
    "two spellings, nested": ({"deadlines": {"first_token": 1, "firstToken": 2}}, "first_token and firstToken are the same"),
    "inside and outside": ({"promise": {"accuracy": 1}, "latency_p95_ms": 9}, "latency_p95_ms belongs into promise"),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_field_that_is_given_twice_is_refused_rather_than_dropped(name: str) -> None:
    more, said = TWICE[name]
    with pytest.raises(SitsError, match=said) as refused:
        model_of(json.dumps({**FLAT, **more}).encode())
    assert refused.value.code is Code.INVALID_REQUEST


def test_snake_case_is_the_way_back_of_camel_case() -> None:
    names = [*ModelSpec.__struct_fields__, "latency_p95_ms", "first_token", "library_sha256"]
    assert [snake(camel(name)) for name in names] == names


# Schemathesis against the running service.

SECRET = "sits-test-of-the-document"
KEY = {
    "apiVersion": "sits/v1",
    "kind": "Key",
    "metadata": {"name": "tester"},
    "spec": {"sha256": hashlib.sha256(SECRET.encode()).hexdigest(), "admin": True},
}
READS: dict[str, Operation] = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/embeddings": "embeddings",
    "/v1/responses": "responses",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
}
WIRE_OF = {wire.path: wire for (_, engine), wire in WIRES.items() if engine in ("openai", "anthropic", "ollama")}
COUNTED = b'{"input_tokens": 5}'


def serve(received: Received) -> bytes:
    """A model server as strict as the real ones: it reads the request, and answers whole or streamed as it was asked."""
    if received.method == "GET":
        return answer(200, b"{}")
    operation = READS.get(received.path)
    if operation is not None:
        client = dialects.client(operation)
        try:
            client.read(received.body)
        except SitsError as error:
            return answer(400, client.error(error, "upstream"), ("content-type", "application/json"))
    if operation == "count_tokens":
        return answer(200, COUNTED, ("content-type", "application/json"))
    wire = WIRE_OF[received.path]
    if json.loads(received.body).get("stream") is True:
        return b"".join(step for step in wire.streams("你", "好") if isinstance(step, bytes))
    return wire.answers("你好")


NEAR = (("near", "openai"), ("claude", "anthropic"))
EXISTING = {"x-sits-adapter": {"enum": ["sql"]}, "x-sits-callback": {"enum": ["https://hooks.example.com/sits/in"]}}
"""Headers that name what must be there."""
CALLED = settings(qos={"callbacks": ["https://hooks.example.com/"]})
REQUESTS = ("ChatRequest", "CompletionRequest", "EmbeddingRequest", "ResponseRequest", "MessageRequest", "CountRequest")


def tailored(name: str, messages: str, endpoint: str) -> dict[str, Any]:
    """The document with what exists in this configuration put where it says "some name" and "some address"."""
    tailored = without_passed(copy.deepcopy(DOCUMENT))
    for path in READS:
        for header in tailored["paths"][path]["post"]["parameters"]:
            header["schema"] = EXISTING.get(header["name"], header["schema"])
    schemas = tailored["components"]["schemas"]
    for request in REQUESTS:
        schemas[request]["properties"]["model"] = {"enum": [messages if request in REQUESTS[-2:] else name]}
    for registration in (schemas["FlatModel"], schemas["ModelSpec"]):
        registration["properties"]["endpoint"] = {"enum": [endpoint]}
        registration["required"] = [*registration["required"], "endpoint"]
    # Which answers are kept, a document cannot say; nor that the rules of a session say what its updates may be.
    schemas["ResponseRequest"]["properties"]["previous_response_id"] = {"type": "null"}
    rule = schemas["SessionCreation"]["properties"]["rules"]["items"]["properties"]["rule"]
    rule["enum"] = ["last-writer", "reject"]
    # What the older spelling of tools must hold depends on the newer.
    schemas["ChatRequest"]["properties"]["functions"] = {"type": "null"}
    # That a budget is less than `max_tokens`, JSON Schema has no words for.
    schemas["MessageRequest"]["properties"]["max_tokens"]["minimum"] = 2
    schemas["CountRequest"]["properties"]["max_tokens"]["anyOf"][0]["minimum"] = 2
    for request in ("MessageRequest", "CountRequest"):
        enabled, other, _ = schemas[request]["properties"]["thinking"]["anyOf"]
        enabled["properties"]["budget_tokens"]["maximum"] = 1
        other["properties"]["budget_tokens"]["anyOf"][0]["maximum"] = 1
    return tailored


def without_passed(value: Any) -> Any:
    """The document without what only some servers take: the one of these tests does not."""
    if isinstance(value, list):
        return [without_passed(item) for item in value if not (isinstance(item, dict) and item.get("description") == PASSED)]
    if isinstance(value, dict):
        return {key: without_passed(item) for key, item in value.items()}
    return value


CONFIG: dict[str, Any] = {
    "hooks": str(pathlib.Path(__file__).with_name("schemathesis_hooks.py")),
    "continue-on-failure": True,
    "generation": {"deterministic": True, "database": "none", "no-shrink": True},
    "auth": {"openapi": {"bearer": {"bearer": SECRET}, "apiKey": {"api_key": SECRET}}},
    # Whether a model is admitted depends on the world: its server, files and environment variables, other names.
    "operations": [{"include-operation-id": "registerModel", "checks": {"positive_data_acceptance": {"enabled": False}}}],
}


UNICODE = os.path.abspath(".hypothesis")
"""Where what was worked out of Unicode is kept between runs."""
LONGEST = 480.0
"""Seconds until an examination that hangs is ended; it takes some 30 on a machine of two cores that does nothing else."""


async def examined(folder: pathlib.Path, port: int, asked: Mapping[str, Any], *options: str) -> None:
    """Let schemathesis examine the service; every finding fails the test with its report."""
    (folder / "openapi.json").write_text(json.dumps(asked))
    config = folder / "schemathesis.toml"
    config.write_text(toml(CONFIG))
    command = [
        sys.executable,
        "-c",
        "from schemathesis.cli import schemathesis; schemathesis()",
        "--config-file",
        str(config),
        "run",
    ]
    options = (*options, "--url", f"http://127.0.0.1:{port}", "--no-color", str(folder / "openapi.json"))
    process = await asyncio.create_subprocess_exec(
        *command,
        *options,
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        # Little: its client reads all of it at each request.
        env={
            "COLUMNS": "160",
            "PATH": os.environ["PATH"],
            "HYPOTHESIS_STORAGE_DIRECTORY": UNICODE,
        },
    )
    try:
        async with asyncio.timeout(LONGEST):
            said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode == 0, said.decode()


def toml(config: Mapping[str, Any]) -> str:
    """JSON is TOML's inline syntax but for the colons."""

    def value(held: Any) -> str:
        if isinstance(held, Mapping):
            return "{" + ", ".join(f'"{key}" = {value(item)}' for key, item in held.items()) + "}"
        if isinstance(held, Sequence) and not isinstance(held, str):
            return "[" + ", ".join(map(value, held)) + "]"
        return json.dumps(held)

    return "".join(f'"{key}" = {value(held)}\n' for key, held in config.items())


@inside_loop
async def test_schemathesis_finds_nothing_where_servers_speak_the_dialects_of_their_clients(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, serve, AGAIN]) as server,
        Sits(tmp_path, *(model(name, server.url, engine, adapters=["sql"]) for name, engine in NEAR), KEY, CALLED) as sits,
    ):
        await examined(tmp_path, sits.port, tailored("near", "claude", server.url), "--max-examples", "15")
        assert server.faults == []


@inside_loop
async def test_schemathesis_finds_nothing_where_every_request_is_translated(tmp_path: pathlib.Path) -> None:
    async with (
        ScriptedServer([READ, serve, AGAIN]) as server,
        Sits(tmp_path, model("far", server.url, "ollama", adapters=["sql"]), KEY, CALLED) as sits,
    ):
        # A valid request may hold what a server of another family has no words for: that is refused as `unsupported`.
        options = (
            "--include-tag",
            "inference",
            "--phases",
            "examples,coverage,fuzzing",
            "--exclude-checks",
            "positive_data_acceptance",
            "--max-examples",
            "15",
        )
        asked = tailored("far", "far", server.url)
        for path in READS:
            # Who reads them is before the dialects, and was examined in the test above.
            asked["paths"][path]["post"]["parameters"] = []
        await examined(tmp_path, sits.port, asked, *options)
        assert server.faults == []
