"""What a client wants, in one form for every dialect.

An `Ask` is immutable and says nothing about any wire format. What a dialect met but does not know stays, untouched, in
`Ask.extra`; a dialect of the same family sends it on.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Operation = Literal["chat", "completions", "embeddings", "responses", "messages", "count_tokens"]
"""An endpoint of the gateway. `chat`, `responses` and `messages` all carry a conversation."""

Role = Literal["system", "user", "assistant", "tool"]


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    text: str


class ImagePart(msgspec.Struct, frozen=True, tag="image"):
    """An image by URL: `https://...` or `data:image/png;base64,...`; `detail` is OpenAI's low / high / auto."""

    url: str
    detail: str | None = None


class ReasoningPart(msgspec.Struct, frozen=True, tag="reasoning"):
    """Reasoning of an earlier turn; `signature` is the provider's proof that it made it."""

    text: str
    signature: str | None = None


class ToolUsePart(msgspec.Struct, frozen=True, tag="tool_use"):
    """A call that the assistant made; `arguments` is JSON text exactly as the model wrote it."""

    id: str
    name: str
    arguments: str


class ToolResultPart(msgspec.Struct, frozen=True, tag="tool_result"):
    """What a tool answered to the call `id`."""

    id: str
    content: tuple[TextPart | ImagePart, ...]
    is_error: bool = False


Part = TextPart | ImagePart | ReasoningPart | ToolUsePart | ToolResultPart


class Message(msgspec.Struct, frozen=True):
    role: Role
    parts: tuple[Part, ...]
    name: str | None = None
    extra: dict[str, Any] = {}


class Tool(msgspec.Struct, frozen=True):
    """A function that the model may call; `parameters` is its JSON Schema."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class ToolChoice(msgspec.Struct, frozen=True):
    """`auto`, `none`, `required`, or `named` with the tool's name."""

    mode: Literal["auto", "none", "required", "named"]
    name: str | None = None


class OutputFormat(msgspec.Struct, frozen=True):
    """`json_object`: any JSON; `json_schema`: JSON that fits `schema`."""

    kind: Literal["json_object", "json_schema"]
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class Sampling(msgspec.Struct, frozen=True):
    """How to draw tokens; None means that the client said nothing, and nothing is sent on."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    n: int | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    logprobs: bool = False
    top_logprobs: int | None = None


class Thinking(msgspec.Struct, frozen=True):
    """How much to reason: an effort by name, a budget in tokens, or both; `enabled=False` forbids it."""

    enabled: bool = True
    effort: str | None = None
    budget_tokens: int | None = None


class Ask(msgspec.Struct, frozen=True):
    """One request in the inner form.

    Conversations fill `messages`; completions fill `prompts` (text) and embeddings `inputs` (text or token ids).
    """

    operation: Operation
    model: str
    stream: bool = False
    messages: tuple[Message, ...] = ()
    prompts: tuple[str | tuple[int, ...], ...] = ()
    inputs: tuple[str | tuple[int, ...], ...] = ()
    sampling: Sampling = Sampling()
    tools: tuple[Tool, ...] = ()
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    output: OutputFormat | None = None
    thinking: Thinking | None = None
    dimensions: int | None = None
    encoding: Literal["float", "base64"] = "float"
    include_usage: bool = False
    user: str | None = None
    extra: dict[str, Any] = {}
    adapter: str = ""
    """The adapter that is to answer, where the server has it; most are asked by its name in place of the model's."""
    prefix: str = ""
    """Text that the answer begins with already: the model goes on from it, and says only what follows. For conversations; a
    completion has such a text at the end of its prompt."""

    def needs(self) -> frozenset[str]:
        """The capabilities without which this request would lose something: tools, json_schema, vision ..."""
        found = set()
        if self.tools:
            found.add("tools")
        if self.output is not None:
            found.add(self.output.kind)
        if self.sampling.logprobs:
            found.add("logprobs")
        for message in self.messages:
            for part in message.parts:
                if isinstance(part, ImagePart) or (
                    isinstance(part, ToolResultPart) and any(isinstance(p, ImagePart) for p in part.content)
                ):
                    found.add("vision")
        return frozenset(found)
