"""A snapshot made ready for requests: every name with its targets, every target with its engine.

A request takes the table that is in force when it arrives and keeps it to its end. `live` counts those requests, so that
engines that only an old table uses are closed once nobody can need them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from sits import __version__, dialects
from sits.engines.base import Deadlines, Engine, Headers, field_lines
from sits.engines.unusable import UnusableEngine
from sits.gateway.choices import compiled
from sits.gateway.conduct import Conduct
from sits.gateway.counting import Fitness
from sits.gateway.insight import Insight
from sits.gateway.quotas import QuotaTable
from sits.gateway.recall import route_cache
from sits.gateway.standing import Standing
from sits.gateway.wire import lines_of
from sits.inner.errors import Code, SitsError
from sits.resilience.colours import Palette
from sits.resources.kinds import DefaultDeadlines, Model
from sits.resources.secrets import SecretError, resolve
from sits.resources.snapshot import Resolved, Snapshot
from sits.routing.contract import Contract
from sits.routing.plan import Choice
from sits.routing.target import Target, capabilities_of
from sits.security.keys import Authenticator
from sits.state.ledger.price import price_of

EngineOf = Callable[[Model, Headers], Engine]
"""A model and its outbound headers (a probe needs the credential) -> the engine to ask it by."""
USER_AGENT = f"sits/{__version__}".encode()


class Table:
    """What requests are served by. `secrets` are the credentials in it, for the redactor."""

    __slots__ = (
        "_choices",
        "_loop",
        "_standing",
        "authenticator",
        "breakers",
        "caches",
        "conducts",
        "engines",
        "live",
        "palette",
        "prices",
        "quotas",
        "requested",
        "secrets",
        "snapshot",
        "targets",
    )

    def __init__(
        self,
        snapshot: Snapshot,
        authenticator: Authenticator,
        engine_of: EngineOf,
        loop: asyncio.AbstractEventLoop,
        standing: Standing,
    ) -> None:
        self._loop = loop
        self.snapshot = snapshot
        self.authenticator = authenticator
        self.live = 0
        self.secrets: list[str] = []
        self._standing = standing
        self.targets = {name: self._target(model, engine_of) for name, model in snapshot.models.items()}
        self.engines = frozenset(target.engine for target in self.targets.values())
        made: dict[int, Choice] = {}
        self._choices: dict[str, Choice] = {}
        for name, resolved in snapshot.names.items():
            choice = made.get(id(resolved))
            if choice is None:
                choice = made[id(resolved)] = self._choice(resolved)
            self._choices[name] = choice
        self.requested = {name: lines_of([(b"x-sits-requested", name.encode())]) for name in self._choices}
        """What answers say of the name that was asked for, in wire form."""
        self.caches = {name: cache for name, resolved in snapshot.names.items() if (cache := route_cache(resolved)) is not None}
        """What is kept, by the names that can be asked for; empty where no route keeps anything."""
        settings = snapshot.settings
        self.palette = Palette(settings.colours)
        """The colours that metrics tell apart."""
        self.breakers = {name: standing.breaker(model, settings) for name, model in snapshot.models.items()}
        self.conducts = {choice.name: self._conduct(choice, standing) for choice in made.values()}
        """How each choice deals with what goes wrong, by its own name."""
        self.prices = {name: price_of(model.spec.cost) for name, model in snapshot.models.items()}
        limited = {name: route.spec.quota for name, route in snapshot.routes.items() if route.spec.quota is not None}
        self.quotas = QuotaTable(tuple(snapshot.keys.values()), limited, snapshot.settings)

    @property
    def names(self) -> Mapping[str, Choice]:
        return self._choices

    def choice(self, name: str) -> Choice:
        """What a requested name stands for.

        Raises:
            SitsError: `model_not_found`, with the nearest name.
        """
        found = self._choices.get(name)
        if found is None:
            nearest = self.snapshot.nearest_name(name)
            hint = f"; did you mean {nearest!r}?" if nearest is not None else "; GET /v1/models lists what there is"
            raise SitsError(Code.MODEL_NOT_FOUND, f"there is no model {name[:200]!r}{hint}", param="model")
        return found

    def _choice(self, resolved: Resolved) -> Choice:
        try:
            return compiled(resolved, self.targets, self.snapshot, self._standing)
        except ValueError as error:
            raise SitsError(Code.INVALID_REQUEST, f"route {resolved.name}: {error}") from error

    def _conduct(self, choice: Choice, standing: Standing) -> Conduct:
        insight = Insight(self.snapshot.names[choice.name], choice, self.snapshot) if choice.thinks else None
        fitness = Fitness(choice.targets, choice.route.spec.context if choice.route is not None else None)
        gate = standing.gate(choice.name, self.snapshot.settings)
        return Conduct(choice.route, gate, insight, fitness if fitness.any else None)

    def _target(self, model: Model, engine_of: EngineOf) -> Target:
        """The target of a model; what is missing for it is said by its engine, so that all others still serve."""
        spec, name = model.spec, model.metadata.name
        fixed = b""
        contract: Contract | None = None
        try:
            headers = self._headers(model)
            fixed = field_lines(headers)
            contract = Contract.of(model)
            engine = engine_of(model, headers)
        except (SecretError, SitsError, ValueError) as error:
            engine = UnusableEngine(f"{name} cannot be used: {error}", self._loop)
        return Target(
            name=name,
            upstream_model=spec.upstream_model or name,
            provider=spec.engine,
            dialect=dialects.upstream(spec.engine),
            engine=engine,
            capabilities=capabilities_of(model),
            deadlines=deadlines_of(model, self.snapshot.settings.deadlines),
            fixed=fixed,
            told=lines_of([(b"x-sits-served", (spec.upstream_model or name).encode()), (b"x-sits-target", name.encode())]),
            model=model,
            contract=contract,
            state=self._standing.state(model),
        )

    def _headers(self, model: Model) -> Headers:
        spec = model.spec
        out: Headers = [(b"content-type", b"application/json"), (b"user-agent", USER_AGENT)]
        if spec.api_key is not None:
            secret = self._secret(spec.api_key)
            if spec.engine == "anthropic":
                out.append((b"x-api-key", secret.encode()))
            else:
                out.append((b"authorization", b"Bearer " + secret.encode()))
        for field, value in spec.headers.items():
            if value.startswith(("env:", "file:")):
                value = self._secret(value)
            out.append((field.lower().encode(), value.encode()))
        return out

    def _secret(self, reference: str) -> str:
        secret = resolve(reference)
        self.secrets.append(secret)
        return secret


def deadlines_of(model: Model, default: DefaultDeadlines) -> Deadlines:
    """The model's own deadlines, the settings' where it has none."""
    own = model.spec.deadlines
    return Deadlines(
        own.connect or default.connect,
        own.headers or default.headers,
        own.first_token or default.first_token,
        own.idle or default.idle,
        own.total or default.total,
    )
