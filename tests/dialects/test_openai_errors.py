from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sits.dialects import openai_errors
from sits.dialects.openai_upstream import VLLM
from sits.inner.errors import Code, Remedy, SitsError


def said(message: str, **fields: Any) -> bytes:
    return json.dumps({"error": {"message": message, **fields}}).encode()


@pytest.mark.parametrize(
    ("status", "body"),
    [
        pytest.param(
            400,
            said(
                "This model's maximum context length is 8192 tokens. However, your messages resulted in 9001 tokens.",
                code="context_length_exceeded",
            ),
            id="OpenAI",
        ),
        pytest.param(
            400,
            b'{"object":"error","message":"This model\'s maximum context length is 2048 tokens. You requested 3000 tokens",'
            b'"type":"BadRequestError","param":null,"code":400}',
            id="vLLM, bare",
        ),
        pytest.param(
            400,
            said("The decoder prompt (length 9000) is longer than the maximum model length of 2048.", code=400),
            id="vLLM, decoder",
        ),
        pytest.param(
            400,
            b'{"error":{"code":400,"message":"request (600 tokens) exceeds the available context size (512 tokens)",'
            b'"type":"exceed_context_size_error","n_prompt_tokens":600,"n_ctx":512}}',
            id="llama.cpp",
        ),
        pytest.param(
            422,
            b'{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 2048. Given: 3000 `inputs` tokens",'
            b'"error_type":"validation"}',
            id="TGI",
        ),
        pytest.param(400, said("The input (5000 tokens) is longer than the model's context length (4096 tokens)."), id="SGLang"),
        pytest.param(413, said("prompt is too long: 210000 tokens > 200000 maximum"), id="prompt is too long"),
    ],
)
def test_a_prompt_that_is_too_long_is_recognised(status: int, body: bytes) -> None:
    error = VLLM.explain(status, [], body)
    assert (error.code, error.remedy, error.status) == (Code.CONTEXT_TOO_LONG, Remedy.FIX_REQUEST, status)


@pytest.mark.parametrize(
    ("status", "body", "code", "kept", "message", "upstream_code", "param"),
    [
        pytest.param(
            400,
            said("bad n", code="invalid_value", param="n"),
            Code.UPSTREAM_REJECTED,
            400,
            "bad n",
            "invalid_value",
            "n",
            id="400",
        ),
        pytest.param(
            404,
            said("no model", code="model_not_found"),
            Code.UPSTREAM_REJECTED,
            404,
            "no model",
            "model_not_found",
            None,
            id="404",
        ),
        pytest.param(
            422,
            b'{"detail":[{"loc":["body","n"],"msg":"not an int"},{"msg":"odd"}]}',
            Code.UPSTREAM_REJECTED,
            422,
            "body.n: not an int; odd",
            None,
            None,
            id="FastAPI",
        ),
        pytest.param(
            401,
            said("Incorrect API key provided: sk-secret"),
            Code.UPSTREAM_AUTH,
            502,
            "The model server refused the gateway's credential (HTTP 401).",
            None,
            None,
            id="a key is never repeated",
        ),
        pytest.param(
            402,
            said("pay"),
            Code.UPSTREAM_AUTH,
            502,
            "The model server refused the gateway's credential (HTTP 402).",
            None,
            None,
            id="402",
        ),
        pytest.param(
            429,
            said("slow", code="rate_limit_exceeded"),
            Code.UPSTREAM_RATE_LIMITED,
            429,
            "slow",
            "rate_limit_exceeded",
            None,
            id="429",
        ),
        pytest.param(408, b"", Code.UPSTREAM_TIMEOUT, 504, "HTTP 408", None, None, id="408"),
        pytest.param(
            409, said("busy"), Code.UPSTREAM_ERROR, 502, "The model server answered with HTTP 409: busy", None, None, id="409"
        ),
        pytest.param(
            500,
            b"<html>oops</html>",
            Code.UPSTREAM_ERROR,
            502,
            "The model server answered with HTTP 500.",
            None,
            None,
            id="a page",
        ),
        pytest.param(
            503,
            b"loading model",
            Code.UPSTREAM_ERROR,
            502,
            "The model server answered with HTTP 503: loading model",
            None,
            None,
            id="text",
        ),
        pytest.param(302, b"", Code.UPSTREAM_ERROR, 502, "The model server answered with HTTP 302.", None, None, id="redirect"),
        pytest.param(
            400,
            b'[{"error":{"code":400,"message":"odd","status":"INVALID_ARGUMENT"}}]',
            Code.UPSTREAM_REJECTED,
            400,
            "odd",
            None,
            None,
            id="a list",
        ),
    ],
)
def test_an_error_answer_is_explained(
    status: int, body: bytes, code: Code, kept: int, message: str, upstream_code: str | None, param: str | None
) -> None:
    error = VLLM.explain(status, [], body)
    assert (error.code, error.status, error.message, error.upstream_code, error.param) == (
        code,
        kept,
        message,
        upstream_code,
        param,
    )


@pytest.mark.parametrize(
    ("value", "code"),
    [
        pytest.param({"message": "no", "type": "server_error"}, Code.UPSTREAM_ERROR, id="server"),
        pytest.param({"message": "no", "code": 400}, Code.UPSTREAM_REJECTED, id="status"),
        pytest.param({"message": "no", "type": "invalid_request_error"}, Code.UPSTREAM_REJECTED, id="type"),
        pytest.param({"message": "no", "code": "insufficient_quota"}, Code.UPSTREAM_RATE_LIMITED, id="quota"),
        pytest.param({"message": "no", "type": "authentication_error"}, Code.UPSTREAM_AUTH, id="key"),
        pytest.param({"message": "no", "code": "429"}, Code.UPSTREAM_RATE_LIMITED, id="status as text"),
        pytest.param("just text", Code.UPSTREAM_ERROR, id="text"),
        pytest.param({}, Code.UPSTREAM_ERROR, id="nothing"),
        pytest.param({"message": "maximum context length is 5"}, Code.CONTEXT_TOO_LONG, id="too long"),
    ],
)
def test_an_error_inside_an_answer_is_explained(value: Any, code: Code) -> None:
    assert openai_errors.fault(value).code is code


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        pytest.param([(b"retry-after", b"12")], 12.0, id="seconds"),
        pytest.param([(b"retry-after", b"0")], 0.0, id="now"),
        pytest.param([(b"retry-after-ms", b"1500"), (b"retry-after", b"9")], 1.5, id="milliseconds"),
        pytest.param(
            [(b"date", b"Sun, 06 Nov 1994 08:49:37 GMT"), (b"retry-after", b"Sun, 06 Nov 1994 08:50:07 GMT")], 30.0, id="date"
        ),
        pytest.param(
            [(b"date", b"Sun, 06 Nov 1994 08:49:37 GMT"), (b"retry-after", b"Sun, 06 Nov 1994 08:00:00 GMT")], 0.0, id="past date"
        ),
        pytest.param([(b"retry-after", b"Sun, 06 Nov 1994 08:50:07 GMT")], None, id="date without Date"),
        pytest.param([(b"retry-after", b"soon")], None, id="neither"),
        pytest.param([(b"retry-after", b"-1")], None, id="negative"),
        pytest.param([(b"retry-after", b"9" * 40)], None, id="absurd"),
        pytest.param([], None, id="absent"),
    ],
)
def test_retry_after_is_read_in_both_forms(headers: list[tuple[bytes, bytes]], seconds: float | None) -> None:
    assert VLLM.explain(429, headers, b"").retry_after == seconds


@given(status=st.integers(300, 599), body=st.binary(max_size=80), value=st.binary(max_size=30))
def test_any_error_answer_is_explained(status: int, body: bytes, value: bytes) -> None:
    error = VLLM.explain(status, [(b"retry-after", value), (b"date", value)], body)
    assert error.message
    assert (error.remedy is Remedy.FIX_REQUEST) is (400 <= status < 500 and status not in (401, 402, 403, 408, 409, 425, 429))


@pytest.mark.parametrize(
    ("error", "fields"),
    [
        pytest.param(
            SitsError(Code.MODEL_NOT_FOUND, "no 模型", param="model"),
            {
                "message": "no 模型",
                "type": "invalid_request_error",
                "param": "model",
                "code": "model_not_found",
                "sits_code": "model_not_found",
            },
            id="not found",
        ),
        pytest.param(
            SitsError(Code.UPSTREAM_REJECTED, "no", status=422, upstream_code="bad_n"),
            {"message": "no", "type": "invalid_request_error", "param": None, "code": "bad_n", "sits_code": "upstream_rejected"},
            id="the provider's code",
        ),
        pytest.param(
            SitsError(Code.RATE_LIMITED, "slow"),
            {"message": "slow", "type": "rate_limit_error", "param": None, "code": "rate_limited", "sits_code": "rate_limited"},
            id="limit",
        ),
        pytest.param(
            SitsError(Code.UNAUTHENTICATED, "who?"),
            {
                "message": "who?",
                "type": "authentication_error",
                "param": None,
                "code": "unauthenticated",
                "sits_code": "unauthenticated",
            },
            id="key",
        ),
        pytest.param(
            SitsError(Code.FORBIDDEN, "no"),
            {"message": "no", "type": "permission_error", "param": None, "code": "forbidden", "sits_code": "forbidden"},
            id="forbidden",
        ),
        pytest.param(
            SitsError(Code.UPSTREAM_TIMEOUT, "late"),
            {
                "message": "late",
                "type": "server_error",
                "param": None,
                "code": "upstream_timeout",
                "sits_code": "upstream_timeout",
            },
            id="server",
        ),
    ],
)
def test_an_error_is_written_as_openai_writes_it(error: SitsError, fields: dict[str, Any]) -> None:
    expected = {"error": {**fields, "request_id": "req-1"}}
    assert json.loads(openai_errors.body(error, "req-1")) == expected
    event = openai_errors.event(error, "req-1")
    assert event.startswith(b"data: ")
    assert event.endswith(b"\n\n")
    assert json.loads(event[6:]) == expected
