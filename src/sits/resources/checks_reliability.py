"""Rules within one resource of those that keep requests from being dropped."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from urllib.parse import urlsplit

from sits.resources.kinds import Route, Settings
from sits.resources.problem import Fault, Path, did_you_mean, quoted
from sits.resources.reliability import Switch

OUTCOMES = frozenset({
    "context_length_exceeded", "model_does_not_fit", "model_unavailable", "upstream_auth_failed",
    "upstream_broken", "upstream_error", "upstream_rate_limited", "upstream_rejected", "upstream_timeout", "upstream_unreachable",
})  # fmt: skip
"""The error codes of attempts: what `retry.also` may name."""


def retries(route: Route) -> Iterator[Fault]:
    """What `retry` names are outcomes, and what `hedge` needs is there."""
    spec = route.spec
    for index, code in enumerate(spec.retry.also if spec.retry is not None else ()):
        if code not in OUTCOMES:
            message = f"{quoted(code)} is no outcome of an attempt"
            yield Fault(("spec", "retry", "also", index), message, did_you_mean(code, OUTCOMES))
    named = all(backend.model is not None for backend in spec.backends)
    if spec.hedge is not None and named and len(spec.backends) + len(spec.fallbacks) < 2:
        yield Fault(("spec", "hedge"), "needs a second model", "add a backend or a fallback", at_key=True)


def rungs(route: Route) -> Iterator[Fault]:
    """A ladder has a rung."""
    ladder = route.spec.ladder
    if ladder is not None and ladder.template is None and (route.spec.cache is None or not ladder.cache_seconds):
        hint = "give the route a `cache`, or the ladder a `template`"
        yield Fault(("spec", "ladder"), "has no rung: nothing is kept, and there is no template", hint, at_key=True)


def shadows(route: Route) -> Iterator[Fault]:
    """A shadow is another model than the one that answers."""
    shadow = route.spec.shadow
    if shadow is not None and [backend.model for backend in route.spec.backends] == [shadow.model]:
        message = f"{quoted(shadow.model)} is the route's only backend"
        yield Fault(("spec", "shadow", "model"), message, "name another model")


def switching(switch: Switch) -> Iterator[Fault]:
    """Two models, and steps that rise."""
    spec = switch.spec
    if spec.from_ == spec.to:
        yield Fault(("spec", "to"), f"{quoted(spec.to)} is what goes, too", "name another model")
    steps: Path = ("spec", "pace", "steps")
    for index, (before, after) in enumerate(pairwise(spec.pace.steps)):
        if after <= before:
            yield Fault((*steps, index + 1), f"{after:g} does not come after {before:g}", "let the steps rise")
    if spec.pace.steps[0] <= 0:
        yield Fault((*steps, 0), "nothing would be asked of the new model", "begin above 0")


def classes(settings: Settings) -> Iterator[Fault]:
    """Bounds in order; callbacks that say where they go; a server for queries."""
    qos = settings.spec.qos
    if qos is not None:
        if not qos.least <= qos.start <= qos.most:
            message = f"{qos.start} is not between `least` {qos.least} and `most` {qos.most}"
            yield Fault(("spec", "qos", "start"), message)
        for index, url in enumerate(qos.callbacks):
            if not _is_place(url):
                where: Path = ("spec", "qos", "callbacks", index)
                yield Fault(where, f"{quoted(url)} is no prefix of a URL", "write https://HOST/PATH/")
    if settings.spec.prometheus is not None and not _is_place(settings.spec.prometheus):
        yield Fault(("spec", "prometheus"), "is no http or https URL without a password", "write http://HOST:9090")


def _is_place(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc and parts.port != 0
    except ValueError:
        return False
