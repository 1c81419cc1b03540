"""What the metrics of triggers are now: read from this machine, from the gateway, from model servers and from Prometheus.

Files of the kernel are read on the spot. Servers are asked aside, each once however many policies look at it, and a figure of
theirs is what they said last, for as long as that is not too old.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import quote

from sits.engines.base import Engine
from sits.inner.errors import Code, SitsError
from sits.resilience.pressure.asking import Asked, get
from sits.resilience.pressure.exposition import FAMILIES, figures_of, query_value
from sits.resilience.pressure.machine import Lag, Machine
from sits.resources.pressures import QUERY, metric_of
from sits.routing.target import Target

Gauge = Callable[[], float | None]
Reading = tuple[float | None, str]
"""The value, or None; why there is none, or an old one."""
_SERVED = frozenset(("kv_cache", "model_queue"))


class Readings:
    """The sources of every metric that a trigger may name. `aclose` ends what is under way.

    `gauges` are what the gateway itself knows; `ask_prometheus` makes an engine for a server at a base URL, which is closed here.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        gauges: Mapping[str, Gauge],
        ask_prometheus: Callable[[str], Engine],
        run: Path | None = None,
        root: Path = Path("/"),
    ) -> None:
        self._clock = clock
        self._gauges = gauges
        self._ask_prometheus = ask_prometheus
        self._machine = Machine(root, run)
        self._lag: Lag | None = None
        self._servers: dict[str, tuple[Target, Asked]] = {}
        """Model -> whom to ask for its figures."""
        self._queries: dict[str, Asked] = {}
        self._prometheus: tuple[str, Engine] | None = None
        self._here: dict[str, float | None] = {}
        """What this machine said in this round: some readings are of the time since the last one, so each is taken once."""
        self._leaving: set[asyncio.Task[None]] = set()

    def want(
        self, metrics: Collection[str], targets: Mapping[str, Target], prometheus: str | None, local_memory_mib: int | None
    ) -> None:
        """From now on these are read. Servers that are asked already go on being asked."""
        self._machine.local_limit = local_memory_mib * 1024 * 1024 if local_memory_mib is not None else None
        self._want_prometheus(prometheus)
        self._want_queries({metric.removeprefix(QUERY).strip() for metric in metrics if metric.startswith(QUERY)})
        known = [found for metric in metrics if (found := metric_of(metric)) is not None]
        self._want_servers({model for metric, model in known if metric.by_model}, targets)
        self._want_lag(any(metric.name == "loop_lag_ms" for metric, _ in known))

    def begin(self, now: float) -> None:
        """A round begins: ask whom it is time to ask."""
        self._here.clear()
        for _, asked in self._servers.values():
            asked.look(now, self._clock)
        for asked in self._queries.values():
            asked.look(now, self._clock)

    def read(self, metric: str, now: float) -> Reading:
        """What is known of a metric now."""
        if metric.startswith(QUERY):
            return self._query(metric.removeprefix(QUERY).strip(), now)
        found = metric_of(metric)
        if found is None:
            return None, "nothing that is watched"
        name, model = found[0].name, found[1]
        if name in _SERVED:
            return self._served(name, model, now)
        if name == "accelerator_memory":
            return self._accelerator(model, now)
        return self._plain(name)

    def trouble(self, metric: str, now: float) -> str:
        """Why there is no reading of a metric, or an old one; empty when all is well."""
        return self.read(metric, now)[1]

    async def aclose(self) -> None:
        if self._lag is not None:
            self._lag.stop()
        self._want_servers(set(), {})
        self._want_queries(set())
        self._want_prometheus(None)
        await asyncio.gather(*self._leaving)

    # Values

    def _plain(self, name: str) -> Reading:
        if name not in self._here:
            self._here[name] = self._gauge(name)()
        value = self._here[name]
        return value, "" if value is not None else "this machine does not tell"

    def _gauge(self, name: str) -> Gauge:
        machine = self._machine
        own: dict[str, Gauge] = {
            "process_memory": machine.process_memory,
            "host_memory": machine.host_memory,
            "host_cpu": machine.host_cpu,
            "local_memory": machine.local_memory,
            "accelerator_memory": machine.accelerator_memory,
            "accelerator_use": machine.accelerator_use,
        }
        if name == "loop_lag_ms" and self._lag is not None:
            return self._lag.take
        return self._gauges.get(name) or own.get(name) or _nothing

    def _served(self, figure: str, model: str, now: float) -> Reading:
        values, troubles = [], []
        for name, (_, asked) in self._servers.items():
            if model in ("", name):
                value = asked.known(now).get(figure)
                if value is not None:
                    values.append(value)
                if asked.trouble:
                    troubles.append(f"{name}: {asked.trouble}")
        if not values:
            return None, "; ".join(troubles) or (f"the server of {model} does not tell" if model else "no model server tells")
        return (max(values) if figure == "kv_cache" else sum(values)), "; ".join(troubles)

    def _accelerator(self, model: str, now: float) -> Reading:
        value, trouble = self._served("kv_cache", model, now)
        if value is not None or model:
            return value, trouble
        here, _ = self._plain("accelerator_memory")
        return (here, "") if here is not None else (None, trouble)

    def _query(self, query: str, now: float) -> Reading:
        asked = self._queries.get(query)
        if asked is None:
            return None, "Settings name no Prometheus server"
        value = asked.known(now).get("value")
        return value, asked.trouble or ("" if value is not None else "the query has no result")

    # Whom to ask

    def _want_prometheus(self, url: str | None) -> None:
        if self._prometheus is not None and self._prometheus[0] != url:
            self._want_queries(set())
            self._aside(self._prometheus[1].aclose())
            self._prometheus = None
        if url is not None and self._prometheus is None:
            self._prometheus = (url, self._ask_prometheus(url))

    def _want_queries(self, wanted: set[str]) -> None:
        for query in [query for query in self._queries if query not in wanted]:
            self._aside(self._queries.pop(query).aclose())
        if self._prometheus is not None:
            for query in wanted - self._queries.keys():
                self._queries[query] = Asked(partial(_ask_query, self._prometheus[1], query))

    def _want_servers(self, models: set[str], targets: Mapping[str, Target]) -> None:
        """`models` with an empty name in it: all."""
        wanted = targets.keys() if "" in models else models & targets.keys()
        for name in [name for name, (target, _) in self._servers.items() if name not in wanted]:
            self._aside(self._servers.pop(name)[1].aclose())
        for name in wanted:
            target = targets[name]
            if target.provider not in FAMILIES:
                continue
            before = self._servers.get(name)
            if before is not None and before[0].engine is target.engine and before[0].fixed == target.fixed:
                continue
            if before is not None:
                self._aside(before[1].aclose())
            self._servers[name] = (target, Asked(partial(_ask_server, target)))

    def _want_lag(self, wanted: bool) -> None:
        if wanted:
            self._lag = self._lag or Lag(asyncio.get_running_loop())
            self._lag.start()
        elif self._lag is not None:
            self._lag.stop()

    def _aside(self, work: Awaitable[None]) -> None:
        async def go() -> None:
            await work

        task = asyncio.get_running_loop().create_task(go())
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)


def _nothing() -> None:
    return None


async def _ask_server(target: Target) -> Mapping[str, float]:
    """What a model server exposes on /metrics.

    Raises:
        SitsError: it does not answer, or exposes nothing of what is wanted.
    """
    status, body = await get(target.engine, "/metrics", target.fixed)
    if status != 200:
        raise SitsError(Code.UPSTREAM_ERROR, f"GET /metrics was answered with {status}")
    found = figures_of(target.provider, body.decode("utf-8", "replace"))
    if not found:
        raise SitsError(Code.UPSTREAM_ERROR, "its /metrics has none of " + ", ".join(FAMILIES[target.provider]))
    return {str(figure): value for figure, value in found.items()}


async def _ask_query(engine: Engine, query: str) -> Mapping[str, float]:
    """The value of a query at the Prometheus server.

    Raises:
        SitsError: it does not answer, or refuses the query.
    """
    status, body = await get(engine, f"/api/v1/query?query={quote(query, safe='')}")
    # A query that cannot be read is answered with 400 or 422, and the reason as JSON.
    if status not in (200, 400, 422):
        raise SitsError(Code.UPSTREAM_ERROR, f"GET /api/v1/query was answered with {status}")
    value = query_value(body)
    return {} if value is None else {"value": value}
