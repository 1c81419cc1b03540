"""Declared schemas: what they let pass, what they stop, and what they say."""

from __future__ import annotations

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
