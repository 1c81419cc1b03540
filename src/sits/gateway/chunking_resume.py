"""A whole answer that was cut by its length, gone on with until it is complete or there is no more room.

Streams are gone on with part by part as they run (`sits.gateway.running`); this is for answers that are not streamed. The model
is given what it has said so far, and what it says then is put behind it; the client gets one answer, with the usage of all its
parts and the finish of the last. For models that can be given the beginning of an answer, by servers of OpenAI's family.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from sits import dialects
from sits.dialects.base import ClientDialect, Identity
from sits.dialects.collect import Answer, Choice
from sits.dialects.continued_seam import Onward
from sits.gateway.chunking import AskPiece, Over
from sits.inner.ask import Ask, Operation, Thinking
from sits.inner.errors import SitsError
from sits.inner.event import Event, Finish, FinishReason, Reasoning, Text, Usage, Used
from sits.resources.context import ServiceSpec
from sits.routing.context.resume import MOST_PARTS, Cut, answer_room, can_resume
from sits.routing.target import Target

READ_AS: dict[Operation, str] = {"chat": "openai", "completions": "openai", "responses": "openai", "messages": "anthropic"}
"""In whose words the answer to an operation is."""


class Completed(msgspec.Struct, frozen=True):
    """What going on with an answer came to."""

    body: bytes
    parts: int = 0
    """That were asked for; 0 where the answer is as it was."""
    usage: Usage = Usage(input=0, output=0)
    """Over the asks for them: each has the answer so far in its prompt."""
    told: Usage | None = None
    """What the client is told of the whole answer."""
    finish: FinishReason = "length"


def asked_as(operation: Operation) -> Operation:
    """How the parts of an answer are asked for."""
    return "completions" if operation == "completions" else "chat"


async def complete(
    body: bytes,
    ask: Ask,
    client: ClientDialect,
    identity: Identity,
    target: Target,
    service: ServiceSpec,
    window: int,
    ask_piece: AskPiece,
    over: Over = lambda: None,
    left: Callable[[], float | None] = lambda: None,
) -> Completed:
    """The whole answer `body` to `ask`, gone on with where it was cut. `left`: seconds that there are for all of it.

    What goes wrong on the way ends it there: the client gets what there is, with the finish that says that it is cut.
    """
    first = Answer(dialects.upstream(READ_AS[ask.operation]).whole(ask, body))
    choice = _resumable(first, ask, target)
    if choice is None or first.usage is None:
        return Completed(body)
    text, finish, made, parts, used = choice.text, choice.finish, first.usage.output or 0, 0, Usage(input=0, output=0)
    prompt, asked = first.usage.input or 0, ask.sampling.max_tokens
    while parts < MOST_PARTS - 1 and over() is None:
        room = answer_room(Cut(finish, prompt, made, asked), service, window)
        if not room:
            break
        try:
            async with asyncio.timeout(left()):
                part = await _next(ask, target, text, room, ask_piece)
        except (SitsError, TimeoutError):
            break
        said = part.choices[0] if part.choices else None
        usage = part.usage or Usage()
        used = Usage((used.input or 0) + (usage.input or 0), (used.output or 0) + (usage.output or 0))
        if said is None or not said.text:
            break
        parts += 1
        seam = Onward(text.rstrip(), text[len(text.rstrip()) :])
        text += seam.feed(said.text) + seam.close()
        made += usage.output if usage.output is not None else len(said.text) // 4
        finish = said.finish
    if not parts:
        return Completed(body, 0, used)
    told, finish = msgspec.structs.replace(first.usage, output=made), finish or "length"
    return Completed(client.whole(ask, _told(first, text, finish, told), identity), parts, used, told, finish)


def _resumable(first: Answer, ask: Ask, target: Target) -> Choice | None:
    """The one text of an answer that can be gone on with."""
    if not can_resume(ask) or len(first.choices) != 1:
        return None
    if asked_as(ask.operation) not in target.dialect.relays:
        return None
    if ask.operation == "completions":
        if ask.extra.get("echo") or not all(isinstance(one, str) for one in ask.prompts):
            return None
    elif "prefill" not in target.capabilities:
        return None
    choice = first.choices[0]
    return None if choice.calls or choice.refusal or not choice.text.strip() else choice


async def _next(ask: Ask, target: Target, text: str, room: int, ask_piece: AskPiece) -> Answer:
    """What the model says after `text`.

    Raises:
        SitsError: it was not asked, or did not answer.
    """
    given = text.rstrip()
    following = msgspec.structs.replace(
        ask,
        operation=asked_as(ask.operation),
        stream=False,
        sampling=msgspec.structs.replace(ask.sampling, max_tokens=room),
    )
    if ask.operation == "completions":
        following = msgspec.structs.replace(following, prompts=(f"{ask.prompts[0] if ask.prompts else ''}{given}",))
    else:
        thinking = Thinking(enabled=False) if ask.thinking is not None and ask.thinking.enabled else ask.thinking
        following = msgspec.structs.replace(following, prefix=given, thinking=thinking)
    body = await ask_piece(target, target.dialect.write(following, target.name).body)
    return Answer(dialects.upstream("openai").whole(following, body))


def _told(first: Answer, text: str, finish: FinishReason, usage: Usage) -> list[Event]:
    choice = first.choices[0]
    events: list[Event] = [first.started]
    if choice.reasoning:
        events.append(Reasoning(choice.reasoning, signature=choice.signature))
    return [*events, Text(text), Finish(finish), Used(usage)]
