"""The honest requests that hostile ones are made of: every endpoint, as clients call it."""

from __future__ import annotations

from typing import Any

from mutate import chunked, request

MODELS = ("small", "claude", "generator", "llama", "mixed")
TOOL = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
IMAGE = "data:image/png;base64,iVBORw0KGgo="
SCHEMA = {"name": "city", "schema": TOOL, "strict": True}


def bodies(model: str, upstream: str) -> dict[str, Any]:
    """A full body for every endpoint that takes one."""
    chat = {
        "model": model,
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "你好"}, {"type": "image_url", "image_url": {"url": IMAGE}}]},
            {
                "role": "assistant",
                "content": None,
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"北京"}'}}],
            },
            {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        ],
        "tools": [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": TOOL, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "response_format": {"type": "json_schema", "json_schema": SCHEMA},
        "temperature": 0.7,
        "top_p": 0.9,
        "max_tokens": 16,
        "n": 1,
        "seed": 7,
        "stop": ["\n"],
        "logprobs": True,
        "top_logprobs": 2,
        "logit_bias": {"50256": -100},
        "stream": True,
        "stream_options": {"include_usage": True},
        "user": "u",
    }
    messages = {
        "model": model,
        "max_tokens": 16,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "你好"},
                    {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
                ],
            },
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "...", "signature": "s"},
                    {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "北京"}},
                ],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "sunny", "is_error": False}]},
        ],
        "tools": [{"name": "weather", "description": "d", "input_schema": TOOL}],
        "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "temperature": 1.0,
        "top_k": 5,
        "stop_sequences": ["\n"],
        "metadata": {"user_id": "u"},
        "stream": False,
    }
    responses = {
        "model": model,
        "instructions": "Be brief.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "你好"}, {"type": "input_image", "image_url": IMAGE}]},
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "sunny"},
        ],
        "tools": [{"type": "function", "name": "weather", "parameters": TOOL, "strict": True}],
        "tool_choice": "auto",
        "text": {"format": {"type": "json_schema", **SCHEMA}},
        "reasoning": {"effort": "low"},
        "max_output_tokens": 16,
        "temperature": 0.5,
        "store": False,
        "stream": True,
    }
    return {
        "/v1/chat/completions": chat,
        "/v1/completions": {"model": model, "prompt": ["a", "b"], "max_tokens": 4, "echo": False, "logprobs": 2, "stream": True},
        "/v1/embeddings": {"model": model, "input": ["a", "你好"], "encoding_format": "float", "dimensions": 2},
        "/v1/responses": responses,
        "/v1/messages": messages,
        "/v1/messages/count_tokens": {key: messages[key] for key in ("model", "messages", "system", "tools")},
        "/v1/models/register": {
            "model_id": "extra",
            "engine": "openai",
            "endpoint": upstream,
            "capabilities": ["chat"],
            "domain_tags": ["x"],
            "latency_p95_ms": 100,
            "accuracy": 0.9,
            "input_schema": {"type": "object", "required": ["messages"]},
            "context_window": 4096,
            "cost": {"input_per_million": 1.0},
            "labels": {"team": "a"},
            "health_check_path": "/health",
        },
        "/v1/admin/reload": {},
    }


PAGES = (
    ("GET", "/v1/models"),
    ("GET", "/v1/models/small"),
    ("GET", "/v1/models/registered"),
    ("DELETE", "/v1/models/extra"),
    ("GET", "/v1/admin/status"),
    ("GET", "/v1/admin/records?limit=3"),
    ("GET", "/v1/admin/records/none"),
    ("POST", "/v1/admin/reload"),
    ("GET", "/metrics"),
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/openapi.json"),
    ("OPTIONS", "*"),
    ("HEAD", "/v1/models"),
)


def seeds(upstream: str) -> list[bytes]:
    out = [request(method, path) for method, path in PAGES]
    for model in MODELS:
        for path, body in bodies(model, upstream).items():
            out.append(request("POST", path, body, "Authorization: Bearer sk-x", "anthropic-version: 2023-06-01"))
            out.append(chunked("POST", path, body))
            plain = {key: value for key, value in body.items() if key in ("model", "messages", "prompt", "input", "max_tokens")}
            if "messages" in plain:
                plain["messages"] = [{"role": "user", "content": "hi"}]
            out.append(request("POST", path, plain, "Expect: 100-continue", "X-Request-Id: mine"))
            out.append(request("POST", path, {**plain, "stream": True}, "traceparent: 00-" + "a" * 32 + "-" + "b" * 16 + "-01"))
    return out
