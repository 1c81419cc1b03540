"""What a model's declared input and output schema mean for a request: checked before the attempt and after the answer.

A model without declared schemas has no contract object, and costs nothing.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sits.inner.errors import Code, Remedy, SitsError
from sits.resources.kinds import Model


class Contract:
    """The compiled schemas of one model (JSON Schema 2020-12 unless `$schema` says otherwise)."""

    __slots__ = ("_input", "_name", "_output")

    def __init__(self, name: str, input_schema: dict[str, Any] | None, output_schema: dict[str, Any] | None) -> None:
        """Compile both.

        Raises:
            SitsError: `registration_refused`: one of them is no valid JSON Schema; the message says where.
        """
        self._name = name
        self._input = _compile(name, "inputSchema", input_schema)
        self._output = _compile(name, "outputSchema", output_schema)

    @classmethod
    def of(cls, model: Model) -> Contract | None:
        spec = model.spec
        if spec.input_schema is None and spec.output_schema is None:
            return None
        return cls(model.metadata.name, spec.input_schema, spec.output_schema)

    def check_request(self, body: bytes) -> None:
        """Hold a request body against the input schema.

        Raises:
            SitsError: `invalid_request`, with the path of the first violation.
        """
        if self._input is not None:
            found = _first(self._input, body)
            if found is not None:
                path, message = found
                raise SitsError(Code.INVALID_REQUEST, f"{self._name} does not take this request: {path}: {message}", param=path)

    def check_answer(self, body: bytes) -> None:
        """Hold a whole answer against the output schema.

        Raises:
            SitsError: `upstream_broken`: the model broke its own contract, another one may be tried.
        """
        if self._output is not None:
            found = _first(self._output, body)
            if found is not None:
                path, message = found
                text = f"the answer of {self._name} breaks its declared output schema: {path}: {message}"
                raise SitsError(Code.UPSTREAM_BROKEN, text, remedy=Remedy.TRY_ELSEWHERE)


def _compile(name: str, field: str, schema: dict[str, Any] | None) -> Any:
    if schema is None:
        return None
    # 30 ms and 4 MiB to import, and few models declare a schema.
    import jsonschema_rs

    try:
        return jsonschema_rs.validator_for(schema)
    except (ValueError, jsonschema_rs.ValidationError) as exc:
        message = str(exc).partition("\n")[0]
        raise SitsError(
            Code.REGISTRATION_REFUSED, f"{field} of {name} is not a valid JSON Schema: {message}", param=field
        ) from exc


def _first(validator: Any, body: bytes) -> tuple[str, str] | None:
    try:
        value = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return "body", "not JSON"
    for error in validator.iter_errors(value):
        return ".".join(str(step) for step in error.instance_path) or "body", error.message
    return None
