from __future__ import annotations

from typing import Any

import pytest

from sits.dialects.tool_calls import CallOrder
from sits.inner.event import ToolCall

T = ToolCall


@pytest.mark.parametrize(
    ("pieces", "events"),
    [
        pytest.param(
            [("a", 0, "f", '{"x"'), (None, 0, None, ":1}"), ("b", 1, "g", ""), (None, 1, None, "{}")],
            [T(0, "a", "f", '{"x"'), T(0, arguments=":1}"), T(1, "b", "g"), T(1, arguments="{}")],
            id="as OpenAI does",
        ),
        pytest.param(
            [("a", 0, "f", ""), ("b", 0, "g", "{"), ("a", 0, None, "1"), ("b", 0, None, "}")],
            [T(0, "a", "f"), T(1, "b", "g", "{"), T(0, arguments="1"), T(1, arguments="}")],
            id="every call with index 0 but its own id",
        ),
        pytest.param(
            [("a", None, "f", "{"), (None, None, None, "}"), ("b", None, "g", "{}")],
            [T(0, "a", "f", "{"), T(0, arguments="}"), T(1, "b", "g", "{}")],
            id="no index",
        ),
        pytest.param(
            [("a", 3, "f", "1"), ("b", 7, "g", "2")], [T(0, "a", "f", "1"), T(1, "b", "g", "2")], id="indices with holes"
        ),
        pytest.param(
            [("a", 1, "f", "1"), ("b", 0, "g", "2")], [T(0, "a", "f", "1"), T(1, "b", "g", "2")], id="indices out of order"
        ),
        pytest.param(
            [("a", 0, "f", "{"), ("a", 0, "f", "}"), ("a", 0, "f", "")],
            [T(0, "a", "f", "{"), T(0, arguments="}")],
            id="id and name again with each piece",
        ),
        pytest.param(
            [("", 0, "f", '{"a":1}'), ("", 0, "f", '{"a":2}')],
            [T(0, "call_s_0_0", "f", '{"a":1}'), T(1, "call_s_0_1", "f", '{"a":2}')],
            id="no ids, complete calls",
        ),
        pytest.param(
            [(None, 0, "f", '{"a"'), (None, 0, "f", ":1}")],
            [T(0, "call_s_0_0", "f", '{"a"'), T(0, arguments=":1}")],
            id="no ids, the name again",
        ),
        pytest.param(
            [("a", 0, None, None), (None, 0, "f", "{"), (None, 0, None, "}")],
            [T(0, "a", "f", "{"), T(0, arguments="}")],
            id="the name comes after the id",
        ),
        pytest.param([("a", 0, "f", {"x": "中"})], [T(0, "a", "f", '{"x": "中"}')], id="arguments as an object"),
        pytest.param([(7, "0", "f", "{}")], [T(0, "call_s_0_0", "f", "{}")], id="id and index of the wrong types"),
    ],
)
def test_pieces_find_their_call(pieces: list[tuple[Any, Any, Any, Any]], events: list[ToolCall]) -> None:
    order = CallOrder(0, "s")
    assert [event for piece in pieces if (event := order.place(*piece)) is not None] == events
