"""Model servers that say one and the same answer, in every upstream dialect, and clients of every dialect that read it.

A server finds in the request, as it was written for it, where the answer has got to, and says the rest.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from sits import dialects
from sits.dialects.base import Identity, Prepared
from sits.dialects.collect import Answer
from sits.dialects.continued import Continued
from sits.dialects.continued_leg import Leg
from sits.inner.ask import Ask, Message, Operation, Sampling, TextPart
from sits.inner.event import Event, Finish, Reasoning, Text, ToolCall, Usage, Used

from .anthropic_wires import block, delta, end, events, line, lines, start, stop
from .anthropic_wires import text as text_delta
from .wires import chunk, sse, text_chunk

CLIENTS: tuple[Operation, ...] = ("chat", "completions", "responses", "messages")
PREFILLED = ("vllm", "sglang", "llamacpp", "local", "anthropic", "ollama", "tgi")
SERVERS = (*PREFILLED, "openai")
COMPLETING = ("vllm", "sglang", "llamacpp", "local", "ollama", "tgi", "openai")
PAIRS = [(client, server) for client in CLIENTS for server in (COMPLETING if client == "completions" else SERVERS)]
QUESTION = "Count, please. 请数数。"
CALL = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"q": "天气"}'}}


class Story(msgspec.Struct, frozen=True):
    """What a server says, in pieces that need not be words."""

    pieces: tuple[str, ...]
    thoughts: tuple[str, ...] = ()
    calls: int = 0
    echo: bool = False
    """It says the text that it was given over again."""
    usage: bool = True

    @property
    def text(self) -> str:
        return "".join(self.pieces)


def ask(operation: Operation = "chat", **changes: Any) -> Ask:
    said: dict[str, Any] = {"operation": operation, "model": "asked", "stream": True, "include_usage": True}
    if operation == "completions":
        said["prompts"] = (QUESTION,)
    else:
        said["messages"] = (Message("user", (TextPart(QUESTION),)),)
    return Ask(**{**said, **changes})


def given(prepared: Prepared) -> str:
    """The text so far that a request holds."""
    body = json.loads(prepared.body)
    if "messages" not in body:
        prompt: str = body.get("prompt", body.get("inputs"))
        assert prompt.startswith(QUESTION)
        return prompt.removeprefix(QUESTION)
    last = body["messages"][-1]
    return str(last["content"]) if last["role"] == "assistant" else ""


def rest(story: Story, so_far: str) -> list[str]:
    """The pieces that are left to say."""
    assert story.text.startswith(so_far), f"{so_far!r} is not how {story.text!r} begins"
    out, at = [], 0
    for piece in story.pieces:
        fresh = piece[max(0, len(so_far) - at) :]
        at += len(piece)
        if fresh:
            out.append(fresh)
    return [so_far[:7], so_far[7:], *out] if story.echo and len(so_far) >= 16 else out


def served(server: str, prepared: Prepared, story: Story) -> bytes:
    """The whole stream that the server answers with."""
    so_far = given(prepared)
    pieces = rest(story, so_far)
    if so_far:
        story = msgspec.structs.replace(story, thoughts=())
    used = {"prompt_tokens": 9, "completion_tokens": len(pieces) + len(story.thoughts) + story.calls}
    writers: dict[str, Callable[[list[str], Story, dict[str, int]], bytes]] = {"anthropic": _anthropic, "ollama": _ollama}
    if prepared.path in ("/v1/completions", "/api/generate", "/generate_stream"):
        writers = {"ollama": _generate, "tgi": _tgi}
        return writers.get(server, _completions)(pieces, story, used)
    return writers.get(server, _chat)(pieces, story, used)


def _last(story: Story, used: dict[str, int]) -> list[dict[str, Any]]:
    return [{**chunk(), "choices": [], "usage": used}] if story.usage else []


def _chat(pieces: list[str], story: Story, used: dict[str, int]) -> bytes:
    calls = [
        piece
        for at in range(story.calls)
        for piece in (
            {**CALL, "index": at, "id": f"call_{at}", "function": {"name": "look", "arguments": '{"q": '}},
            {"index": at, "function": {"arguments": '"天气"}'}},
        )
    ]
    return sse(
        chunk({"role": "assistant", "content": ""}),
        *(chunk({"reasoning_content": thought}) for thought in story.thoughts),
        *(chunk({"content": piece}) for piece in pieces),
        *(chunk({"tool_calls": [call]}) for call in calls),
        chunk({}, "tool_calls" if calls else "stop"),
        *_last(story, used),
    )


def _completions(pieces: list[str], story: Story, used: dict[str, int]) -> bytes:
    return sse(*map(text_chunk, pieces), text_chunk("", "stop"), *_last(story, used))


def _anthropic(pieces: list[str], story: Story, used: dict[str, int]) -> bytes:
    out = [start({"input_tokens": used["prompt_tokens"], "output_tokens": 1})]
    at = 0
    if story.thoughts:
        out.append(block(0, {"type": "thinking", "thinking": "", "signature": ""}))
        out += [delta(0, {"type": "thinking_delta", "thinking": thought}) for thought in story.thoughts]
        out += [delta(0, {"type": "signature_delta", "signature": "sealed"}), stop(0)]
        at = 1
    out += [block(at, {"type": "text", "text": ""}), *(text_delta(at, piece) for piece in pieces), stop(at)]
    for call in range(story.calls):
        here = at + 1 + call
        out.append(block(here, {"type": "tool_use", "id": f"call_{call}", "name": "look", "input": {}}))
        out += [delta(here, {"type": "input_json_delta", "partial_json": part}) for part in ('{"q": ', '"天气"}')]
        out.append(stop(here))
    return events(*out, *end("tool_use" if story.calls else "end_turn", {"output_tokens": used["completion_tokens"]}))


def _figures(story: Story, used: dict[str, int]) -> dict[str, int]:
    return {"prompt_eval_count": used["prompt_tokens"], "eval_count": used["completion_tokens"]} if story.usage else {}


def _ollama(pieces: list[str], story: Story, used: dict[str, int]) -> bytes:
    calls = [{"id": f"call_{at}", "function": {"name": "look", "arguments": {"q": "天气"}}} for at in range(story.calls)]
    return lines(
        *(line({"thinking": thought}) for thought in story.thoughts),
        *(line({"content": piece}) for piece in pieces),
        *(line({"tool_calls": [call]}) for call in calls),
        line({}, **{"done": True, "done_reason": "stop", **_figures(story, used)}),
    )


def _generate(pieces: list[str], story: Story, used: dict[str, int]) -> bytes:
    said = [{"model": "m", "response": piece, "done": False} for piece in pieces]
    return lines(*said, {"model": "m", "response": "", "done": True, "done_reason": "stop", **_figures(story, used)})


def _tgi(pieces: list[str], story: Story, used: dict[str, int]) -> bytes:
    tokens = [{"token": {"id": 1, "text": piece, "logprob": -0.1, "special": False}} for piece in pieces]
    counts = {"input_length": used["prompt_tokens"], "generated_tokens": used["completion_tokens"]} if story.usage else {}
    last = {
        "token": {"id": 2, "text": "</s>", "logprob": 0.0, "special": True},
        "generated_text": "".join(pieces),
        "details": {"finish_reason": "eos_token", **counts},
    }
    return sse(*tokens, last, done=False)


def event_ends(wire: bytes) -> list[int]:
    """Where the events of a stream end."""
    gap = b"\n\n" if wire.startswith((b"data:", b"event:")) else b"\n"
    return [at + len(gap) for at in range(len(wire)) if wire.startswith(gap, at)]


class Exchange:
    """A request under way, as a gateway would conduct it."""

    def __init__(self, asked: Ask) -> None:
        self.ask = asked
        self.client = dialects.client(asked.operation)
        self.continued = Continued(asked, self.client)
        self.legs: list[Leg] = []
        self.modes: list[str] = []
        self.sent: list[Prepared] = []
        self.out = b""

    def leg(self, server: str, *, prefill: bool | None = None) -> Leg:
        dialect = dialects.upstream(server)
        can = server != "openai" if prefill is None else prefill
        prepared, onset = self.continued.write(dialect, "their-model", prefill=can)
        identity = Identity("abc", f"served-by-{server}", 1_700_000_000)
        leg = self.continued.leg(dialect.decoder(self.ask), identity, onset, target=f"{server}-{len(self.legs) + 1}")
        self.legs.append(leg)
        self.modes.append(onset.mode)
        self.sent.append(prepared)
        return leg

    def run(self, server: str, story: Story, *, until: int | None = None, step: int = 10_000) -> Leg:
        """One target's leg, whose connection breaks after `until` bytes."""
        leg = self.leg(server)
        wire = served(server, self.sent[-1], story)[:until]
        for at in range(0, len(wire), step):
            self.out += leg.feed(wire[at : at + step])
            if leg.fault is not None:
                return leg
        if until is None or leg.finished:
            self.out += leg.close()
        return leg

    def read(self) -> Answer:
        """What the client reads; it must be a whole answer."""
        return Answer(read(self.ask.operation, self.out))

    def so_far(self) -> str:
        """The text in what has been given to the client."""
        return "".join(part for _, part in said(self.ask.operation, self.out))


def read(operation: Operation, wire: bytes) -> Sequence[Event]:
    if operation == "responses":
        value = [json.loads(row[6:]) for row in wire.split(b"\n") if row.startswith(b"data: ")]
        assert [each["sequence_number"] for each in value] == list(range(len(value)))
        return _response(value[-1]["response"])
    decoder = dialects.upstream("anthropic" if operation == "messages" else "vllm").decoder(ask(operation))
    found = decoder.feed(wire)
    assert getattr(decoder, "done", False), "no terminator"
    return found + decoder.close()


def _response(response: dict[str, Any]) -> list[Event]:
    assert response["status"] == "completed"
    out: list[Event] = []
    calls = 0
    for item in response["output"]:
        if item["type"] == "message":
            out += [Text(part["text"]) for part in item["content"]]
        elif item["type"] == "reasoning":
            out += [Reasoning(part["text"]) for part in item["content"]]
        else:
            out.append(ToolCall(calls, item["call_id"], item["name"], item["arguments"]))
            calls += 1
    used = response["usage"]
    out.append(Finish("tool_calls" if calls else "stop"))
    if used is not None:
        out.append(Used(Usage(used["input_tokens"], used["output_tokens"])))
    return out


def said(operation: Operation, wire: bytes) -> list[tuple[str, str]]:
    """Kind and text of every piece of text in a stream, complete or not."""
    out = []
    for row in wire.split(b"\n"):
        if not row.startswith(b"data: {"):
            continue
        value = json.loads(row[6:])
        match operation:
            case "chat" | "completions":
                for choice in value["choices"]:
                    out.append(("text", choice.get("text") or choice.get("delta", {}).get("content") or ""))
            case "responses":
                if value["type"] == "response.output_text.delta":
                    out.append(("text", value["delta"]))
            case "messages":
                if value.get("delta", {}).get("type") == "text_delta":
                    out.append(("text", value["delta"]["text"]))
    return out


def limited(asked: Ask, tokens: int) -> Ask:
    return msgspec.structs.replace(asked, sampling=Sampling(max_tokens=tokens))
