"""Text that UTF-8 cannot carry costs nothing that it is in."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.inner.errors import Code, SitsError
from sits.inner.utf8 import encoded, utf8
from sits.observe import trace_row
from sits.observe.access import AccessLines
from sits.observe.log import LineWriter
from sits.observe.metrics import Counter
from sits.observe.record import Attempt, Record, from_json, to_json
from sits.observe.redact import Redactor

ANY = st.text(st.characters(codec=None), max_size=8)
HALF = "甲\ud83d"
RECORD = Record("r-1", 1.0, "chat", requested=HALF, attempts=[Attempt("a", why=HALF)], filtered=[(HALF, HALF)])


@given(text=ANY)
def test_what_can_be_carried_stays_as_it_is_and_all_else_is_spelled_out(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        assert utf8(text) == text.encode("utf-8", "backslashreplace").decode()
    else:
        assert utf8(text) is text or utf8(text) == text


@given(
    value=st.recursive(ANY | st.integers(-9, 9) | st.none(), lambda one: st.lists(one) | st.dictionaries(ANY, one), max_leaves=6)
)
def test_every_value_can_be_written(value: Any) -> None:
    def spelled(one: Any) -> Any:
        if isinstance(one, str):
            return utf8(one)
        if isinstance(one, list):
            return [spelled(item) for item in one]
        return {utf8(name): spelled(item) for name, item in one.items()} if isinstance(one, dict) else one

    assert json.loads(encoded(value)) == spelled(value)


def test_an_error_can_be_told_whatever_it_was_made_of() -> None:
    error = SitsError(Code.UNSUPPORTED, HALF, param=HALF, upstream_code=HALF)
    assert (error.message, str(error), error.param, error.upstream_code) == ("甲\\ud83d",) * 4


def test_a_record_is_written_and_read_again() -> None:
    found = from_json(to_json(RECORD))
    assert (found.requested, found.attempts[0].why, found.filtered) == ("甲\\ud83d", "甲\\ud83d", [("甲\\ud83d", "甲\\ud83d")])


def test_a_row_of_a_trace_is_written() -> None:
    row = trace_row.Row(RECORD, trace_row.Asked("chat", 0.5, 1.0, key=HALF))
    assert msgspec.json.decode(trace_row.encode(row), type=trace_row.Row).asked.key == "甲\\ud83d"


@pytest.mark.parametrize("item", [RECORD, {"msg": HALF, "who": object}], ids=["access line", "log line"])
def test_a_line_of_the_log_is_written(item: Any) -> None:
    lines: list[bytes] = []
    dropped = Counter()
    writer = LineWriter(lines.append, Redactor(), dropped)
    writer.put(item)
    writer.flush()
    assert (dropped.value, "甲\\\\ud83d".encode() in lines[0]) == (0, True)
    assert json.loads(AccessLines(Redactor()).line(RECORD))["requested"] == "甲\\ud83d"
