from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.dialects.patch import patch

KEYS = st.sampled_from(["model", "stream_options", "include_usage", "messages", "metadata", "x", "模型", 'quo"te', "back\\slash"])
TEXTS = st.text(max_size=8).map(lambda text: text.encode("utf-8", "replace").decode()) | st.sampled_from(
    ['"model"', '"model":"x"']
)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | TEXTS, inner, max_size=3),
    max_leaves=12,
)


def expected(fields: dict[str, Any], model: str | None, ask_usage: bool) -> dict[str, Any]:
    fields = dict(fields)
    if model is not None:
        fields["model"] = model
    if ask_usage:
        fields["stream_options"] = {**(fields.get("stream_options") or {}), "include_usage": True}
    return fields


@settings(max_examples=200)
@given(
    fields=st.dictionaries(KEYS.filter(lambda key: key != "stream_options") | TEXTS, VALUES, max_size=6),
    options=st.none() | st.dictionaries(KEYS, VALUES, max_size=3),
    model=st.none() | TEXTS,
    ask_usage=st.booleans(),
    ascii_only=st.booleans(),
    indent=st.none() | st.just(2),
)
def test_only_the_top_level_model_and_wish_change(
    fields: dict[str, Any], options: Any, model: str | None, ask_usage: bool, ascii_only: bool, indent: int | None
) -> None:
    fields = {**fields, "model": "before", "stream_options": options}
    body = json.dumps(fields, ensure_ascii=ascii_only, indent=indent).encode()
    assert json.loads(patch(body, model, ask_usage)) == expected(fields, model, ask_usage)


@pytest.mark.parametrize(
    ("body", "out"),
    [
        pytest.param(
            b'{"metadata":{"model":"a"},"model":"b","tools":[{"model": {}}]}',
            b'{"metadata":{"model":"a"},"model":"NEW","tools":[{"model": {}}]}',
            id="nested keys",
        ),
        pytest.param(b'{"x":"\\"model\\":\\"a\\"","model":"b"}', b'{"x":"\\"model\\":\\"a\\"","model":"NEW"}', id="in text"),
        pytest.param(b'{"model":"a","model":"b"}', b'{"model":"NEW"}', id="repeated key"),
        pytest.param(b'{"mod\\u0065l":"a"}', b'{"model":"NEW"}', id="key spelled with an escape"),
        pytest.param(b'{"model":"a\\"}","x":1}', b'{"model":"NEW","x":1}', id="value with an escaped quote"),
        pytest.param(
            b'{"model":"a","messages": [ {"content" : "\\u4f60\\ud83c\\udf0f", "n": 1.50e+02} ]}',
            b'{"model":"NEW","messages":[ {"content" : "\\u4f60\\ud83c\\udf0f", "n": 1.50e+02} ]}',
            id="values keep their bytes",
        ),
    ],
)
def test_values_stay_as_they_were_written(body: bytes, out: bytes) -> None:
    assert patch(body, "NEW", False) == out


@pytest.mark.parametrize(
    ("options", "out"),
    [
        pytest.param(b"", b'{"model":"a","stream_options":{"include_usage":true}}', id="absent"),
        pytest.param(b',"stream_options":null', b'{"model":"a","stream_options":{"include_usage":true}}', id="null"),
        pytest.param(
            b',"stream_options":{"include_usage": false, "include_obfuscation":  false}',
            b'{"model":"a","stream_options":{"include_usage":true,"include_obfuscation":false}}',
            id="other options stay",
        ),
    ],
)
def test_usage_is_asked_for_beside_other_options(options: bytes, out: bytes) -> None:
    assert patch(b'{"model":"a"' + options + b"}", None, True) == out


def test_a_body_that_needs_no_change_is_the_same_object() -> None:
    body = b' { "model" : "a" } '
    assert patch(body, None, False) is body
