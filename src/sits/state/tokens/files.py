"""Counts by the tokenizer of a file and a declared chat template.

A conversation is counted message by message, so that one that grows has only its new messages counted: each message is known by
the digest of its text in its frame. That is exact where the frame begins with a token of its own, which parts the text before any
merging; where it does not, the conversation is counted as one text.
"""

from __future__ import annotations

import asyncio
import functools
from concurrent.futures import Executor

import msgspec

from sits.inner.ask import Ask, ImagePart, Message, ReasoningPart, TextPart, ToolResultPart, ToolUsePart
from sits.inner.estimate import IMAGE_TOKENS
from sits.resources.context import FrameSpec
from sits.state.tokens.base import Count
from sits.state.tokens.kept import Kept, digest_of
from sits.state.tokens.reader import Reader

SOURCE = "file"
FRAME_TOKENS = 4
"""Of a message, where the chat template is not declared."""
_PROMPT, _PART = b"prompt", b"part"


class FileCounter:
    """A `Counter` by a `Reader`."""

    __slots__ = ("_executor", "_frame", "_kept", "_parted", "_reader")

    def __init__(self, reader: Reader, frame: FrameSpec | None, kept: Kept, executor: Executor) -> None:
        self._reader = reader
        self._frame = frame
        self._kept = kept
        self._executor = executor
        self._parted = frame is None or _parted(reader, frame)

    def known(self, ask: Ask) -> Count | None:
        parts, kind = self._parts(ask)
        found = [self._kept.get(self._digest(kind, part)) for part in parts]
        return None if None in found else self._sum(ask, [one or 0 for one in found])

    async def count(self, ask: Ask) -> Count:
        parts, kind = self._parts(ask)
        return self._sum(ask, await self._counted(parts, kind))

    async def texts(self, texts: list[str]) -> list[int]:
        return await self._counted(texts, _PART)

    def _digest(self, kind: bytes, part: str) -> bytes:
        return digest_of(self._reader.key, kind, part.encode("utf-8", "surrogatepass"))

    async def _counted(self, parts: list[str], kind: bytes) -> list[int]:
        digests = [self._digest(kind, part) for part in parts]
        known = {digest: self._kept.get(digest) for digest in digests}
        missing = {digest: part for digest, part in zip(digests, parts, strict=True) if known[digest] is None}
        if missing:
            # Half of a surrogate pair has no UTF-8; a model server is given U+FFFD for it, too.
            clean = [part.encode("utf-8", "replace").decode() if not part.isascii() else part for part in missing.values()]
            work = functools.partial(self._reader.count, clean, whole=kind is _PROMPT)
            counts = await asyncio.get_running_loop().run_in_executor(self._executor, work)
            for digest, tokens in zip(missing, counts, strict=True):
                self._kept.put(digest, tokens)
                known[digest] = tokens
        return [known[digest] or 0 for digest in digests]

    def _parts(self, ask: Ask) -> tuple[list[str], bytes]:
        """What is counted on its own, and as what."""
        alone = [one for one in (*ask.prompts, *ask.inputs) if isinstance(one, str)]
        if alone or not ask.messages:
            return alone, _PROMPT
        frame = self._frame
        if frame is None:
            return [text for message in ask.messages for text in _texts(message)] + _tools(ask), _PART
        parts = [frame.begin] if frame.begin else []
        if frame.system and ask.messages[0].role != "system":
            parts.append(frame.system)
        parts += [_framed(frame, message) for message in ask.messages]
        parts += _tools(ask)
        parts.append(frame.answer + ask.prefix)
        return (parts if self._parted else ["".join(parts)]), _PART

    def _sum(self, ask: Ask, counts: list[int]) -> Count:
        if ask.prompts or ask.inputs:
            numbers = [len(one) for one in (*ask.prompts, *ask.inputs) if not isinstance(one, str)]
            return Count(max([*counts, *numbers], default=0), True, SOURCE)
        total = sum(counts)
        # Some servers go on with an assistant's message at the end, others begin a new one after it.
        open_ = ask.messages[-1].role == "assistant" or bool(ask.prefix)
        plain = not open_ and not ask.tools and ask.output is None and all(_plain(message) for message in ask.messages)
        if self._frame is not None:
            return Count(total + IMAGE_TOKENS * _images(ask), plain, SOURCE)
        overhead = FRAME_TOKENS * (len(ask.messages) + 1)
        return Count(total + overhead + IMAGE_TOKENS * _images(ask), False, SOURCE, overhead)


def _parted(reader: Reader, frame: FrameSpec) -> bool:
    """Whether messages can be counted one by one. Nearly always they can where the frame begins with a mark; a tokenizer that
    takes blanks in front of a mark into it, say, is found out by what it does with some."""
    if not all(reader.parts_at(text) for text in (frame.message, frame.answer) if text):
        return False
    tried = [Message("user", (TextPart(text),)) for text in ("a", " b \n", "", "你好", "\n\n1")]
    return reader.adds_up([_framed(frame, message) for message in tried] + [frame.answer])


def _framed(frame: FrameSpec, message: Message) -> str:
    content = "".join(_texts(message))
    if frame.trim:
        content = content.strip()
    before, _, after = frame.message.partition("{content}")
    return before.replace("{role}", message.role) + content + after.replace("{role}", message.role)


def _plain(message: Message) -> bool:
    return message.name is None and all(isinstance(part, TextPart) for part in message.parts)


def _texts(message: Message) -> list[str]:
    texts = []
    for part in message.parts:
        if isinstance(part, TextPart | ReasoningPart):
            texts.append(part.text)
        elif isinstance(part, ToolUsePart):
            texts += [part.name, part.arguments]
        elif isinstance(part, ToolResultPart):
            texts += [one.text for one in part.content if isinstance(one, TextPart)]
    return texts


def _tools(ask: Ask) -> list[str]:
    return [msgspec.json.encode(tool).decode() for tool in ask.tools]


def _images(ask: Ask) -> int:
    found = 0
    for message in ask.messages:
        for part in message.parts:
            inner = part.content if isinstance(part, ToolResultPart) else (part,)
            found += sum(isinstance(one, ImagePart) for one in inner)
    return found
