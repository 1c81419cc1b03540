"""`kind: InferenceRoute`, the route resource of inference operators, read as is: what it says, as a Route.

There is no one standard of that name. Read are the words that its operators share: `backends` (name, weight, priority,
selector), `defaultBackend`, `selector`, `rules` (match, backends, and conditions `while`), `fallback`, `affinity`, `rateLimit`,
`timeoutSeconds`. What would be lost is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from sits.resources.problem import Fault, Path, did_you_mean, quoted

KIND = "InferenceRoute"
_SPEC = {
    "backends", "backendRefs", "defaultBackend", "selector", "rules", "fallback", "fallbacks", "affinity", "rateLimit",
    "timeoutSeconds", "aliases", "models", "costTracking", "enableLogging",
}  # fmt: skip
_BACKEND = {"name", "model", "weight", "priority", "selector", "engine"}
_RULE = {"name", "match", "backends", "backendRefs", "while", "when"}
_MATCH = {
    "region": "region", "regions": "region", "adapter": "adapter", "loraAdapter": "adapter", "lora": "adapter",
    "adapters": "adapter", "qos": "priority", "priority": "priority", "qosClass": "priority", "domain": "domain",
    "complexity": "complexity", "team": "team", "colour": "colour", "color": "colour",
}  # fmt: skip
_P99, _LOADS = "p99BelowMs", "adapterLoadsAbove"
_WHILE = {
    "p99LatencyMs": _P99, "p99Ms": _P99, "p99BelowMs": _P99, "p99": _P99, "adapterLoadSuccess": _LOADS,
    "adapterLoadSuccessRate": _LOADS, "adapterLoadsAbove": _LOADS,
}  # fmt: skip
_AFFINITY = {"session": "session", "key": "key", "user": "key", "prefix": "prefix", "model": "model", "header": "header"}
_LOST = {
    "experiments": "give the treatment its share as a weight among the backends",
    "modelPattern": "a route is asked for by its own names; give `aliases`, or make a route of this rule",
    "pathPrefix": "a route answers on every endpoint that its models have",
}
"""Words that are known, and have no meaning here."""
_USUAL_WEIGHT = 100
"""Of a backend that says none, beside one that does."""


class Foreign(Exception):
    """It cannot be read as a Route; `faults` say where and why."""

    def __init__(self, faults: list[Fault], route: dict[str, Any] | None) -> None:
        super().__init__("; ".join(fault.message for fault in faults))
        self.faults = faults
        self.route = route
        """The Route that it says without them, where it would say one: they are only keys without a meaning here."""


def as_route(value: Mapping[str, Any], moved: dict[Path, Path] | None = None) -> dict[str, Any]:
    """The Route that an InferenceRoute says. `moved` is filled with the places in it, and where they were written, as far as
    these differ.

    Raises:
        Foreign: something in it has no meaning here.
    """
    reading = _Reading({} if moved is None else moved)
    reading.known(value, (), {"apiVersion", "kind", "metadata", "spec", "status"})
    spec = reading.spec(value.get("spec"), ("spec",))
    metadata = value.get("metadata")
    kept = (
        {key: metadata[key] for key in ("name", "labels", "annotations") if key in metadata} if isinstance(metadata, dict) else {}
    )
    route = {"apiVersion": "sits/v1", "kind": "Route", "metadata": kept, "spec": spec}
    if reading.faults:
        raise Foreign(reading.faults, None if reading.garbled else route)
    return route


Listed = list[tuple[dict[str, Any], Path]]
"""Backends, with `priority` where they have one, and where they were written."""


class _Reading:
    def __init__(self, moved: dict[Path, Path]) -> None:
        self.faults: list[Fault] = []
        self.garbled = False
        """Whether something could not be read that has a meaning."""
        self._moved = moved

    def spec(self, value: Any, at: Path) -> dict[str, Any]:
        fields = self._map(value, at, _SPEC)
        listed: Listed = []
        if fields.get("defaultBackend") is not None:
            where = (*at, "defaultBackend")
            listed.append((self._backend(fields["defaultBackend"], where), where))
        listed += self._backends(fields, at)
        if "selector" in fields:
            where = (*at, "selector")
            listed.append(({"select": self._labels(fields["selector"], where)}, where))
        route: dict[str, Any] = {"backends": self._drawn(listed, (*at, "backends"))}
        named = {name for one in route["backends"] if isinstance(name := one.get("model"), str)}
        self._fallbacks(fields, at, route, named)
        if rules := self._list(fields.get("rules"), (*at, "rules")):
            route["rules"] = [self._rule(rule, (*at, "rules", index), index) for index, rule in enumerate(rules)]
        self._rest(fields, at, route)
        self.garbled |= not listed
        if not listed and not self.faults:
            self._fault(at, "names no backend", "give `backends`, `defaultBackend` or a `selector`")
        return route

    def _drawn(self, listed: Listed, at: Path) -> list[dict[str, Any]]:
        """The backends of a list as those of a route: whose priority comes later is asked when those before fail."""
        first = min((one.get("priority", 0) for one, _ in listed), default=0)
        some = any("weight" in one for one, _ in listed)
        found: list[Any] = []
        for one, where in sorted(listed, key=lambda pair: pair[0].get("priority", 0)):
            plain = {key: part for key, part in one.items() if key != "priority"}
            if one.get("priority", 0) > first:
                plain["weight"] = 0
            elif some:
                plain.setdefault("weight", _USUAL_WEIGHT)
            self._moved[*at, len(found)] = where
            self._moved[*at, len(found), "model"] = (*where, "name")
            found.append(plain)
        return found

    def _rest(self, fields: Mapping[str, Any], at: Path, route: dict[str, Any]) -> None:
        names = [one for key in ("aliases", "models") for one in self._list(fields.get(key), (*at, key))]
        if names:
            route["aliases"] = names
        if fields.get("timeoutSeconds") is not None:
            route["total"] = fields["timeoutSeconds"]
            self._moved[*at, "total"] = (*at, "timeoutSeconds")
        limit = self._map(fields.get("rateLimit"), (*at, "rateLimit"), {"requestsPerMinute", "perUser", "userHeader"})
        if limit.get("perUser"):
            self._fault((*at, "rateLimit", "perUser"), "a route has no quota for each user", "give it to the Key resources")
        elif "requestsPerMinute" in limit:
            route["quota"] = {"requestsPerMinute": limit["requestsPerMinute"]}
            self._moved[*at, "quota", "requestsPerMinute"] = (*at, "rateLimit", "requestsPerMinute")
        if fields.get("enableLogging"):
            hint = "remove it; Settings have `trace` for recording traffic"
            self._fault((*at, "enableLogging"), "what requests and answers say is not logged", hint)
        if fields.get("affinity") is not None:
            self._affinity(fields["affinity"], (*at, "affinity"), route)

    def _affinity(self, value: Any, at: Path, route: dict[str, Any]) -> None:
        """The same model or session stays where it was, by consistent hashing."""
        if isinstance(value, dict):
            self.known(value, at, {"by", "header"})
        by = value.get("by") if isinstance(value, dict) else value
        if not isinstance(by, str) or by not in _AFFINITY:
            self._fault(at, f"{quoted(str(by))} is nothing to go by", "one of " + ", ".join(_AFFINITY))
            return
        chosen: dict[str, Any] = {"by": _AFFINITY[by]}
        if isinstance(value, dict) and "header" in value:
            chosen["header"] = value["header"]
        route |= {"policy": "hash", "hash": chosen}
        self._moved[*at[:-1], "hash"] = at

    def _rule(self, value: Any, at: Path, index: int) -> dict[str, Any]:
        fields = self._map(value, at, _RULE)
        rule: dict[str, Any] = {"name": fields.get("name", f"rule-{index + 1}")}
        match = fields.get("match")
        where = (*at, "match")
        if isinstance(match, list):
            rule["match"] = [self._match(one, (*where, number)) for number, one in enumerate(match)]
        else:
            rule["match"] = self._match(match, where)
        rule["backends"] = self._drawn(self._backends(fields, at), (*at, "backends"))
        for key in ("while", "when"):
            if fields.get(key) is not None:
                rule["while"] = {**rule.get("while", {}), **self._while(fields[key], (*at, key))}
        return rule

    def _match(self, value: Any, at: Path) -> dict[str, Any]:
        fields = self._map(value, at, {*_MATCH, "headers", "qps", "promptTokens"})
        match: dict[str, Any] = {}
        for key, one in fields.items():
            if key in _MATCH:
                found = one if isinstance(one, list) else [one]
                match[_MATCH[key]] = [*match.get(_MATCH[key], []), *found]
                self._moved[*at, _MATCH[key]] = (*at, key)
            elif key == "headers":
                match["headers"] = self._headers(one, (*at, "headers"))
            elif key in ("qps", "promptTokens"):
                band = self._map(one, (*at, key), {"min", "max", "from", "below"})
                ends = {"from": band.get("from", band.get("min")), "below": band.get("below", band.get("max"))}
                match[key] = {name: end for name, end in ends.items() if end is not None}
        return match

    def _headers(self, value: Any, at: Path) -> dict[str, Any]:
        """A map, or the list of the Gateway API: `name`, `value`, `type: Exact`."""
        if isinstance(value, dict):
            return value
        found: dict[str, Any] = {}
        for index, one in enumerate(self._list(value, at)):
            fields = self._map(one, (*at, index), {"name", "value", "type"})
            if fields.get("type", "Exact") != "Exact":
                message = f"{quoted(str(fields['type']))} is not compared here"
                self._fault((*at, index, "type"), message, "write Exact, or end with *")
            found[str(fields.get("name", ""))] = fields.get("value", "")
        return found

    def _while(self, value: Any, at: Path) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, one in self._map(value, at, set(_WHILE)).items():
            if key not in _WHILE:
                continue
            name = _WHILE[key]
            number = _number(one, "<" if name == _P99 else ">")
            if number is None:
                wanted = "`< 1200`, in milliseconds" if name == _P99 else "`> 99.95 %`"
                self._fault((*at, key), f"{quoted(str(one))} is no such figure", f"write it like {wanted}")
                continue
            found[name] = number / 100.0 if name == _LOADS and number > 1.0 else number
            self._moved[*at[:-1], "while", name] = (*at, key)
        return found

    def _backends(self, fields: Mapping[str, Any], at: Path) -> Listed:
        found: Listed = []
        for key in ("backends", "backendRefs"):
            for index, one in enumerate(self._list(fields.get(key), (*at, key))):
                where = (*at, key, index)
                found.append((self._backend(one, where), where))
        return found

    def _backend(self, value: Any, at: Path) -> dict[str, Any]:
        if isinstance(value, str):
            return {"model": value}
        fields = self._map(value, at, _BACKEND)
        backend: dict[str, Any] = {key: fields[key] for key in ("weight", "priority") if key in fields}
        if not isinstance(backend.get("priority", 0), int):
            self._fault((*at, "priority"), "is not a whole number")
            del backend["priority"]
        name = fields.get("model") or fields.get("name")
        labels = dict(self._labels(fields["selector"], (*at, "selector"))) if "selector" in fields else {}
        if labels and name is not None:
            self._fault(at, "is named, and found by labels too", "keep one of them")
        if "engine" in fields and name is None:
            labels["engine"] = fields["engine"]
        if labels:
            return backend | {"select": labels}
        if name is None and "selector" not in fields:
            self._fault(at, "names no backend", "give its `name`, or a `selector`")
        return backend | {"model": name}

    def _labels(self, value: Any, at: Path) -> Mapping[str, Any]:
        labels = value
        if isinstance(value, dict) and "matchLabels" in value:
            self.known(value, at, {"matchLabels"})
            labels = value["matchLabels"]
        if not isinstance(labels, dict) or not labels or not all(isinstance(one, str) for one in labels.values()):
            self._fault(at, "is no map of labels", "write `matchLabels: {engine: vllm}`")
            return {}
        return labels

    def _fallbacks(self, fields: Mapping[str, Any], at: Path, route: dict[str, Any], named: Collection[Any]) -> None:
        value, where = fields.get("fallbacks"), (*at, "fallbacks")
        inner = fields.get("fallback")
        seconds = None
        if isinstance(inner, dict):
            self.known(inner, (*at, "fallback"), {"backends", "timeoutSeconds"})
            seconds, inner, inside = inner.get("timeoutSeconds"), inner.get("backends"), (*at, "fallback", "backends")
        else:
            inside = (*at, "fallback")
        listed = [(one, (*where, index)) for index, one in enumerate(self._list(value, where))]
        listed += [(one, (*inside, index)) for index, one in enumerate(self._list(inner, inside))]
        found: list[str] = []
        for one, place in listed:
            name = one.get("name") if isinstance(one, dict) else one
            if not isinstance(name, str):
                self._fault(place, "names no backend")
            elif name not in named and name not in found:
                self._moved[*at, "fallbacks", len(found)] = place
                found.append(name)
        if found:
            route["fallbacks"] = found
        if isinstance(seconds, int | float):
            # There it is the time of each try, here that of all of them.
            route["total"] = seconds * (len(route["backends"]) + len(found))
            self._moved[*at, "total"] = (*at, "fallback", "timeoutSeconds")
        elif seconds is not None:
            self._fault((*at, "fallback", "timeoutSeconds"), f"{quoted(str(seconds))} is no number of seconds")

    def _list(self, value: Any, at: Path) -> list[Any]:
        if value is None:
            return []
        if not isinstance(value, list):
            self._fault(at, "is not a list")
            return []
        return value

    def _map(self, value: Any, at: Path, known: Collection[str]) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict):
            self._fault(at, "is not a map")
            return {}
        self.known(value, at, known)
        return value

    def known(self, value: Mapping[Any, Any], at: Path, known: Collection[str]) -> None:
        """Every key that is not one of these is a fault."""
        for key in value:
            if key not in known:
                hint = _LOST.get(str(key)) or did_you_mean(str(key), known) or "known here: " + ", ".join(sorted(known))
                self.faults.append(Fault((*at, str(key)), f"has no meaning in an {KIND} that is read here", hint, at_key=True))

    def _fault(self, at: Path, message: str, hint: str = "") -> None:
        self.garbled = True
        self.faults.append(Fault(at, message, hint))


def _number(value: Any, sign: str) -> float | None:
    """`1200`, `< 1200`, `1200ms`, `> 99.95 %`; with the sign that it must have where it has one."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    text = value.strip().removeprefix(sign).removeprefix("=").strip()
    share = text.endswith("%")
    try:
        number = float(text.removesuffix("%").removesuffix("ms").strip())
    except ValueError:
        return None
    return number / 100.0 if share else number
