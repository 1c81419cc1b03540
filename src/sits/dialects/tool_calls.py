"""Which tool call a piece belongs to: by its id, then by its index, then the current call; numbered densely from 0.

Servers disagree: some send every call with index 0 and a new id, some no index, some no id, some the id and name again with
each piece. A call goes out only once its name is known, so that its first piece carries id and name.
"""

from __future__ import annotations

import json
from typing import Any

from sits.inner.event import ToolCall


class _Open:
    """One call under way."""

    __slots__ = ("arguments", "id", "name", "number", "sent")

    def __init__(self, number: int, call_id: str | None) -> None:
        self.number = number
        self.id = call_id
        self.name = ""
        self.arguments: list[str] = []
        self.sent = False

    def complete(self) -> bool:
        """Whether it could end here: its arguments are JSON."""
        try:
            json.loads("".join(self.arguments))
        except (ValueError, RecursionError):
            return False
        return True


class CallOrder:
    """The tool calls of one choice, in the order of their first pieces."""

    __slots__ = ("_by_id", "_by_index", "_calls", "_choice", "_current", "_seed")

    def __init__(self, choice: int, seed: str) -> None:
        """`seed` makes ids unique for servers that give none."""
        self._choice = choice
        self._seed = seed
        self._calls: list[_Open] = []
        self._by_id: dict[str, _Open] = {}
        self._by_index: dict[int, _Open] = {}
        self._current: _Open | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def place(self, call_id: Any, index: Any, name: Any, arguments: Any) -> ToolCall | None:
        """The piece as an event; None while its call has no name, or when it adds nothing."""
        call_id = call_id if isinstance(call_id, str) and call_id else None
        index = index if isinstance(index, int) and not isinstance(index, bool) else None
        name = name if isinstance(name, str) and name else None
        text = arguments if isinstance(arguments, str) else "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
        call = self._find(call_id, index, name)
        self._current = call
        if name and not call.name:
            call.name = name
        if text:
            call.arguments.append(text)
        if not call.name:
            return None
        if call.sent:
            return ToolCall(call.number, arguments=text, index=self._choice) if text else None
        call.sent = True
        call.id = call.id or f"call_{self._seed}_{self._choice}_{call.number}"
        return ToolCall(call.number, call.id, call.name, "".join(call.arguments), self._choice)

    def _find(self, call_id: str | None, index: int | None, name: str | None) -> _Open:
        if call_id is not None and call_id in self._by_id:
            return self._by_id[call_id]
        held = self._by_index.get(index) if index is not None else self._current
        # A second id for the same index is a second call; so is a second name after complete arguments.
        if held is None or (call_id is not None and held.id is not None):
            return self._new(call_id, index)
        if call_id is None and name and held.name and (name != held.name or held.complete()):
            return self._new(call_id, index)
        if call_id is not None:
            held.id = call_id
            self._by_id[call_id] = held
        return held

    def _new(self, call_id: str | None, index: int | None) -> _Open:
        call = _Open(len(self._calls), call_id)
        self._calls.append(call)
        if call_id is not None:
            self._by_id[call_id] = call
        if index is not None:
            self._by_index[index] = call
        return call
