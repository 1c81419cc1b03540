"""Quotas on the way of a request: reserve what it may use at the most, settle for what it did use when it is over.

Who is limited is compiled with the table: the limits of a key, its team and the route, in one list, reserved in one step. A
table without any quota has none of this on its way.
"""

from __future__ import annotations

from collections.abc import Coroutine, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from sits.gateway.account import usage_of
from sits.inner.estimate import BYTES_A_TOKEN
from sits.resources.keys import Key, Quota
from sits.resources.kinds import SettingsSpec
from sits.state.ledger.price import Price
from sits.state.limits.base import Limit, Limiter, Refusal, Reservation
from sits.state.limits.counted import CountedLimits

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange

DEFAULT_OUTPUT = 1024
"""Tokens that are reserved for an answer when the client does not say how long it may get."""
LARGEST_INPUT = 128 * 1024
"""Tokens that are reserved for a prompt at the most: beyond it are images and files, not words."""
MARGIN_SECONDS = 60.0
"""How long a reservation outlives the deadline of its request, should nobody settle it."""
KEPT = 4096
NANO = 1_000_000_000


class Quotas(msgspec.Struct, frozen=True):
    """The limits that a request meets, and what each of them counts: `requests`, `tokens`, `cost` or `concurrent`."""

    limits: tuple[Limit, ...]
    kinds: tuple[str, ...]

    def amounts(self, tokens: int, cost: int) -> list[int]:
        """What to reserve, or what was used, for each limit."""
        held = {"requests": 1, "concurrent": 1, "tokens": tokens, "cost": cost}
        return [held[kind] for kind in self.kinds]

    def use(self) -> Quotas | None:
        """Those of tokens and costs alone; None when there are none."""
        rows = [pair for pair in zip(self.limits, self.kinds, strict=True) if pair[1] in ("tokens", "cost")]
        return Quotas(tuple(limit for limit, _ in rows), tuple(kind for _, kind in rows)) if rows else None

    @property
    def counts_use(self) -> bool:
        """Whether tokens or costs are counted, so that an estimate is needed."""
        return "tokens" in self.kinds or "cost" in self.kinds


class QuotaTable:
    """Which limits a key meets on a route."""

    __slots__ = ("_found", "_keys", "_routes", "_settings", "any")

    def __init__(self, keys: Sequence[Key], routes: dict[str, Quota], settings: SettingsSpec) -> None:
        self._keys = {key.metadata.name: key for key in keys}
        self._routes = routes
        self._settings = settings
        self._found: dict[tuple[str | None, str], Quotas | None] = {}
        self.any = bool(routes) or any(
            key.spec.quota is not None or key.spec.team in settings.teams for key in self._keys.values()
        )

    def of(self, key: str | None, route: str) -> Quotas | None:
        """The limits of a key on a route; None when there are none."""
        place = (key, route)
        try:
            return self._found[place]
        except KeyError:
            if len(self._found) >= KEPT:
                self._found.clear()
            found = self._found[place] = self._compile(key, route)
            return found

    def _compile(self, name: str | None, route: str) -> Quotas | None:
        rows: list[tuple[Limit, str]] = []
        key = self._keys.get(name) if name is not None else None
        if key is not None:
            if key.spec.quota is not None:
                rows += _rows(f"key:{name}", key.spec.quota)
            team = key.spec.team
            if team is not None and team in self._settings.teams:
                rows += _rows(f"team:{team}", self._settings.teams[team])
        if route in self._routes:
            rows += _rows(f"route:{route}", self._routes[route])
        if not rows:
            return None
        return Quotas(tuple(limit for limit, _ in rows), tuple(kind for _, kind in rows))


def _rows(whose: str, quota: Quota) -> Iterator[tuple[Limit, str]]:
    if quota.requests_per_minute is not None:
        yield Limit(f"{whose}/requests/minute", quota.requests_per_minute, 60.0), "requests"
    if quota.tokens_per_minute is not None:
        yield Limit(f"{whose}/tokens/minute", quota.tokens_per_minute, 60.0), "tokens"
    if quota.tokens_per_day is not None:
        yield Limit(f"{whose}/tokens/day", quota.tokens_per_day, 86400.0), "tokens"
    if quota.dollars_per_day is not None:
        yield Limit(f"{whose}/nanodollars/day", round(quota.dollars_per_day * NANO), 86400.0), "cost"
    if quota.dollars_per_month is not None:
        yield Limit(f"{whose}/nanodollars/month", round(quota.dollars_per_month * NANO), "month"), "cost"
    if quota.concurrent is not None:
        yield Limit(f"{whose}/concurrent", quota.concurrent, "forever"), "concurrent"


class _Size(msgspec.Struct, gc=False):
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    max_output_tokens: int | None = None
    n: int | None = None


_size = msgspec.json.Decoder(_Size).decode


def most(body: bytes, operation: str) -> tuple[int, int]:
    """Tokens that a request may use at the most: of its prompt, by the size of the body, and of its answers."""
    prompt = min(len(body) // BYTES_A_TOKEN + 1, LARGEST_INPUT)
    if operation in ("embeddings", "count_tokens"):
        return prompt, 0
    try:
        size = _size(body)
    except (msgspec.MsgspecError, RecursionError):
        return prompt, DEFAULT_OUTPUT
    asked = size.max_completion_tokens or size.max_tokens or size.max_output_tokens or DEFAULT_OUTPUT
    return prompt, max(0, asked) * max(1, size.n or 1)


class Held(msgspec.Struct, frozen=True):
    """What an exchange has reserved."""

    quotas: Quotas
    reservation: Reservation


async def reserve(x: Exchange, quotas: Quotas) -> None:
    """Reserve what the request may use; the head of its answer says what is left.

    Raises:
        SitsError: `rate_limited`, a limit is reached; `state_unavailable`, where that is declared.
    """
    tokens = cost = 0
    if quotas.counts_use:
        prompt, answer = most(x.request.body, x.operation)
        tokens = prompt + answer
        cost = max((price_for(x.table.prices[target.name], prompt, answer) for target in targets(x)), default=0)
        if x.conduct is not None and x.conduct.lateness is not None:
            tokens, cost = 2 * tokens, 2 * cost  # Two may be asked at once, and both may bill.
    assert x.choice is not None
    total = x.choice.total or max((target.deadlines.total for target in targets(x)), default=600.0)
    found = await x.service.limits.reserve(quotas.limits, quotas.amounts(tokens, cost), now=x.wall, ttl=total + MARGIN_SECONDS)
    if isinstance(found, Refusal):
        raise found.error()
    x.held = Held(quotas, found)
    x.more += b"".join(_lines(quotas, found, x.wall))


def targets(x: Exchange) -> Sequence[Any]:
    return x.plan.targets if x.plan is not None else ()


def price_for(price: Price, prompt: int, answer: int) -> int:
    """Nano-dollars for so many tokens, rounded up."""
    return -(-(prompt * price.input + answer * price.output) // 1000)


_SAID = {"requests": b"requests", "tokens": b"tokens"}


def _lines(quotas: Quotas, reservation: Reservation, now: float) -> Iterator[bytes]:
    """`x-ratelimit-*` as OpenAI has them, for the tightest limit of each kind."""
    tightest: dict[bytes, tuple[int, int, float]] = {}
    for limit, kind, left, ends in zip(quotas.limits, quotas.kinds, reservation.remaining, reservation.windows, strict=True):
        name = _SAID.get(kind)
        if name is not None and (name not in tightest or left < tightest[name][1]):
            tightest[name] = (limit.cap, left, ends - now)
    for name, (cap, left, resets) in tightest.items():
        yield b"x-ratelimit-limit-%b: %d\r\nx-ratelimit-remaining-%b: %d\r\nx-ratelimit-reset-%b: %.0fs\r\n" % (
            name,
            cap,
            name,
            max(0, left),
            name,
            max(0.0, resets),
        )


def settled(x: Exchange, held: Held, limits: Limiter) -> Coroutine[Any, Any, None]:
    """Give back what was not used: to be awaited by somebody whom no request waits for."""
    tokens = cost = 0
    if held.quotas.counts_use:
        for attempt in x.attempts:
            usage = usage_of(x, attempt)  # as in the ledger, estimates and all
            if usage is not None:
                tokens += (usage.input or 0) + (usage.output or 0)
                cost += x.table.prices[attempt.target.name].of(usage) or 0
        if x.beside is not None:
            tokens += x.beside.tokens
            cost += x.beside.cost
    used = held.quotas.amounts(tokens, cost)
    for place, kind in enumerate(held.quotas.kinds):
        if kind == "concurrent":
            used[place] = 0
    now = x.wall + ((x.ended or perf_counter()) - x.admitted)
    return limits.settle(held.reservation, used, now=now)


def settle_before_the_end(x: Exchange) -> None:
    """Settle before the client has the last byte, where the limits are on this machine: a process that is killed the moment after
    has counted what its clients have seen. Shared limits are settled behind the answer, which nobody has to wait for."""
    limits = x.service.limits
    if x.held is None or not isinstance(limits, CountedLimits):
        return
    held, x.held = x.held, None
    settling = settled(x, held, limits)
    try:
        settling.send(None)
    except StopIteration:
        return
    settling.close()  # These limits never wait.
