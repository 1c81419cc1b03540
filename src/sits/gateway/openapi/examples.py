"""Requests and answers as they really go over the wire."""

from __future__ import annotations

from typing import Any

Value = dict[str, Any]

_TURNS = [{"role": "user", "content": "Say hello in Chinese."}]
_USAGE = {"prompt_tokens": 12, "completion_tokens": 3, "total_tokens": 15}

CHAT: Value = {"model": "default", "messages": _TURNS, "max_tokens": 32}
CHAT_ANSWER: Value = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1767225600, "model": "default",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "你好！"}, "logprobs": None, "finish_reason": "stop"}],
    "usage": _USAGE,
}  # fmt: skip
CHAT_EVENT = {
    "data": '{"id":"chatcmpl-1","object":"chat.completion.chunk","created":1767225600,"model":"default",'
    '"choices":[{"index":0,"delta":{"content":"你好！"},"finish_reason":null}]}'
}
COMPLETION: Value = {"model": "default", "prompt": "The capital of France is", "max_tokens": 4}
COMPLETION_ANSWER: Value = {
    "id": "cmpl-1", "object": "text_completion", "created": 1767225600, "model": "default",
    "choices": [{"index": 0, "text": " Paris.", "logprobs": None, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7},
}  # fmt: skip
COMPLETION_EVENT = {
    "data": '{"id":"cmpl-1","object":"text_completion","created":1767225600,"model":"default",'
    '"choices":[{"index":0,"text":" Paris.","logprobs":null,"finish_reason":null}]}'
}
EMBEDDING: Value = {"model": "embeddings", "input": ["你好", "hello"]}
EMBEDDING_ANSWER: Value = {
    "object": "list", "model": "embeddings",
    "data": [
        {"object": "embedding", "index": 0, "embedding": [0.25, -0.5]},
        {"object": "embedding", "index": 1, "embedding": [0.5, -0.25]},
    ],
    "usage": {"prompt_tokens": 4, "total_tokens": 4},
}  # fmt: skip
RESPONSE: Value = {"model": "default", "input": "Say hello in Chinese."}
RESPONSE_ANSWER: Value = {
    "id": "resp_1", "object": "response", "created_at": 1767225600, "status": "completed", "model": "default",
    "output": [
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "你好！", "annotations": []}]},
    ],
    "usage": {"input_tokens": 12, "output_tokens": 3, "total_tokens": 15},
}  # fmt: skip
RESPONSE_EVENT = {
    "event": "response.output_text.delta",
    "data": '{"type":"response.output_text.delta","sequence_number":4,"item_id":"msg_1","output_index":0,'
    '"content_index":0,"delta":"你好！","logprobs":[]}',
}
MESSAGE: Value = {"model": "default", "max_tokens": 32, "messages": _TURNS}
MESSAGE_ANSWER: Value = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "default",
    "content": [{"type": "text", "text": "你好！"}], "stop_reason": "end_turn", "stop_sequence": None,
    "usage": {"input_tokens": 12, "output_tokens": 3},
}  # fmt: skip
MESSAGE_EVENT = {
    "event": "content_block_delta",
    "data": '{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"你好！"}}',
}
COUNT: Value = {"model": "default", "messages": _TURNS}
REGISTRATIONS: Value = {
    "flat": {"model_id": "qwen-7b", "engine": "vllm", "endpoint": "http://10.0.0.7:8000", "context_window": 32768},
    "resource": {
        "apiVersion": "sits/v1", "kind": "Model", "metadata": {"name": "qwen-7b", "labels": {"team": "search"}},
        "spec": {"engine": "vllm", "endpoint": "http://10.0.0.7:8000", "contextWindow": 32768},
    },
}  # fmt: skip
REGISTERED: Value = {"id": "qwen-7b", "object": "model", "registered": True, "version": 4, "hash": "9f86d081884c7d65"}
