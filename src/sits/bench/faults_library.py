"""The same cells asked by the official client libraries, `openai` and `anthropic`, as most users ask."""

from __future__ import annotations

from typing import Any

import anthropic
import openai

from sits.bench.faults_cells import TOKENS, Cell
from sits.bench.faults_judge import alias
from sits.bench.faults_wire import Said

_PROMPT = f"Please count to {TOKENS}"
_SECONDS = 20.0


class ClientLibrary:
    """The two clients on one gateway; close it when done. Called as a `faults_rig.Library`."""

    def __init__(self) -> None:
        self._clients: dict[int, tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic]] = {}

    async def __call__(self, port: int, cell: Cell) -> Said:
        """What a library makes of the answer. Of a plain error it has the status, else 0."""
        theirs, others = self._of(port)
        said = Said(error={}, wrong=[])
        turns: Any = [{"role": "user", "content": _PROMPT}]
        name, streamed, heads = alias(cell), cell.streamed, {"x-request-id": cell.name}
        answer: Any
        try:
            match cell.operation:
                case "chat":
                    answer = await theirs.chat.completions.create(
                        model=name, messages=turns, stream=streamed, extra_headers=heads
                    )
                case "completions":
                    answer = await theirs.completions.create(model=name, prompt=_PROMPT, stream=streamed, extra_headers=heads)
                case "responses":
                    answer = await theirs.responses.create(model=name, input=_PROMPT, stream=streamed, extra_headers=heads)
                case "messages":
                    answer = await others.messages.create(
                        model=name, messages=turns, max_tokens=4096, stream=streamed, extra_headers=heads
                    )
            if streamed:
                async with answer as events:
                    async for event in events:
                        _STREAMED[cell.operation](event, said)
            else:
                _WHOLE[cell.operation](answer, said)
        except (openai.APIStatusError, anthropic.APIStatusError) as error:
            said.end = "error"
            # In the middle of a stream it is the status of the stream.
            said.status = 0 if error.response.status_code == 200 else error.response.status_code
            _take(error.body, said)
        except openai.APIError as error:
            said.end = "error"
            _take(error.body, said)
        return said

    async def aclose(self) -> None:
        for theirs, others in self._clients.values():
            await theirs.close()
            await others.close()

    def _of(self, port: int) -> tuple[openai.AsyncOpenAI, anthropic.AsyncAnthropic]:
        if port not in self._clients:
            url = f"http://127.0.0.1:{port}"
            self._clients[port] = (
                openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=_SECONDS),
                anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0, timeout=_SECONDS),
            )
        return self._clients[port]


def _take(body: Any, said: Said) -> None:
    found = body if isinstance(body, dict) else {}
    inner = found.get("error", found)
    said.error = inner if isinstance(inner, dict) else {}
    said.code = str(said.error.get("sits_code") or "")


def _usage(usage: Any, said: Said) -> None:
    said.usage = usage.model_dump() if usage is not None else said.usage


def _whole_openai(answer: Any, said: Said) -> None:
    choice = answer.choices[0]
    said.text = choice.text if hasattr(choice, "text") else choice.message.content
    said.finish, said.model, said.end = choice.finish_reason, answer.model, "complete"
    _usage(answer.usage, said)


def _whole_response(answer: Any, said: Said) -> None:
    said.text, said.finish, said.model, said.end = answer.output_text, answer.status, answer.model, "complete"
    _usage(answer.usage, said)


def _whole_message(answer: Any, said: Said) -> None:
    said.text = "".join(block.text for block in answer.content if block.type == "text")
    said.finish, said.model, said.end = answer.stop_reason, answer.model, "complete"
    _usage(answer.usage, said)


def _streamed_openai(event: Any, said: Said) -> None:
    said.model = event.model
    for choice in event.choices:
        said.text += (choice.text if hasattr(choice, "text") else choice.delta.content) or ""
        if choice.finish_reason:
            # The library ends the loop at [DONE] and raises for an error: a finish is the end.
            said.finish, said.end = choice.finish_reason, "complete"


def _streamed_response(event: Any, said: Said) -> None:
    if event.type == "response.output_text.delta":
        said.text += event.delta
    elif event.type == "response.completed":
        _whole_response(event.response, said)
    elif event.type == "error":
        said.end = "error"
        _take(event.model_dump(), said)


def _streamed_message(event: Any, said: Said) -> None:
    if event.type == "message_start":
        said.model = event.message.model
    elif event.type == "content_block_delta":
        said.text += event.delta.text
    elif event.type == "message_delta":
        said.finish = event.delta.stop_reason
        said.usage = {"output_tokens": event.usage.output_tokens}
    elif event.type == "message_stop":
        said.end = "complete"


_WHOLE = {
    "chat": _whole_openai,
    "completions": _whole_openai,
    "responses": _whole_response,
    "messages": _whole_message,
}
_STREAMED = {
    "chat": _streamed_openai,
    "completions": _streamed_openai,
    "responses": _streamed_response,
    "messages": _streamed_message,
}
