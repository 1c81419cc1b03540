"""Making a plugin for a route, inside its fence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sits.routing.plugins.fence import Fence, described, dispose, shown, words_of
from sits.routing.plugins.fenced import FencedFacets, FencedFacetsHolder, FencedFilter, FencedHolder, FencedScore
from sits.routing.scheduling.base import Filter, Made, Score


def fenced_filter(make: Callable[[Made], Filter], made: Made, fence: Fence, seconds: float = 1.0) -> FencedFilter:
    """A filter made for a route. Making it may take `seconds`.

    Raises:
        ValueError: it cannot use its settings.
    """
    try:
        plugin, strict, _ = fence.alarm.call(seconds, _made_filter, make, _bare(made))
    except BaseException as error:
        return missing_filter(made, fence, _why_not_made(error, fence))
    fence.unmade.pop(made.route, None)
    return FencedFilter(plugin, made.candidates, fence, strict)


def fenced_score(make: Callable[[Made], Score], made: Made, fence: Fence, seconds: float = 1.0) -> FencedScore:
    """A score made for a route. Making it may take `seconds`.

    Raises:
        ValueError: it cannot use its settings.
    """
    try:
        plugin, varies, scale = fence.alarm.call(seconds, _made_score, make, _bare(made))
    except BaseException as error:
        return missing_score(made, fence, _why_not_made(error, fence))
    fence.unmade.pop(made.route, None)
    facets = varies != "request" and _overrides(plugin, "facet")
    holds = _overrides(plugin, "reserve") or _overrides(plugin, "release")
    kind = (FencedFacetsHolder if facets else FencedHolder) if holds else FencedFacets if facets else FencedScore
    return kind(plugin, made.candidates, fence, varies, scale)


def missing_filter(made: Made, fence: Fence, why: str) -> FencedFilter:
    """One that could not be made: it leaves out nobody."""
    fence.unmade[made.route] = why
    return FencedFilter(None, made.candidates, fence, False, why)


def missing_score(made: Made, fence: Fence, why: str) -> FencedScore:
    """One that could not be made: it says nothing."""
    fence.unmade[made.route] = why
    return FencedScore(None, made.candidates, fence, "tick", "given", why)


def _why_not_made(error: BaseException, fence: Fence) -> str:
    """
    Raises:
        ValueError: the error is one, and its words are of use to whoever wrote the settings.
    """
    alarm, seconds = fence.alarm, fence.limits.hard
    if isinstance(error, ValueError):
        raise ValueError(words_of(error, alarm, seconds)) from None
    fence.counts["raised"] += 1
    return f"cannot be made: {described(error, alarm, seconds)}"


def _made_filter(make: Callable[[Made], Any], made: Made) -> tuple[Filter, bool, str]:
    plugin = make(made)
    if not isinstance(plugin, Filter):
        dispose(plugin)
        raise TypeError(f"{shown(plugin)} is no Filter")
    return plugin, bool(_of(plugin, "strict")), ""


def _made_score(make: Callable[[Made], Any], made: Made) -> tuple[Score, str, str]:
    plugin = make(made)
    if not isinstance(plugin, Score):
        dispose(plugin)
        raise TypeError(f"{shown(plugin)} is no Score")
    varies, scale = _of(plugin, "varies"), _of(plugin, "scale")
    if varies not in ("never", "tick", "request"):
        raise TypeError(f"varies is never, tick or request, not {varies!r}")
    if scale not in ("given", "most", "least"):
        raise TypeError(f"scale is given, most or least, not {scale!r}")
    return plugin, str(varies), str(scale)


def _bare(made: Made) -> Made:
    """Plugins find those of before, not their fences."""
    before = [one.plugin if isinstance(one, FencedScore) and one.plugin is not None else one for one in made.before]
    return Made(made.route, tuple(made.candidates), made.settings, made.snapshot, made.costs, made.latencies, before)


def _of(one: object, what: str) -> Any:
    """An attribute by its name: compiled code would see that of the class it knows, not that of a plugin's subclass."""
    return getattr(one, what)


def _overrides(plugin: Score, what: str) -> bool:
    return _of(type(plugin), what) is not _of(Score, what)
