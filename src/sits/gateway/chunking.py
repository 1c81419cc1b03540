"""A prompt that is too long for any one ask of a model, read in pieces: notes are carried from piece to piece.

    reading = Reading(readers, tokens, room, over)
    read = await reading.through(body, operation)       every piece but the last is asked for notes
    ... then `read.body` is asked in place of the client's: its request, the notes, and the last piece

The client's request is what it was, but for its longest text: that is the material. The first and the last paragraph of it, where
they are short, are taken for part of the request ("Summarise this:", "What does it say of ...?") and are said with every piece.
Each piece is a request of its own, so it is in the records and the ledger, and where the target that reads fails another one goes
on with the same piece and the notes so far; the last ask is the client's own, and only that is streamed.

Whatever cannot work is refused before anything is asked, with the figures: a request that leaves no room for pieces, or more
pieces than the route allows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from sits.dialects.intake import encode
from sits.gateway.chunking_words import ENGLISH, Words, words_for
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.inner.event import Usage
from sits.routing.context.split import cutting
from sits.routing.target import Target

PIECES: frozenset[Operation] = frozenset(("chat", "messages", "responses", "completions"))
"""Operations whose prompts can be read in pieces."""
SHORT = 600
"""Characters of a paragraph that may be part of the request."""
FRAMES = 64
"""Tokens for the chat template and the roles around one ask."""
LEAST_PIECE = 64
"""Tokens of a piece below which reading in pieces is not worth an ask."""

Fields = dict[str, Any]
Over = Callable[[], SitsError | None]
"""Why nothing more is to be asked: the client has gone, the process ends. None: go on."""
_fields = msgspec.json.Decoder(Fields).decode


class Texts(Protocol):
    """What is needed of `sits.state.tokens.Tokens`."""

    async def texts(self, target: Target, texts: list[str]) -> list[int]: ...


class Readers(Protocol):
    """Who is asked; see `sits.gateway.fitting.Asides`."""

    @property
    def target(self) -> Target:
        """Who is asked first."""

    async def ask(self, body: bytes) -> bytes:
        """The body of the answer to a chat request.

        Raises:
            SitsError: nobody gave one; what the last one said.
        """

    def refuse(self) -> bool:
        """The last answer is no use: whether there is somebody else to ask."""


class Room(msgspec.Struct, frozen=True):
    """What there is to work with. Tokens, but for the pieces."""

    window: int
    """Prompt and answer of one ask (`Context.window`)."""
    headroom: int
    """What must be left for the answer to the client."""
    notes: int = 512
    """Of the notes that are carried."""
    pieces: int = 16
    """The most that are read."""


class Read(msgspec.Struct, frozen=True):
    """What came of it."""

    body: bytes
    """The request that is asked in place of the client's."""
    pieces: int
    """In how many the material was read; 1: it fits after all, and nothing was asked."""
    usage: Usage
    """Over all asks that were made for it; the last one is not among them."""
    notes: str = ""


class Progress:
    """How far a reading has come, for whoever tells of it."""

    __slots__ = ("number", "pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        """The most tokens of a piece; 0 until it is known."""
        self.pieces: tuple[int, ...] = ()
        """The tokens of each."""
        self.number = 0
        """Of the piece that is being read, from 1."""


class Material(msgspec.Struct, frozen=True):
    """The longest text of a request, and what else it says."""

    place: tuple[str | int, ...]
    text: str
    request: str
    """What is wanted, as far as it is told outside the material or at its edges."""
    edges: str
    """The part of that which is at the edges of the material."""
    around: str
    """All other text: it is in the last ask as it is."""


class Reading:
    """One prompt on its way through a model. Used once."""

    def __init__(
        self,
        readers: Readers,
        tokens: Texts,
        room: Room,
        *,
        left: Callable[[], float | None] = lambda: None,
        over: Over = lambda: None,
        cut: Callable[[int], None] = lambda _: None,
        progress: Progress | None = None,
    ) -> None:
        self._progress = Progress() if progress is None else progress
        self._readers = readers
        self._tokens = tokens
        self._room = room
        self._left = left
        self._over = over
        self._told = cut
        """Is told in how many pieces it is, before the first is read."""
        self.used = Usage(input=0, output=0)
        """Over all asks so far."""
        self._words: Words = ENGLISH

    async def through(self, body: bytes, operation: Operation) -> Read:
        """Read the material of `body`, and give the request that is left to ask.

        Raises:
            SitsError: `context_length_exceeded`, with the figures; what a piece was answered with, or `upstream_timeout`.
        """
        fields = _fields(body)
        material = material_of(fields) if operation in PIECES else None
        if material is None:
            raise SitsError(Code.CONTEXT_TOO_LONG, f"the prompt is too long, and {operation!r} has no text to read in pieces")
        self._words = words_for(material.text)
        try:
            async with asyncio.timeout(self._left()):
                pieces = await self._cut(material)
        except TimeoutError as error:
            said = "the request's own deadline passed while its prompt was cut into pieces"
            raise SitsError(Code.UPSTREAM_TIMEOUT, said) from error
        self._told(len(pieces))
        notes = ""
        for number, piece in enumerate(pieces[:-1], 1):
            notes = await self._note(material, piece, notes, number, len(pieces))
        if len(pieces) == 1:
            return Read(body, 1, self.used)
        last = self._words.last.format(
            request=material.edges, notes=notes, piece=pieces[-1], number=len(pieces), before=len(pieces) - 1
        )
        return Read(encode(_put(fields, material.place, last)), len(pieces), self.used, notes)

    async def _cut(self, material: Material) -> list[str]:
        """The material in pieces that leave room for everything else that an ask holds.

        Raises:
            SitsError: `context_length_exceeded`: there is none, or there are too many pieces.
        """
        room, words = self._room, self._words
        frame = words.step.format(request="", notes="", piece="", number=99, pieces=99, words=9999)
        request, around, framed, wanted = await self._count(material.request, material.around, words.system + frame, words.last)
        # Notes come in and go out again, never longer than `notes`; a token more or less is lost where texts meet.
        asking = room.window - 2 * room.notes - request - framed - FRAMES
        answering = room.window - max(room.headroom, 1) - room.notes - request - around - wanted - FRAMES
        size = min(asking, answering)
        if size < LEAST_PIECE:
            said = (
                f"the prompt is too long, and leaves no room to read it in pieces: of a window of {room.window} tokens, "
                f"{room.headroom} are for the answer, {room.notes} for notes, {request + around} for the request itself and "
                f"{framed + FRAMES} for its frame"
            )
            raise SitsError(Code.CONTEXT_TOO_LONG, said, param="messages")
        self._progress.size = size
        pieces = await self._pieces(material.text, size)
        if len(pieces) > room.pieces:
            said = (
                f"the prompt is too long: {len(pieces)} pieces of {size} tokens, and the route reads {room.pieces} at the most "
                "(`context.pieces`)"
            )
            raise SitsError(Code.CONTEXT_TOO_LONG, said, param="messages")
        return pieces

    async def _pieces(self, text: str, size: int) -> list[str]:
        steps = cutting(text, size)
        pieces: list[str] = []
        counts: dict[str, int] = {}
        try:
            asked = next(steps)
            while True:
                counts[asked] = (await self._count(asked))[0]
                asked = steps.send(counts[asked])
        except StopIteration as end:
            pieces = end.value
        except ValueError as error:
            raise SitsError(Code.CONTEXT_TOO_LONG, f"the prompt cannot be read in pieces: {error}", param="messages") from error
        self._progress.pieces = tuple(counts[piece] for piece in pieces)
        return pieces

    async def _count(self, *texts: str) -> list[int]:
        return await self._tokens.texts(self._readers.target, list(texts))

    async def _note(self, material: Material, piece: str, notes: str, number: int, pieces: int) -> str:
        """The notes after one more piece.

        Raises:
            SitsError: what it was answered with; the request is over.
        """
        room, words = self._room, self._words
        self._progress.number = number
        step = words.step.format(
            request=material.request,
            notes=notes or words.nothing,
            piece=piece,
            number=number,
            pieces=pieces,
            words=max(10, room.notes // 2),
        )
        asked = {
            "model": self._readers.target.name,
            "messages": [{"role": "system", "content": words.system}, {"role": "user", "content": step}],
            "max_tokens": room.notes,
        }
        while True:
            reader = self._readers.target.name
            answer = await self._asked(encode(asked), f"part {number} of {pieces}")
            said = answer.choices[0].message.content if answer.choices else None
            if answer.usage is not None:
                self.used = Usage(
                    (self.used.input or 0) + answer.usage.prompt_tokens, (self.used.output or 0) + answer.usage.completion_tokens
                )
            if said and said.strip():
                return await self._within(said.strip())
            if not self._readers.refuse():
                raise SitsError(Code.UPSTREAM_BROKEN, f"{reader} made no notes of part {number} of {pieces} of the prompt")

    async def _within(self, notes: str) -> str:
        """The notes, cut where they are longer than was asked for: the next ask has room for so many. A text may have some tokens
        more when it is read than when it was made."""
        most = self._room.notes
        while len(notes.encode(errors="replace")) > most:  # A token is a byte at the least.
            (count,) = await self._count(notes)
            if count <= most + most // 8:
                break
            notes = notes[: len(notes) * most // count]
        return notes

    async def _asked(self, body: bytes, what: str) -> _Answer:
        ended = self._over()
        if ended is not None:
            raise ended
        left, reader = self._left(), self._readers.target.name
        try:
            async with asyncio.timeout(left):
                return _answer(await self._readers.ask(body))
        except TimeoutError as error:
            said = f"the request's own deadline passed while {reader} read {what} of the prompt"
            raise SitsError(Code.UPSTREAM_TIMEOUT, said) from error
        except msgspec.MsgspecError as error:
            raise SitsError(Code.UPSTREAM_BROKEN, f"the answer of {reader} to {what} cannot be read") from error


class _Message(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    message: _Message


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None


_answer = msgspec.json.Decoder(_Answer).decode


def material_of(fields: Fields) -> Material | None:
    """The longest text of a request of any dialect, and what it wants; None where there is no text."""
    texts = list(_texts(fields))
    found = max((place for place in texts if place[2] != "system"), key=lambda one: len(one[1]), default=None)
    if found is None or not found[1].strip():
        return None
    place, text, role = found
    others = [(other, said, whose) for other, said, whose in texts if other != place]
    wanted = [said for _, said, whose in others if whose == "system"]
    asked = [said for other, said, whose in others if whose == "user" and said.strip()]
    wanted += asked[-1:]
    edges = _edges(text) if role == "user" else []
    return Material(place, text, "\n\n".join([*wanted, *edges]), "\n\n".join(edges), "\n".join(said for _, said, _ in others))


def _edges(text: str) -> list[str]:
    """The first and the last paragraph of a text, where they are short enough to be a request."""
    first, _, rest = text.strip().partition("\n\n")
    _, _, last = rest.rpartition("\n\n")
    return [part.strip() for part in (first, last) if 0 < len(part.strip()) <= SHORT and len(rest) > len(part)]


def _texts(fields: Fields) -> list[tuple[tuple[str | int, ...], str, str]]:
    """Every text of a request: where it stands, what it says, and whose it is (`system`, `user`, or another's)."""
    found: list[tuple[tuple[str | int, ...], str, str]] = []
    for name, role in (("system", "system"), ("instructions", "system"), ("prompt", "user")):
        found += _said((name,), fields.get(name), role)
    for name in ("messages", "input"):
        held = fields.get(name)
        if isinstance(held, str):
            found.append(((name,), held, "user"))
        elif isinstance(held, list):
            for index, message in enumerate(held):
                if isinstance(message, dict):
                    role = message.get("role", "user")
                    role = "system" if role in ("system", "developer") else str(role)
                    found += _said((name, index, "content"), message.get("content"), role)
                    found += _said((name, index, "output"), message.get("output"), "tool")
    return found


def _said(place: tuple[str | int, ...], held: Any, role: str) -> list[tuple[tuple[str | int, ...], str, str]]:
    if isinstance(held, str):
        return [(place, held, role)]
    found = []
    for index, part in enumerate(held if isinstance(held, list) else ()):
        if isinstance(part, dict) and isinstance(part.get("text"), str):
            found.append(((*place, index, "text"), part["text"], role))
        elif isinstance(part, str) and len(held) == 1:
            found.append(((*place, index), part, role))
        elif isinstance(part, dict):
            found += _said((*place, index, "content"), part.get("content"), "tool")
    return found


def _put(fields: Fields, place: tuple[str | int, ...], text: str) -> Fields:
    """`fields` with another text at `place`; they are this request's own."""
    held: Any = fields
    for step in place[:-1]:
        held = held[step]
    held[place[-1]] = text
    return fields
