"""What Prometheus knows of models: each query asked once, one question at a time, and a verdict on each model whose health it is.

A Prometheus that is silent says nothing of a model: verdicts hold for a while, then every model counts as well again, for traffic
is worth more than a sign that nobody gives.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from urllib.parse import quote

import msgspec

from sits.engines.base import Engine
from sits.engines.vitals import query_series
from sits.gateway.vitals_troubles import Outcome, Troubles
from sits.gateway.vitals_words import Labels, Redact, figure, shown, which
from sits.inner.errors import Code, SitsError
from sits.ports.ending import end
from sits.resilience.breakers.outliers import most
from sits.resilience.pressure.asking import get
from sits.resources.vitals import HealthSpec

SILENT_SECONDS = 15.0
SILENT_TIMES = 3.0
"""An answer counts so long, or so many times the pace where that is longer."""
SILENT = "Prometheus has been silent for too long"
OVER = "it has no health query any more"


class Judge:
    """Whether a model is sick, by the answers to its query over time. Pure; `now` is seconds of a monotonic clock.

    A change of mind takes `forSeconds` without an answer that speaks against it.
    """

    __slots__ = ("_redact", "_spec", "_turning", "reason", "sick", "since", "values")

    def __init__(self, spec: HealthSpec, redact: Redact = str) -> None:
        self._spec = spec
        self._redact = redact
        self._turning: float | None = None
        self.sick = False
        self.reason = ""
        self.since: float = 0.0
        """When it became sick, or well again."""
        self.values: Sequence[float] = ()

    def look(self, values: Sequence[float], now: float, labels: Sequence[Labels] = ()) -> bool:
        """Take an answer (empty: no data), and whose its values are; whether that changed the verdict."""
        self.values = values
        reason = self._unwell(values, labels)
        if reason is None or bool(reason) == self.sick:
            self._turning = None
            if reason:
                self.reason = reason
            return False
        if self._turning is None:
            self._turning = now
        if now - self._turning < self._spec.for_seconds:
            return False
        return self._turn(reason, now)

    def forget(self, now: float) -> bool:
        """Nobody answers any more: it counts as well. Whether that changed the verdict."""
        self._turning = None
        self.values = ()
        return self._turn("", now) if self.sick else False

    def _turn(self, reason: str, now: float) -> bool:
        self.sick, self.reason, self.since, self._turning = bool(reason), reason, now, None
        return True

    def _unwell(self, values: Sequence[float], labels: Sequence[Labels]) -> str | None:
        """Why it is unwell by these values; empty when it is well, None when they say nothing."""
        spec = self._spec
        if not values:
            return {"keep": None, "healthy": "", "unhealthy": "its query has no value"}[spec.on_no_data]
        if spec.above is not None and (worst := max(values)) > spec.above:
            beyond = sum(value > spec.above for value in values)
            return f"{figure(worst)} is above {spec.above:g}{which(worst, values, labels, beyond, self._redact)}"
        if spec.below is not None and (worst := min(values)) < spec.below:
            beyond = sum(value < spec.below for value in values)
            return f"{figure(worst)} is below {spec.below:g}{which(worst, values, labels, beyond, self._redact)}"
        return ""


class Question:
    """A query and what came of it last."""

    __slots__ = ("answered", "answers", "due", "every", "labels", "news", "task", "text", "trouble", "values")

    def __init__(self, text: str, every: float, due: float) -> None:
        self.text = text
        self.every = every
        self.due = due
        self.task: asyncio.Task[None] | None = None
        self.values: tuple[float, ...] = ()
        self.labels: tuple[Labels, ...] = ()
        """Of each value."""
        self.answered: float | None = None
        """When it was answered last; None when that is too long ago, or never was."""
        self.answers = 0
        self.news = False
        """Whether there is an answer that nobody has looked at."""
        self.trouble = ""

    @property
    def silent(self) -> float:
        return max(SILENT_SECONDS, SILENT_TIMES * self.every)

    def elsewhere(self, due: float) -> Question:
        """The same for another server. What the one before said last counts on for as long as if it had fallen silent."""
        made = Question(self.text, self.every, due)
        made.values, made.labels, made.news = self.values, self.labels, self.news
        made.answered, made.answers = self.answered, self.answers
        return made

    def forget(self) -> None:
        """What was answered last counts no more."""
        self.answered, self.values, self.labels, self.news = None, (), (), True


class Questions:
    """All queries to the Prometheus server of Settings, each once; `engine_of` makes an engine for it, which is closed here."""

    def __init__(self, engine_of: Callable[[str], Engine], *, clock: Callable[[], float], chance: Callable[[], float]) -> None:
        self.asked: dict[str, Question] = {}
        self.troubles = Troubles()
        self._engine_of = engine_of
        self._clock = clock
        self._chance = chance
        self._url: str | None = None
        self._engine: Engine | None = None
        self._leaving: set[asyncio.Task[None]] = set()

    def take(self, wanted: Mapping[str, float], prometheus: str | None) -> None:
        """From now on these are asked, each so often in seconds. Of a server that cannot be asked, every question says why."""
        now = self._clock()
        if prometheus != self._url:
            self._move(prometheus, now)
        trouble = "" if prometheus is not None else "Settings name no Prometheus server"
        if self._engine is None and prometheus is not None and wanted:
            try:
                self._engine = self._engine_of(prometheus)
            except (ValueError, SitsError) as error:
                trouble = f"Prometheus cannot be asked: {error}"
        self._drop([text for text in self.asked if text not in wanted])
        for text, every in wanted.items():
            found = self.asked.get(text)
            if found is None:
                self.asked[text] = found = Question(text, every, now + self._chance())
            found.every, found.due = every, min(found.due, now + every)
            if trouble:
                found.trouble = trouble
        self.troubles.retain(self.asked)

    def _move(self, prometheus: str | None, now: float) -> None:
        """Another server is to be asked, or none: then nothing counts that was answered."""
        self.troubles.forget()
        before = self.asked
        self.asked = {text: one.elsewhere(now + self._chance()) for text, one in before.items()}
        for one in self.asked.values() if prometheus is None else ():
            one.forget()
        for one in before.values():
            self._cancel(one)
        if self._engine is not None:
            self._aside(self._engine.aclose())
        self._url, self._engine = prometheus, None

    def tick(self, now: float) -> None:
        """Ask what it is time to ask, forget what is too old."""
        for one in self.asked.values():
            if one.answered is not None and now - one.answered > one.silent:
                one.forget()
            if self._engine is None or one.due > now or one.task is not None:
                continue
            one.due = now + one.every
            one.task = asyncio.get_running_loop().create_task(self._ask(self._engine, one))

    async def aclose(self) -> None:
        """End what is under way."""
        await end(*(one.task for one in self.asked.values()))
        self.take({}, None)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def _ask(self, engine: Engine, one: Question) -> None:
        outcome: Outcome = "failed"
        try:
            status, body = await get(engine, f"/api/v1/query?query={quote(one.text, safe='')}")
            # A query that cannot be read is answered with 400 or 422, and the reason as JSON.
            if status not in (200, 400, 422):
                raise SitsError(Code.UPSTREAM_ERROR, f"GET /api/v1/query was answered with {status}")
            outcome = "refused"
            found = query_series(body)
            outcome = "answered"
            one.values, one.labels = tuple(series.value for series in found), tuple(series.labels for series in found)
            one.answered, one.news, one.trouble = self._clock(), True, ""
            one.answers += 1
        except SitsError as error:
            one.trouble = error.message
            if error.code is Code.UPSTREAM_BROKEN:
                outcome = "failed"  # Whatever has answered there, it is no Prometheus.
        finally:
            one.task = None
        self.troubles.heard(one.text, outcome, one.trouble, self._clock())

    def _drop(self, texts: Iterable[str]) -> None:
        for text in list(texts):
            self._cancel(self.asked.pop(text))

    def _cancel(self, one: Question) -> None:
        if one.task is not None:
            one.task.cancel()
            self._leave(one.task)

    def _aside(self, work: Awaitable[None]) -> None:
        async def go() -> None:
            await work

        self._leave(asyncio.get_running_loop().create_task(go()))

    def _leave(self, task: asyncio.Task[None]) -> None:
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


class HealthChange(msgspec.Struct, frozen=True):
    """A model became sick by what Prometheus says, or well again."""

    target: str
    sick: bool
    reason: str
    query: str
    at: float
    """Unix seconds."""


class HealthRow(msgspec.Struct, frozen=True):
    """How a model with a health query is, for people and machines."""

    target: str
    sick: bool
    out: bool
    """Whether it is left alone: not all that are sick may be."""
    reason: str
    values: tuple[float | str, ...]
    """The last ones, ten at the most; `+Inf` and `-Inf` as Prometheus writes them."""
    query: str
    answers: int
    """To the query, so far."""
    unknown: bool
    """Whether no answer to the query counts, so that it counts as well for want of one."""
    since_seconds: float
    """Since the verdict changed."""
    trouble: str


class Verdicts:
    """Every model with a health query: whether it is sick, and who of the sick is left alone."""

    def __init__(self, redact: Redact = str) -> None:
        self._redact = redact
        self.sick: frozenset[str] = frozenset()
        """Whom to leave alone: of each route no more than breakers may leave out, those first who are sick longest."""
        self.reasons: dict[str, str] = {}
        """Why, for each name in `sick`."""
        self._judges: dict[str, tuple[Judge, HealthSpec, Question]] = {}
        self._routes: Sequence[tuple[str, ...]] = ()
        self._most_out = 0.5

    def take(
        self,
        specs: Mapping[str, tuple[HealthSpec, Question]],
        routes: Iterable[Sequence[str]],
        most_out: float,
        now: float,
        wall: float,
    ) -> list[HealthChange]:
        """From now on these are judged. Who is judged by the same words keeps the verdict; others are not sick any more."""
        before, self._judges = self._judges, {}
        for name, (spec, question) in specs.items():
            old = before.get(name)
            same = old is not None and old[1] == spec and old[2].text == question.text
            judge = old[0] if old is not None and same else Judge(spec, self._redact)
            if not same:
                judge.since = now
            self._judges[name] = (judge, spec, question)
        self._routes = [distinct for names in routes if len(distinct := tuple(dict.fromkeys(names))) > 1]
        self._most_out = most_out
        self._choose()
        return [
            HealthChange(name, False, "its health query is another now" if name in specs else OVER, question.text, wall)
            for name, (judge, _, question) in before.items()
            if judge.sick and (name not in self._judges or self._judges[name][0] is not judge)
        ]

    def look(self, now: float, wall: float) -> list[HealthChange]:
        """Judge by the answers that are new."""
        changes = []
        seen = set()
        for name, (judge, _, question) in self._judges.items():
            silent = question.answered is None
            if not question.news and not (silent and judge.sick):
                continue  # No bad verdict stands without an answer that counts, whatever became of the question.
            seen.add(question)
            if judge.forget(now) if silent else judge.look(question.values, now, question.labels):
                reason = judge.reason or (SILENT if silent else "")
                changes.append(HealthChange(name, judge.sick, reason, question.text, wall))
        for question in seen:
            question.news = False
        if changes:
            self._choose()
        return changes

    def out_of(self, names: tuple[str, ...], out: frozenset[str]) -> frozenset[str]:
        """Who of a route is left out, when `out` are already (by their breakers): together no more than may be."""
        room = most(len(set(names)), self._most_out) - len(out)
        more = [name for name in names if name in self.sick and name not in out]
        return out if room <= 0 or not more else out.union(more[:room])

    def rows(self, now: float) -> list[HealthRow]:
        """All models with a health query, by name."""
        return [
            HealthRow(
                target=name,
                sick=judge.sick,
                out=name in self.sick,
                reason=judge.reason,
                values=tuple(map(shown, judge.values[:10])),
                query=question.text,
                answers=question.answers,
                unknown=question.answered is None,
                since_seconds=round(now - judge.since, 3),
                trouble=question.trouble,
            )
            for name, (judge, _, question) in sorted(self._judges.items())
        ]

    def _choose(self) -> None:
        sick = sorted((judge.since, name) for name, (judge, _, _) in self._judges.items() if judge.sick)
        chosen: set[str] = set()
        for _, name in sick:
            mine = [route for route in self._routes if name in route]
            if all(len(chosen.intersection(route)) < most(len(route), self._most_out) for route in mine):
                chosen.add(name)
        self.sick = frozenset(chosen)
        self.reasons = {name: self._judges[name][0].reason for name in chosen}
