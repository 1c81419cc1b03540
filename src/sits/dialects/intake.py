"""JSON that somebody else wrote, read in two tempers.

A client's request is read strictly: whatever is wrong with it becomes `invalid_request` that names the place. A model
server's answer is read leniently: what Python's own parser can make sense of (NaN, half of a surrogate pair) is taken.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeVar

import msgspec

from sits.dialects.halves import half
from sits.inner.errors import Code, SitsError

T = TypeVar("T")

encode = msgspec.json.Encoder().encode
_ANY = msgspec.json.Decoder()

_PLACE = re.compile(r"^(.*?)(?: - at `\$\.?(.*)`)?$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(.*)`$")
_EXPECTED = re.compile(r"^Expected `([^`]*)`, got `([^`]*)`$")
_RANGE = re.compile(r"^Expected `\w+` (<=|>=|<|>) (\S+)$")
_LENGTH = re.compile(r"^Expected `(\w+)` of length >= 1$")
LONGEST_SHOWN = 60
"""Characters of what a client or a model has written that a message shows."""
_LONGEST_REASON = 200
"""Characters of what msgspec says of a value: the value may be in it."""
_NAMES = {
    "str": "a string",
    "int": "an integer",
    "float": "a number",
    "bool": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}


def refuse(param: str | None, message: str) -> SitsError:
    """The error for a request that is not valid at `param`."""
    return SitsError(Code.INVALID_REQUEST, message, param=param)


def unsupported(param: str, message: str) -> SitsError:
    """The error for something valid that has no form where the request goes."""
    return SitsError(Code.UNSUPPORTED, message, param=param)


def read_object(body: bytes) -> dict[str, Any]:
    """A request body as a JSON object.

    Raises:
        SitsError: `invalid_request`: not JSON, not an object, nested too deeply, or with numbers out of range.
    """
    try:
        value = _ANY.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as exc:
        raise unreadable(exc, body) from exc
    if not isinstance(value, dict):
        raise refuse(None, f"The request body must be a JSON object, but it is {kind(value)}.")
    return value


def unreadable(exc: Exception, body: bytes) -> SitsError:
    """What a failed decode of `body`, a whole request, means to the client."""
    if isinstance(exc, RecursionError):
        return refuse(None, "The request body is nested too deeply.")
    if isinstance(exc, msgspec.ValidationError):
        return explain(exc)
    if isinstance(exc, msgspec.DecodeError | UnicodeDecodeError):
        reason = str(exc).removeprefix("JSON is malformed: ")
        return half(reason, body) or refuse(None, f"We could not parse the JSON body of your request: {reason}.")
    return refuse(None, f"We could not read the JSON body of your request: {exc}.")


def typed(value: Any, form: type[T], at: str = "") -> T:
    """`value` as `form`; `at` is where it stands in the body.

    Raises:
        SitsError: `invalid_request` with the exact place as `param`.
    """
    try:
        return msgspec.convert(value, form)
    except msgspec.ValidationError as exc:
        raise explain(exc, at) from exc


def explain(exc: msgspec.ValidationError, at: str = "") -> SitsError:
    """A type error of msgspec in words that help a client."""
    found = _PLACE.match(str(exc))
    reason, place = (found.group(1), found.group(2) or "") if found else (str(exc), "")
    param = join(at, place.replace("[...]", ""))
    if missing := _MISSING.match(reason):
        param = join(param, missing.group(1))
        return refuse(param, f"Missing required parameter: '{param}'.")
    where = f"'{param}'" if param else "the request body"
    if wrong := _EXPECTED.match(reason):
        wanted = " or ".join(_NAMES.get(name, name) for name in wrong.group(1).split(" | ") if name != "null")
        got = _NAMES.get(wrong.group(2), wrong.group(2))
        return refuse(param or None, f"Invalid type for {where}: expected {wanted or 'null'}, but got {got} instead.")
    if limit := _RANGE.match(reason):
        return refuse(param or None, f"Invalid value for {where}: it must be {limit.group(1)} {limit.group(2)}.")
    if _LENGTH.match(reason):
        return refuse(param or None, f"Invalid value for {where}: it must not be empty.")
    reason = reason if len(reason) <= _LONGEST_REASON else f"{reason[: _LONGEST_REASON - 1]}…"
    return refuse(param or None, f"Invalid value for {where}: {reason[:1].lower()}{reason[1:]}.")


def shown(value: Any) -> str:
    """What somebody has written, as a message names it: the beginning of a text, and of anything else what it is. Messages go to
    logs and records, which hold nothing of what is said."""
    text = value if isinstance(value, str) else kind(value)
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def join(at: str, place: str) -> str:
    """The path of `place` below `at`."""
    if not at or not place or place.startswith("["):
        return at + place
    return f"{at}.{place}"


def kind(value: Any) -> str:
    """What a JSON value is, with its article."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list | tuple):
        return "an array"
    return _NAMES.get(type(value).__name__, "a number")


def lenient(data: bytes) -> Any:
    """A model server's JSON.

    Raises:
        ValueError: it is not JSON even so.
    """
    try:
        return _ANY.decode(data)
    except (msgspec.MsgspecError, RecursionError):
        pass
    try:
        return _mended(json.loads(data))
    except RecursionError as exc:
        raise ValueError("nested too deeply") from exc


def figure(value: Any) -> float | None:
    """A number of a model server; None for what is none, or more than a float holds."""
    try:
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    except OverflowError:
        return None


def _mended(value: Any) -> Any:
    """`value` without halves of surrogate pairs, which UTF-8 cannot carry."""
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, list):
        return [_mended(item) for item in value]
    if isinstance(value, dict):
        return {_mended(key): _mended(item) for key, item in value.items()}
    return value
