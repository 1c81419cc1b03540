"""Asking a shadow: another model, behind an answer that the client has.

    draw      before the models are asked: whether this request is to be shadowed, so that a stream is copied
    follow    after the answer: the shadow is asked in an exchange of its own, to nobody
    pages     what came of it

Nothing of it touches who asked: the shadow is begun when the answer has gone, on a later turn of the loop; it takes no place, no
quota and no cache of a client, has a trace and a ledger entry of its own (no key, requested as `shadow:ROUTE`), and is the first
thing that is left out when there is much to do. Whatever goes wrong is counted, and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Mapping
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from sits import dialects
from sits.dialects.peek import has_image
from sits.gateway import spine
from sits.gateway.billing import bill
from sits.gateway.conduct import Conduct
from sits.gateway.drive import Drive
from sits.gateway.exchange import Exchange
from sits.gateway.pages import Answer, Pages, Visit, json_answer
from sits.gateway.quotas import NANO, Quotas, reserve
from sits.gateway.renewal import Nowhere, again
from sits.gateway.running import run
from sits.gateway.wire import Request
from sits.inner.ask import Operation
from sits.inner.errors import Code, SitsError
from sits.inner.event import Usage
from sits.resilience.colours import Tint
from sits.resilience.shadow import Lane, Reason, Review, Said, Scrubber, Shadows, Unscrubbable, compare, cut, read
from sits.resources.reliability import ShadowSpec
from sits.routing.plan import Plan
from sits.routing.target import Target, operation_capability
from sits.state.cache import replay
from sits.state.limits.base import Limit

if TYPE_CHECKING:
    from sits.gateway.service import Service
    from sits.gateway.siblings import Siblings
    from sits.resilience.shadow.scrub import Steps
    from sits.state.cache.semantic.embedder import Embedder

_log = logging.getLogger("sits.gateway")

VERSION = b"x-shadow-version"
SHADOWED = frozenset(("chat", "completions", "responses", "messages", "embeddings"))
LARGEST_REQUEST = 256 * 1024
"""Bytes of a request that is shadowed: reading and scrubbing a larger one would take time from those who wait."""
LARGEST_ANSWER = 256 * 1024
"""Bytes of an answer that is compared; of a stream twice as many, since its framing takes more than half."""
MOST = 64
"""Under way in a process, whatever the routes say."""
BREATH_SECONDS = 0.001
"""After so much work on the loop whoever else waits has a turn."""
DAY = 86400.0
T = TypeVar("T")
_fields = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_encode = msgspec.json.Encoder().encode

Alarmed = Callable[[Lane, float], None]
"""Hears that an alarm begins: whose, and the rate of differences."""
Counted = Callable[[str, str], None]
"""Counts an outcome: route, and `same`, `differs`, `failed`, `unread`, or `left_out_` and the reason."""


class Given(msgspec.Struct, frozen=True):
    """What the client has been answered, and what is needed to ask it once more."""

    request: Request
    operation: Operation
    id: str
    target: str
    pieces: tuple[bytes, ...]
    streamed: bool
    usage: Usage | None
    tint: Tint
    choice: Any
    total: float | None


class Shadowing:
    """The shadows of a process. `busy`: whether there is too much to do for what nobody waits for."""

    def __init__(
        self,
        service: Service,
        *,
        busy: Callable[[], bool] = lambda: False,
        counted: Counted = lambda route, outcome: None,
    ) -> None:
        self._service = service
        self._busy = busy
        self._counted = counted
        self._alarmed: Alarmed | None = None
        self._conduct = Conduct(None)
        self._under_way: set[Exchange] = set()
        self._embedder: Embedder | None = None
        self.trouble = "the embedder is not loaded"
        """Why answers are compared without embeddings; empty when they are not."""
        self.shadows = Shadows()
        self.closed = False

    def on_alarm(self, alarmed: Alarmed) -> None:
        """Have somebody hear when an alarm begins."""
        self._alarmed = alarmed

    def __len__(self) -> int:
        return len(self._under_way)

    async def load(self) -> None:
        """Have an embedder, if one is installed: to be awaited once a table has a shadow. Safe to repeat."""
        if self._embedder is not None:
            return
        from sits.state.cache.semantic.embedder import WordLlama

        try:
            self._embedder = await asyncio.to_thread(WordLlama)
        except SitsError as error:
            self.trouble = f"answers are compared by structure only: {error.message}"
        else:
            self.trouble = ""

    def declare(self, conducts: Mapping[str, Conduct]) -> None:
        """This is in force: forget the routes that have no shadow any more, and have an embedder if one does."""
        routes = [name for name, conduct in conducts.items() if conduct.shadow is not None]
        self.shadows.retain(routes)
        if routes and self._embedder is None:
            self._service.caches.behind(self.load(), must=True)

    def draw(self, x: Exchange, spec: ShadowSpec) -> None:
        """Decide whether a request of a route with a shadow is to be shadowed."""
        if self.closed or x.operation not in SHADOWED or x.choice is None:
            return
        target = x.table.targets.get(spec.model)
        version = target.model.spec.version if target is not None else None
        lane = self.shadows.draw(x.choice.name, spec, version or spec.model, self._service.random())
        if lane is None:
            return
        if len(x.request.body) > LARGEST_REQUEST:
            self._leave_out(lane, "too_large")
            return
        x.shadow = lane
        if x.stream:
            x.copy_up_to(2 * LARGEST_ANSWER)

    def follow(self, x: Exchange) -> None:
        """The client has its answer: ask the shadow, some time soon, if this is an answer that can be compared."""
        lane, attempt = x.shadow, x.attempts[-1] if x.attempts else None
        x.shadow = None
        if lane is None or attempt is None or attempt.error is not None or x.error is not None or x.gone:
            return
        target = x.table.targets.get(lane.model)
        if target is None or attempt.target is target:
            self._leave_out(lane, "same_model")
            return
        pieces = tuple(x.copy) if x.stream and x.copy is not None else (attempt.body,)
        if (x.stream and x.copy is None) or (not x.stream and len(attempt.body) > LARGEST_ANSWER):
            self._leave_out(lane, "too_large")
            return
        if self.closed:
            self._leave_out(lane, "drained")
        elif self._busy():
            self._leave_out(lane, "overload")
        elif len(self._under_way) >= MOST or not lane.enter():
            self._leave_out(lane, "busy")
        else:
            given = Given(
                x.request, x.operation, x.id, attempt.target.name, pieces, x.stream, attempt.usage, x.tint, x.choice, x.total
            )
            self._begin(x, given, lane, target)

    def end(self) -> None:
        """Begin none any more and end those under way: nobody waits for them. Safe to repeat."""
        self.closed = True
        for x in list(self._under_way):
            x.gone = True
            x.cut(SitsError(Code.DRAINING, "the gateway is shutting down; a shadow is not waited for"))

    def compared(self, model: str) -> tuple[int, int]:
        """Answers of a model, as a shadow, that were compared in the last hour, and how many of them differ."""
        return self.shadows.compared(model, perf_counter())

    def alarm(self, model: str) -> bool:
        """Whether nothing may be switched to this model now: more of its answers differ than its routes allow."""
        return self.shadows.alarmed(model, perf_counter())

    def figures(self) -> Iterator[tuple[str, str, float, bool]]:
        """Route, model, rate of differences and whether an alarm is on, for the gauges."""
        now = perf_counter()
        for lane in self.shadows:
            total, differing = lane.compared(now)
            yield lane.route, lane.model, differing / total if total else 0.0, lane.alarmed(now)

    def _leave_out(self, lane: Lane, reason: Reason) -> None:
        lane.leave_out(reason)
        self._counted(lane.route, f"left_out_{reason}")

    def _begin(self, asked: Exchange, given: Given, lane: Lane, target: Target) -> None:
        service = self._service
        x = Exchange(service, again(given.request), Nowhere(), given.operation, asked.client)
        x.behind = "shadow"
        # The table of the request, whatever is in force by now: its targets are what is compared.
        x.table = asked.table
        x.choice, x.total = given.choice, given.total
        # What passes on to the next hop is a tint's own affair, so the version goes with it.
        x.tint = msgspec.structs.replace(given.tint, fields=(*given.tint.fields, (VERSION, _harmless(lane.version))))
        x.conduct = self._conduct
        x.plan = Plan((target,))
        service.live.add(x)
        x.table.live += 1
        self._under_way.add(x)
        # On a later turn: what the client is to have goes out first.
        service.loop.call_soon(self._drive, x, given, lane, target)

    def _drive(self, x: Exchange, given: Given, lane: Lane, target: Target) -> None:
        x.drive = Drive(self._ask(x, given, lane, target))

    async def _ask(self, x: Exchange, given: Given, lane: Lane, target: Target) -> None:
        scrubber = Scrubber() if lane.spec.scrub else None
        outcome = "failed"
        try:
            x.request.body = await self._quiet(given.request.body, given.operation, scrubber)
            spine.understand(x)
            x.requested = f"shadow:{lane.route}"
            if not _able(x, target):
                raise SitsError(Code.UNSUPPORTED, f"{target.name} cannot do what is asked")
            await self._afford(x, lane)
            attempt = await run(x)
            x.status = 200
            bill(x, None)
            outcome = await self._compare(given, attempt.body, lane, scrubber)
        except Unscrubbable:
            outcome = "left_out_unscrubbable"
            lane.leave_out("unscrubbable")
        except SitsError as error:
            outcome = self._failed(x, error, lane)
        except Exception:
            _log.exception("a defect while asking a shadow", extra={"request_id": x.id})
            x.status, x.error = 500, SitsError(Code.INTERNAL, "a defect of the gateway")
        finally:
            lane.leave()
            self._under_way.discard(x)
            self._counted(lane.route, outcome)
            spine.record(x)

    def _failed(self, x: Exchange, error: SitsError, lane: Lane) -> str:
        """What it is called that the shadow has no answer."""
        error.__traceback__ = error.__cause__ = error.__context__ = None
        x.status, x.error = 499 if x.gone else error.status, error
        if not x.attempts:
            reason: Reason = "budget" if error.code is Code.RATE_LIMITED else "drained" if x.gone else "unable"
            lane.leave_out(reason)
            return f"left_out_{reason}"
        bill(x, error)
        if not x.gone:
            lane.tally.failed += 1
        return "failed"

    async def _afford(self, x: Exchange, lane: Lane) -> None:
        """Hold what it may cost against the money of the day.

        Raises:
            SitsError: `rate_limited`; `state_unavailable`.
        """
        if lane.spec.dollars_per_day is not None:
            limit = Limit(f"shadow:{lane.route}/nanodollars/day", round(lane.spec.dollars_per_day * NANO), DAY)
            await reserve(x, Quotas((limit,), ("cost",)))

    async def _quiet(self, body: bytes, operation: Operation, scrubber: Scrubber | None) -> bytes:
        """The request as the shadow gets it: not streamed, kept by nobody, and without what is personal.

        Raises:
            Unscrubbable: it must not be sent.
        """
        fields = _fields(body)
        fields.pop("stream", None)
        fields.pop("stream_options", None)
        if "store" in fields or operation == "responses":
            fields["store"] = msgspec.Raw(b"false")
        quiet = _encode(fields)
        return quiet if scrubber is None else await self._by_and_by(scrubber.json_by_steps(quiet))

    async def _compare(self, given: Given, second_body: bytes, lane: Lane, scrubber: Scrubber | None) -> str:
        body = _whole(given)
        second = first = None
        if body is not None and len(second_body) <= LARGEST_ANSWER:
            await self._breathe()
            if scrubber is not None and given.operation != "embeddings":
                # By the same scrubber: what has a placeholder in the question has the same one in both answers.
                body = await self._by_and_by(scrubber.json_by_steps(body))
                second_body = await self._by_and_by(scrubber.json_by_steps(second_body))
            first, second = read(given.operation, body), read(given.operation, second_body)
        if first is None or second is None:
            lane.tally.unread += 1
            return "unread"
        await self._breathe()
        comparison = compare(first, second, self._embedder.embed if self._embedder is not None else None)
        now = perf_counter()
        differs, begins = lane.judge(comparison, now)
        if not differs:
            return "same"
        self.shadows.keep(lane, self._review(given, comparison.structure, comparison.distance, first, second))
        if begins:
            total, differing = lane.compared(now)
            message = "shadow %s of route %s: %d of %d answers of the last hour differ, more than the %g allowed"
            _log.warning(message, lane.model, lane.route, differing, total, lane.spec.alarm)
            if self._alarmed is not None:
                self._alarmed(lane, differing / total)
        return "differs"

    def _review(self, given: Given, structure: tuple[str, ...], distance: float | None, first: Said, second: Said) -> Review:
        """The texts of a difference, scrubbed also where the shadow was asked with everything."""
        scrubber = Scrubber()

        def shown(said: Said) -> str:
            calls = "".join(f"\n[{call.name}({', '.join(call.arguments)})]" for call in said.calls)
            try:
                return scrubber.text(cut(said.text + calls))
            except Unscrubbable:
                return ""

        distance = None if distance is None else round(distance, 4)
        colour, experiment = given.tint.noted().get("colour", ""), given.tint.experiment
        now = self._service.wall()
        return Review(now, given.id, given.target, structure, distance, shown(first), shown(second), colour, experiment)

    async def _by_and_by(self, steps: Steps[T]) -> T:
        """Work in steps, with a breath whenever they have taken long."""
        since = perf_counter()
        while True:
            try:
                next(steps)
            except StopIteration as over:
                found: T = over.value
                return found
            if perf_counter() - since > BREATH_SECONDS:
                await self._breathe()
                since = perf_counter()

    async def _breathe(self) -> None:
        loop = self._service.loop
        turn = loop.create_future()
        loop.call_soon(turn.set_result, None)
        await turn


def _able(x: Exchange, target: Target) -> bool:
    """Whether the shadow can do what is asked."""
    assert x.peek is not None
    needs = x.peek.needs | {operation_capability(x.operation)}
    if has_image(x.request.body):
        needs = needs | {"vision"}
    return needs <= target.capabilities


def _whole(given: Given) -> bytes | None:
    """The client's answer in one piece, as a request that is not streamed is answered."""
    body = b"".join(given.pieces)
    if not given.streamed:
        return body
    try:
        ask = dialects.client(given.operation).read(given.request.body)
    except SitsError:
        return None
    return replay.whole(given.operation, body, ask, given.usage)


def _harmless(version: str) -> bytes:
    """A version as a field's value: whoever declares it may write what he likes."""
    kept = "".join(character if character.isascii() and character.isprintable() else "?" for character in version)
    return kept[:200].encode()


class ShadowPages:
    """What came of the shadows, over all workers of the machine."""

    def __init__(self, shadowing: Shadowing, siblings: Callable[[], Siblings]) -> None:
        self._shadowing = shadowing
        self._siblings = siblings

    def add_to(self, pages: Pages) -> None:
        pages.add("GET", "/v1/admin/shadows", self.all, "admin")
        pages.add("GET", "/v1/admin/shadows/{name}", self.one, "admin")

    async def all(self, visit: Visit) -> Answer:
        """GET /v1/admin/shadows: each route's shadow and how its answers compare."""
        lanes, missing = await self._lanes()
        routes = [{name: value for name, value in lane.items() if name != "reviews"} for lane in lanes]
        return json_answer({"data": routes, "embeddings": self._shadowing.trouble or None, "workers_missing": missing})

    async def one(self, visit: Visit) -> Answer:
        """GET /v1/admin/shadows/{route}: one of them, with the differences that wait for a look, newest first."""
        lanes, missing = await self._lanes()
        for lane in lanes:
            if lane["route"] == visit.name:
                lane["reviews"].sort(key=lambda review: -review["at"])
                return json_answer({**lane, "embeddings": self._shadowing.trouble or None, "workers_missing": missing})
        raise SitsError(Code.NOT_FOUND, f"no shadow of a route {visit.name[:200]!r} was asked yet")

    def here(self, _: str) -> bytes:
        """For a sibling: the lanes of this worker."""
        return msgspec.json.encode([self._shown(lane) for lane in self._shadowing.shadows])

    async def _lanes(self) -> tuple[list[dict[str, Any]], int]:
        others, missing = await self._siblings().ask("shadows")
        lanes: dict[str, dict[str, Any]] = {}
        for told in (self.here(""), *others):
            for lane in msgspec.json.decode(told):
                known = lanes.get(lane["route"])
                lanes[lane["route"]] = lane if known is None else _together(known, lane)
        for lane in lanes.values():
            lane["rate"] = lane["differing"] / lane["compared"] if lane["compared"] else None
        return [lanes[route] for route in sorted(lanes)], missing

    def _shown(self, lane: Lane) -> dict[str, Any]:
        now = perf_counter()
        compared, differing = lane.compared(now)
        return {
            "route": lane.route,
            "model": lane.model,
            "version": lane.version,
            "share": lane.spec.share,
            "alarm_above": lane.spec.alarm,
            "alarm": lane.alarmed(now),
            "alarms": lane.alarms,
            "under_way": lane.under_way,
            "compared": compared,
            "differing": differing,
            "tally": msgspec.to_builtins(lane.tally),
            "reviews": msgspec.to_builtins(list(lane.reviews)),
        }


_SUMMED = ("alarms", "under_way", "compared", "differing")


def _together(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Two workers' figures of one route."""
    if one["version"] != other["version"]:
        return one  # One of them has not read the new declaration yet.
    tally: dict[str, Any] = {}
    for name, value in one["tally"].items():
        more = other["tally"][name]
        if isinstance(value, dict):
            tally[name] = {reason: value.get(reason, 0) + more.get(reason, 0) for reason in {*value, *more}}
        else:
            tally[name] = value + more
    summed = {name: one[name] + other[name] for name in _SUMMED}
    alarm = one["alarm"] or other["alarm"]
    return {**one, **summed, "alarm": alarm, "tally": tally, "reviews": one["reviews"] + other["reviews"]}
