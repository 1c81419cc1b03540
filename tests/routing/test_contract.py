"""Declared schemas: what they let pass, what they stop, and what they say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sits.inner.errors import Code, Remedy, SitsError
from sits.resources.kinds import Metadata, Model, ModelSpec
from sits.routing.contract import Contract

TURNS = {
    "type": "object",
    "required": ["messages"],
    "properties": {
        "messages": {
            "type": "array",
            "items": {"type": "object", "properties": {"content": {"type": "string", "maxLength": 4}}},
        },
        "temperature": {"type": "number", "maximum": 1},
    },
}
REQUESTS: list[Any] = [
    pytest.param(b'{"messages": []}', None, id="what fits passes"),
    pytest.param('{"messages": [{"content": "中文四字"}]}'.encode(), None, id="characters are counted, not bytes"),
    pytest.param(b'{"messages": [], "other": 1}', None, id="unknown fields pass unless the schema forbids them"),
    pytest.param(b"{}", "body", id="a missing field is a fault of the body"),
    pytest.param(b'{"messages": [], "temperature": 2}', "temperature", id="the path of a field"),
    pytest.param('{"messages": [{}, {"content": "中文五个字"}]}'.encode(), "messages.1.content", id="the path into a list"),
    pytest.param(b"[]", "body", id="another type"),
    pytest.param(b"{", "body", id="no JSON"),
]


@pytest.mark.parametrize(("body", "param"), REQUESTS)
def test_a_request_is_held_against_the_input_schema(body: bytes, param: str | None) -> None:
    contract = Contract("m", TURNS, None)
    contract.check_answer(body)  # No output schema: every answer passes.
    if param is None:
        contract.check_request(body)
        return
    with pytest.raises(SitsError) as caught:
        contract.check_request(body)
    error = caught.value
    assert (error.code, error.status, error.param) == (Code.INVALID_REQUEST, 400, param)
    assert error.message.startswith(f"m does not take this request: {param}: ")


@pytest.mark.parametrize(("body", "param"), REQUESTS)
def test_an_answer_that_breaks_the_output_schema_is_the_models_fault(body: bytes, param: str | None) -> None:
    contract = Contract("m", None, TURNS)
    contract.check_request(body)
    if param is None:
        contract.check_answer(body)
        return
    with pytest.raises(SitsError) as caught:
        contract.check_answer(body)
    error = caught.value
    assert (error.code, error.status, error.remedy) == (Code.UPSTREAM_BROKEN, 502, Remedy.TRY_ELSEWHERE)
    assert error.message.startswith(f"the answer of m breaks its declared output schema: {param}: ")


@pytest.mark.parametrize(("field", "schema"), [("inputSchema", {"type": "nonsense"}), ("outputSchema", {"required": 1})])
def test_what_is_no_schema_is_refused_by_name(field: str, schema: dict[str, Any]) -> None:
    schemas = (schema, None) if field == "inputSchema" else (None, schema)
    with pytest.raises(SitsError) as caught:
        Contract("m", *schemas)
    assert (caught.value.code, caught.value.param) == (Code.REGISTRATION_REFUSED, field)
    assert caught.value.message.startswith(f"{field} of m is not a valid JSON Schema: ")


def test_a_model_without_schemas_has_no_contract() -> None:
    assert Contract.of(Model(Metadata("m"), ModelSpec("openai", "http://x"))) is None
    assert Contract.of(Model(Metadata("m"), ModelSpec("openai", "http://x", input_schema=TURNS))) is not None


SAID = "what the client has said"
VIOLATIONS: list[Any] = [
    pytest.param({"maxProperties": 0}, "body: it breaks maxProperties 0", id="the whole body"),
    pytest.param({"properties": {"消息": {"maxItems": 0}}}, "消息: it breaks maxItems 0", id="a name in Chinese"),
    pytest.param({"required": ["模型"]}, 'body: it breaks required "模型"', id="what is missing, in Chinese"),
    pytest.param({"properties": {"消息": {"items": {"type": "integer"}}}}, '消息.0: it breaks type ["integer"]', id="in a list"),
    pytest.param({"properties": {"消息": {"items": {"enum": ["中"]}}}}, '消息.0: it breaks enum ["中"]', id="what is wanted"),
    pytest.param({"properties": {"消息": {"const": 1.5}}}, "消息: it breaks const 1.5", id="a constant"),
    pytest.param({"properties": {"消息": False}}, "消息: nothing is allowed there", id="nothing"),
    pytest.param({"additionalProperties": False}, "body: it breaks additionalProperties", id="another name"),
    pytest.param({"properties": {"a": {}}, "additionalProperties": False}, "body: it breaks additionalProperties", id="beside"),
    pytest.param({"unevaluatedProperties": False}, "body: it breaks unevaluatedProperties", id="a name nobody knows"),
    pytest.param({"propertyNames": {"minLength": 3}}, "body: it breaks propertyNames", id="a name as it must not be"),
    pytest.param({"not": {"type": "object"}}, "body: it breaks not", id="what it must not be"),
    pytest.param({"properties": {"消息": {"anyOf": [{"type": "null"}]}}}, "消息: it breaks anyOf", id="alternatives"),
    pytest.param({"properties": {"消息": {"contains": {"type": "null"}}}}, "消息: it breaks contains", id="what is not in it"),
    pytest.param({"properties": {"消息": {"items": {"pattern": "^x"}}}}, '消息.0: it breaks pattern "^x"', id="a pattern"),
    pytest.param(
        {"properties": {"消息": {"items": {"enum": ["长" * 500]}}}},
        f'消息.0: it breaks enum ["{"长" * 77}…',
        id="much that is wanted",
    ),
]


@pytest.mark.parametrize(("schema", "told"), VIOLATIONS)
def test_a_violation_is_told_by_place_keyword_and_wish_and_nothing_of_what_stands_there(
    schema: dict[str, Any], told: str
) -> None:
    body = json.dumps({"消息": [SAID * 10]}).encode()
    contract = Contract("m", schema, schema)
    with pytest.raises(SitsError) as asked:
        contract.check_request(body)
    with pytest.raises(SitsError) as answered:
        contract.check_answer(body)
    assert asked.value.message == f"m does not take this request: {told}"
    assert answered.value.message == f"the answer of m breaks its declared output schema: {told}"


def test_a_place_of_long_names_is_told_in_short() -> None:
    schema = {
        "$defs": {"all": {"type": ["object", "null"], "additionalProperties": {"$ref": "#/$defs/all"}}},
        "$ref": "#/$defs/all",
    }
    with pytest.raises(SitsError) as caught:
        Contract("m", schema, None).check_request(json.dumps({"名" * 5000: {"字" * 5000: {"x" * 5000: 1}}}).encode())
    place = f"{'名' * 39}….{'字' * 39}….{'x' * 17}…"
    assert caught.value.param == place
    assert caught.value.message == f'm does not take this request: {place}: it breaks type ["null","object"]'


LISTS = {"$defs": {"l": {"type": "array", "items": {"$ref": "#/$defs/l"}}}, "$ref": "#/$defs/l"}
SMALL = "it breaks the schema; under one with alternatives, places are told in small bodies only"


@pytest.mark.parametrize("body", [b'{"a":' + b"[" * 5000, b"[" * 5000 + b"]" * 5000], ids=["cut", "whole"])
def test_what_is_nested_too_deeply_breaks_the_contract(body: bytes) -> None:
    contract = Contract("m", LISTS, LISTS)
    with pytest.raises(SitsError) as asked:
        contract.check_request(body)
    with pytest.raises(SitsError) as answered:
        contract.check_answer(body)
    assert (asked.value.code, asked.value.param) == (Code.INVALID_REQUEST, "body")
    assert (answered.value.code, answered.value.remedy) == (Code.UPSTREAM_BROKEN, Remedy.TRY_ELSEWHERE)
    for error in (asked.value, answered.value):
        assert error.message.endswith(": body: it is nested too deeply")


@pytest.mark.parametrize(
    ("schema", "told"),
    [
        pytest.param({"items": {"type": "string"}}, '0: it breaks type ["string"]', id="one is enough"),
        pytest.param(
            {"anyOf": [{"items": {"type": "string"}}, {"items": {"type": "null"}}]}, f"body: {SMALL}", id="alternatives"
        ),
    ],
)
def test_a_body_of_nothing_but_violations_is_given_up_at_the_first(schema: dict[str, Any], told: str) -> None:
    # Each of them written down, these would be gigabytes, and a minute of the event loop.
    with pytest.raises(SitsError) as caught:
        Contract("m", schema, None).check_request(b"[" + b"1," * 1_000_000 + b"1]")
    assert caught.value.message == f"m does not take this request: {told}"


def test_places_in_alternatives_are_told_in_bodies_that_are_not_nested_deeply() -> None:
    either = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"$ref": "#/$defs/l"}}]}
    contract = Contract("m", {"$defs": {"l": either}, "properties": {"a": {"$ref": "#/$defs/l"}}}, None)
    for depth, told in ((40, "a: it breaks anyOf"), (900, f"body: {SMALL}")):
        with pytest.raises(SitsError) as caught:
            contract.check_request(b'{"a":' + b"[" * depth + b"1" + b"]" * depth + b"}")
        assert caught.value.message == f"m does not take this request: {told}"
