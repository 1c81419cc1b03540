"""What the data plane takes, operation by operation.

Types, bounds and required fields come from the very forms that the dialects read requests with; what those check step by
step (messages by role, parts by type) is said here. Fields that are not named pass through.
"""

from __future__ import annotations

from sits.dialects import anthropic_client, openai_chat, openai_completions, openai_embeddings, responses_client
from sits.dialects import anthropic_parts as turns
from sits.dialects import openai_messages as chat_messages
from sits.dialects import responses_items as items
from sits.gateway.openapi.shapes import (
    BOOLEAN,
    FILLED,
    NULL,
    OBJECT,
    STRING,
    Schema,
    const,
    either,
    form,
    listed,
    nullable,
    one_of,
    other_than,
    record,
    ref,
    said,
)

MODEL = said(FILLED, "The name of a model, a route or an alias.")
PASSED = "Passed on to servers of the same dialect; refused as `unsupported` where it would have to be translated."
NOT_STREAMED = {"enum": [False, None], "description": "Answers to this operation are not streamed."}
TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
TEXTS = either(
    STRING,
    listed(STRING, 1),
    listed(TOKEN_ID, 1),
    listed(listed(TOKEN_ID, 1), 1),
)
"""A text, several, token ids, or several lists of them."""


def needs_tools(choices: Schema, *places: str) -> Schema:
    """A choice of tools that forces a call needs tools to choose from."""
    given = [{"required": [place], "properties": {place: {"type": "array", "minItems": 1}}} for place in places]
    return {
        "if": {"required": ["tool_choice"], "properties": {"tool_choice": choices}},
        "then": {"anyOf": given},
    }


# Chat.

CHAT_FUNCTION = form(openai_chat._Function)
CHAT_PARTS = either(
    record({"type": const("text"), "text": STRING}),
    record({"type": const("image_url"), "image_url": either(form(chat_messages._Image), FILLED)}),
    record({"type": const("refusal"), "refusal": STRING}),
    said(record({"type": one_of(("input_audio", "file", "audio_url", "video_url"))}), PASSED),
)
_CONTENT = either(STRING, listed(ref("ChatPart")))
_FORCED = either(const("required"), record({"type": const("function")}))
_FORMAT = either(
    record({"type": one_of(("text", "json_object"))}),
    record({"type": const("json_schema"), "json_schema": {**form(openai_chat._Schema, schema=OBJECT), "required": ["schema"]}}),
    NULL,
)


_OLD_TOOLS: Schema = {
    "if": {"required": ["functions"], "properties": {"functions": {"type": "array"}, "tool_choice": NULL}},
    "then": {
        "properties": {"function_call": either(one_of(("auto", "none")), form(openai_chat._Named), NULL)},
        "if": {"required": ["function_call"], "properties": {"function_call": OBJECT}},
        "then": {"properties": {"functions": {"minItems": 1}}},
    },
}
"""`functions` and `function_call` are what `tools` and `tool_choice` replaced: read where `tool_choice` is not given."""


def chat_message() -> Schema:
    """A message by its role."""
    call = form(chat_messages._Call, function=form(chat_messages._Function))
    call["required"] = ["id", "function"]
    other = said(record({"id": STRING, "function": NULL, "type": STRING}, ["id"]), PASSED)
    whole = form(chat_messages._Message)

    def message(role: Schema, content: Schema, *required: str, **instead: Schema) -> Schema:
        properties = {**whole["properties"], "role": role, "content": content, **instead}
        return {"type": "object", "properties": properties, "required": ["role", *required]}

    return either(
        message(one_of(("system", "developer", "user")), _CONTENT, "content"),
        message(const("assistant"), nullable(_CONTENT), tool_calls=nullable(listed(either(call, other)))),
        message(const("tool"), nullable(_CONTENT), "tool_call_id", tool_call_id=STRING),
        message(const("function"), nullable(_CONTENT)),
    )


def chat() -> Schema:
    tool = either(
        record({"type": const("function"), "function": CHAT_FUNCTION}, ["function"]),
        said(record({"type": other_than(("function",))}), PASSED),
    )
    choice = either(
        one_of(("auto", "none", "required")),
        record({"type": const("function"), "function": form(openai_chat._Named)}),
        said(record({"type": other_than(("function",))}), PASSED),
        NULL,
    )
    taken = form(
        openai_chat._Body,
        model=MODEL,
        messages=listed(ref("ChatMessage"), 1),
        tools=nullable(listed(tool)),
        tool_choice=choice,
        functions=nullable(said(listed(CHAT_FUNCTION), "The form that `tools` replaced.")),
        function_call=either(STRING, OBJECT, NULL),
        response_format=_FORMAT,
        stream_options=nullable(form(openai_chat._Options)),
    )
    return {**taken, "allOf": [needs_tools(_FORCED, "tools", "functions"), _OLD_TOOLS]}


def completions() -> Schema:
    return form(openai_completions._Body, model=MODEL, prompt=TEXTS, stream_options=nullable(form(openai_chat._Options)))


def embeddings() -> Schema:
    taken = form(openai_embeddings._Body, model=MODEL, input=TEXTS)
    return {**taken, "properties": {**taken["properties"], "stream": NOT_STREAMED}}


# Responses.

RESPONSE_PARTS = either(
    record({"type": one_of(("input_text", "output_text", "text")), "text": STRING}),
    record({"type": const("refusal"), "refusal": STRING}),
    record({"type": const("input_image"), "image_url": FILLED}),
    said(record({"type": const("input_image"), "file_id": FILLED}), PASSED),
    said(record({"type": one_of(("input_file", "input_audio"))}), PASSED),
)
_ITEMS = ("message", "function_call", "function_call_output", "reasoning")


def response_item() -> Schema:
    content = either(STRING, listed(ref("ResponsePart")))

    def item(kind: str, value: Schema, **instead: Schema) -> Schema:
        properties = {"type": const(kind), **value["properties"], **instead}
        return {**value, "properties": properties, "required": ["type", *value.get("required", ())]}

    message = item("message", form(items._Message), role=one_of(items.ROLES), content=content)
    message["required"] = ["role", "content"]
    return either(
        message,
        item("function_call", form(items._Call)),
        item("function_call_output", form(items._Output), output=content),
        item("reasoning", form(items._Reasoning)),
        said(record({"type": other_than(_ITEMS)}), PASSED),
    )


def responses() -> Schema:
    tool = either(
        record({"type": const("function"), **form(responses_client._Function)["properties"]}, ["type", "name"]),
        said(record({"type": other_than(("function",))}), PASSED),
    )
    choice = either(
        one_of(("auto", "none", "required")),
        record({"type": const("function"), "name": FILLED}),
        said(record({"type": other_than(("function",))}), PASSED),
        NULL,
    )
    shape = either(
        record({"type": one_of(("text", "json_object"))}),
        record({"type": const("json_schema"), **form(responses_client._Schema)["properties"]}, ["type", "schema"]),
        NULL,
    )
    taken = form(
        responses_client._Body,
        model=MODEL,
        input=either(FILLED, listed(ref("ResponseItem"), 1)),
        tools=nullable(listed(tool)),
        tool_choice=choice,
        text=nullable(record({"format": shape}, [])),
        reasoning=nullable(form(responses_client._Reasoning)),
        previous_response_id=said(nullable(STRING), "The id of the kept answer that this goes on from."),
        store=said(nullable(BOOLEAN), "`false`: do not keep the answer, so that nothing can go on from it."),
    )
    return {**taken, "allOf": [needs_tools(_FORCED, "tools")]}


# Messages.


def message_blocks() -> dict[str, Schema]:
    """The blocks that stand in each role's messages, and in a tool's result."""

    def block(kind: str, value: Schema) -> Schema:
        return {**value, "properties": {"type": const(kind), **value["properties"]}, "required": ["type", *value["required"]]}

    source = either(
        record({"type": const("base64"), "media_type": STRING, "data": STRING}),
        record({"type": const("url"), "url": FILLED}),
        said(record({"type": const("file")}), PASSED),
    )
    text = block("text", form(turns._Text))
    image = block("image", record({"source": source}))
    elsewhere = said(record({"type": one_of(sorted(turns.UNTRANSLATED))}), PASSED)
    result = block("tool_result", form(turns._ToolResult, content=nullable(either(STRING, listed(ref("MessageResultBlock"))))))
    return {
        "MessageSystemBlock": either(text, elsewhere),
        "MessageUserBlock": either(text, image, result, elsewhere),
        "MessageResultBlock": either(text, image, elsewhere),
        "MessageAssistantBlock": either(
            text,
            image,
            block("thinking", form(turns._Thinking)),
            block("redacted_thinking", form(turns._Redacted)),
            block("tool_use", form(turns._ToolUse)),
            elsewhere,
        ),
    }


def message_turn() -> Schema:
    def turn(role: str, block: str) -> Schema:
        return record({"role": const(role), "content": either(STRING, listed(ref(block)))})

    return either(
        turn("user", "MessageUserBlock"), turn("assistant", "MessageAssistantBlock"), turn("system", "MessageSystemBlock")
    )


def messages(*, counting: bool = False) -> Schema:
    """A messages request; one whose tokens are only counted needs no `max_tokens` and is not streamed."""
    tool = either(
        form(anthropic_client._Tool, type=either(const("custom"), NULL)),
        said(record({"type": other_than(("custom",))}), PASSED),
    )
    serial = {"disable_parallel_tool_use": {"type": ["boolean", "null"]}}
    choice = either(
        record({"type": one_of(("auto", "any", "none")), **serial}, ["type"]),
        record({"type": const("tool"), "name": FILLED, **serial}, ["type", "name"]),
        NULL,
    )
    budget = form(anthropic_client._Thinking)["properties"]["budget_tokens"]
    thinking = either(
        record({"type": const("enabled"), "budget_tokens": budget["anyOf"][0]}),
        record({"type": one_of(("adaptive", "between_tools", "disabled")), "budget_tokens": budget}, ["type"]),
        NULL,
    )
    shape = nullable(form(anthropic_client._Format, type=const("json_schema")))
    taken = form(
        anthropic_client._Body,
        model=MODEL,
        messages=listed(ref("MessageTurn"), 1),
        system=nullable(either(STRING, listed(ref("MessageSystemBlock")))),
        tools=nullable(listed(tool)),
        tool_choice=choice,
        thinking=said(thinking, "`budget_tokens` is less than `max_tokens`."),
        metadata=nullable(form(anthropic_client._Metadata)),
        output_config=nullable(form(anthropic_client._OutputConfig, format=shape)),
        output_format=said(shape, "The older spelling of `output_config.format`."),
    )
    properties = taken["properties"]
    if counting:
        properties = {**properties, "stream": NOT_STREAMED}
    else:
        properties = {**properties, "max_tokens": {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}}
        taken["required"] = [*taken["required"], "max_tokens"]
    forced = record({"type": one_of(("any", "tool"))})
    return {**taken, "properties": properties, "allOf": [needs_tools(forced, "tools")]}


def schemas() -> dict[str, Schema]:
    """All of them, by the names that they have in the document."""
    return {
        "ChatRequest": chat(),
        "ChatMessage": chat_message(),
        "ChatPart": CHAT_PARTS,
        "CompletionRequest": completions(),
        "EmbeddingRequest": embeddings(),
        "ResponseRequest": responses(),
        "ResponseItem": response_item(),
        "ResponsePart": RESPONSE_PARTS,
        "MessageRequest": messages(),
        "CountRequest": messages(counting=True),
        "MessageTurn": message_turn(),
        **message_blocks(),
    }
