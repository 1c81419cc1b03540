"""Whether a new model can take the place of an old one: found, warmed, and seen to answer. Each raises `SitsError` with why
not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec

from sits.engines.local.engine import LocalEngine
from sits.gateway.asking import ask
from sits.gateway.service import Service
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.resources.reliability import SwitchSpec
from sits.routing.target import Target, operation_capability

TRIES = 3
PAUSE_SECONDS = 0.5
"""Before a failed request is tried again; doubled each time."""
WARM_TOKENS = 16
VERIFY_TOKENS = 256
_WARM = "Hello"
_CLIENT = "switch"


async def prepare(service: Service, spec: SwitchSpec) -> None:
    """The new model is there, and can do what the old one is declared to do."""
    new, old = _target(service, spec.to), _target(service, spec.from_)
    reason = getattr(new.engine, "reason", None)
    if reason is not None:
        raise SitsError(Code.MODEL_UNAVAILABLE, str(reason))
    # What nobody declared of the old model may not be so: a request that needs it stays with the old one while there is one.
    declared = frozenset(old.model.spec.capabilities or ())
    if lacking := declared - new.capabilities:
        raise SitsError(
            Code.UNSUPPORTED, f"{new.name} cannot do {', '.join(sorted(lacking))}, which {old.name} is declared to do"
        )
    window, needed = new.model.spec.window, old.model.spec.window
    if window is not None and needed is not None and window < needed:
        raise SitsError(Code.UNSUPPORTED, f"{new.name} has a context of {window} tokens, {old.name} one of {needed}")


async def warm(service: Service, spec: SwitchSpec) -> None:
    """The new model is loaded and has answered as many requests as are wanted; what it said does not matter yet."""
    target = _target(service, spec.to)
    if isinstance(target.engine, LocalEngine):
        await target.engine.warm()
    for _ in range(spec.warm):
        await _patiently(service, target, _WARM, WARM_TOKENS)


async def verify(service: Service, spec: SwitchSpec) -> None:
    """The new model answers each prompt with something."""
    target = _target(service, spec.to)
    for prompt in spec.verify:
        said = await _patiently(service, target, prompt, VERIFY_TOKENS)
        if not said:
            raise SitsError(Code.UPSTREAM_BROKEN, f"{target.name} answered {prompt[:80]!r} with nothing")


def _target(service: Service, name: str) -> Target:
    target = service.table.targets.get(name)
    if target is None:
        raise SitsError(Code.MODEL_NOT_FOUND, f"there is no model {name!r}")
    return target


async def _patiently(service: Service, target: Target, prompt: str, tokens: int) -> bool:
    """Ask, and ask again where it may help; whether there was something in the answer."""
    pause = PAUSE_SECONDS
    for tried in range(1, TRIES + 1):
        try:
            return await _ask(service, target, prompt, tokens)
        except SitsError as error:
            if tried == TRIES:
                raise SitsError(Code.MODEL_UNAVAILABLE, f"{target.name} does not answer: {error.message}") from error
        await asyncio.sleep(pause)
        pause *= 2
    raise AssertionError("unreachable")


async def _ask(service: Service, target: Target, prompt: str, tokens: int) -> bool:
    operation = next((one for one in _WORDS if operation_capability(one) in target.capabilities), None)
    if operation is None:
        raise SitsError(Code.UNSUPPORTED, f"{target.name} can do nothing that could be asked of it to see whether it answers")
    body, said = _WORDS[operation]
    answer = await ask(service, target, operation, msgspec.json.encode(body(target.name, prompt, tokens)), _CLIENT)
    try:
        return bool(said(msgspec.json.decode(answer)))
    except (msgspec.DecodeError, LookupError, TypeError, AttributeError):
        return False


def _message(answer: Any) -> Any:
    message = answer["choices"][0]["message"]
    return message.get("content") or message.get("reasoning_content") or message.get("reasoning") or message.get("tool_calls")


_WORDS: dict[Operation, tuple[Callable[[str, str, int], dict[str, Any]], Callable[[Any], Any]]] = {
    "chat": (
        lambda model, prompt, tokens: {
            "model": model,
            "messages": [{"role": "user", "content": prompt}],
            "max_tokens": tokens,
            "temperature": 0,
        },
        _message,
    ),
    "completions": (
        lambda model, prompt, tokens: {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0},
        lambda answer: answer["choices"][0]["text"],
    ),
    "embeddings": (
        lambda model, prompt, tokens: {"model": model, "input": prompt},
        lambda answer: answer["data"][0]["embedding"],
    ),
}
"""Operation -> how it is asked, and what of the answer must be there."""
