"""What a model's declared input and output schema mean for a request: checked before the attempt and after the answer.

A model without declared schemas has no contract object, and costs nothing.

What is said of a violation is where it is, which keyword it breaks and what that wants: never what stands there. Prompts and
answers have no business in messages, which go to logs, records and traces.
"""

from __future__ import annotations

from typing import Any

import msgspec

from sits.inner.errors import Code, Remedy, SitsError
from sits.resources.kinds import Model

LONGEST_PATH, LONGEST_STEP, LONGEST_WISH = 100, 40, 80
"""Characters of a place, of one name in it, and of what a keyword wants, that are told."""
LARGEST_SOUGHT, MOST_SOUGHT = 4096, 100
"""Bytes of a body, and objects and lists in it, among which the place of a violation is sought under a schema of alternatives:
for that all that each of these holds against each item is written down, 50 us a piece, and again for what it is in. Larger bodies
would stop the event loop for seconds."""
_WISHES = (
    "limit", "types", "property", "options", "expected_value", "format", "pattern", "multiple_of", "content_encoding",
    "content_media_type",
)  # fmt: skip
"""What keywords say they want; all else that jsonschema-rs tells of a violation may be out of the body."""
_TOO_DEEP = "it is nested too deeply"


class Contract:
    """The compiled schemas of one model (JSON Schema 2020-12 unless `$schema` says otherwise)."""

    __slots__ = ("_input", "_name", "_output")

    def __init__(self, name: str, input_schema: dict[str, Any] | None, output_schema: dict[str, Any] | None) -> None:
        """Compile both.

        Raises:
            SitsError: `registration_refused`: one of them is no valid JSON Schema; the message says where.
        """
        self._name = name
        self._input = _Schema.of(name, "inputSchema", input_schema)
        self._output = _Schema.of(name, "outputSchema", output_schema)

    @classmethod
    def of(cls, model: Model) -> Contract | None:
        spec = model.spec
        if spec.input_schema is None and spec.output_schema is None:
            return None
        return cls(model.metadata.name, spec.input_schema, spec.output_schema)

    def check_request(self, body: bytes) -> None:
        """Hold a request body against the input schema.

        Raises:
            SitsError: `invalid_request`, with the path of a violation.
        """
        if self._input is not None:
            found = self._input.violation(body)
            if found is not None:
                path, message = found
                raise SitsError(Code.INVALID_REQUEST, f"{self._name} does not take this request: {path}: {message}", param=path)

    def check_answer(self, body: bytes) -> None:
        """Hold a whole answer against the output schema.

        Raises:
            SitsError: `upstream_broken`: the model broke its own contract, another one may be tried.
        """
        if self._output is not None:
            found = self._output.violation(body)
            if found is not None:
                path, message = found
                text = f"the answer of {self._name} breaks its declared output schema: {path}: {message}"
                raise SitsError(Code.UPSTREAM_BROKEN, text, remedy=Remedy.TRY_ELSEWHERE)


class _Schema:
    """One schema, compiled."""

    __slots__ = ("_alternatives", "_validator")

    def __init__(self, validator: Any, *, alternatives: bool) -> None:
        self._validator = validator
        self._alternatives = alternatives

    @classmethod
    def of(cls, name: str, field: str, schema: dict[str, Any] | None) -> _Schema | None:
        if schema is None:
            return None
        # 30 ms and 4 MiB to import, and few models declare a schema.
        import jsonschema_rs

        try:
            # Masked, a violation is not told with a copy of the body in it.
            validator = jsonschema_rs.validator_for(schema, mask="it")
        except (ValueError, jsonschema_rs.ValidationError) as exc:
            message = str(exc).partition("\n")[0]
            raise SitsError(
                Code.REGISTRATION_REFUSED, f"{field} of {name} is not a valid JSON Schema: {message}", param=field
            ) from exc
        text = msgspec.json.encode(schema)
        # What others declare, which it refers to, may have alternatives.
        return cls(validator, alternatives=any(word in text for word in (b'"anyOf"', b'"oneOf"', b"://", b'"$dynamicRef"')))

    def violation(self, body: bytes) -> tuple[str, str] | None:
        """Where the body breaks it, and how; None where it does not."""
        import jsonschema_rs

        try:
            value = msgspec.json.decode(body)
            if self._validator.is_valid(value):
                return None
            if self._alternatives and (len(body) > LARGEST_SOUGHT or body.count(b"{") + body.count(b"[") > MOST_SOUGHT):
                return "body", "it breaks the schema; under one with alternatives, places are told in small bodies only"
            self._validator.validate(value)
        except msgspec.DecodeError:
            return "body", "not JSON"
        except RecursionError:
            return "body", _TOO_DEEP
        except jsonschema_rs.ValidationError as error:
            return _path(error.instance_path), _broken(error)
        except ValueError:  # How it says that it would recurse too deeply.
            return "body", _TOO_DEEP
        return "body", "it breaks the schema"


def _path(steps: list[str | int]) -> str:
    """`messages.1.content`: names are as the body has them, so even they are told no further than it takes to find them."""
    return _clipped(".".join(_clipped(str(step), LONGEST_STEP) for step in steps[:LONGEST_PATH]), LONGEST_PATH) or "body"


def _broken(error: Any) -> str:
    """The keyword and what it wants: `it breaks maxLength 4`."""
    kind = error.kind
    keyword = kind.name
    if keyword == "falseSchema":
        last = error.schema_path[-1] if error.schema_path else ""
        return f"it breaks {last}" if last in ("additionalProperties", "unevaluatedProperties") else "nothing is allowed there"
    wish = next((getattr(kind, name) for name in _WISHES if hasattr(kind, name)), None)
    if wish is None:
        return f"it breaks {_clipped(keyword, LONGEST_WISH)}"
    said = msgspec.json.encode(wish, enc_hook=str).decode()
    return f"it breaks {keyword} {_clipped(said, LONGEST_WISH)}"


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
