"""Making a plugin for a route, inside its fence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from sits.routing.plugins.fence import Fence, described, dispose, shown, words_of
from sits.routing.plugins.fenced import Calls, FencedFacets, FencedFacetsHolder, FencedFilter, FencedHolder, FencedScore
from sits.routing.scheduling.base import Filter, Made, Score

Read = TypeVar("Read")
VARIES = ("never", "tick", "request")
SCALES = ("given", "most", "least")


def fenced_filter(make: Callable[[Made], Filter], made: Made, fence: Fence, seconds: float = 1.0) -> FencedFilter:
    """A filter made for a route. Making it may take `seconds`.

    Raises:
        ValueError: it cannot use its settings.
    """
    plugin, strict, why = _made(make, made, fence, seconds, _read_filter, False)
    if why:
        return missing_filter(made, fence, why)
    return FencedFilter(plugin, made.candidates, fence, strict)


def fenced_score(make: Callable[[Made], Score], made: Made, fence: Fence, seconds: float = 1.0) -> FencedScore:
    """A score made for a route. Making it may take `seconds`.

    Raises:
        ValueError: it cannot use its settings.
    """
    plugin, read, why = _made(make, made, fence, seconds, _read_score, None)
    if read is None:
        return missing_score(made, fence, why)
    calls, varies, scale = read
    holds = calls.reserve is not None or calls.release is not None
    facets = calls.facet is not None
    kind = (FencedFacetsHolder if facets else FencedHolder) if holds else FencedFacets if facets else FencedScore
    return kind(plugin, made.candidates, fence, varies, scale, calls)


def missing_filter(made: Made, fence: Fence, why: str) -> FencedFilter:
    """One that could not be made: it leaves out nobody."""
    fence.unmade[made.route] = why
    return FencedFilter(None, made.candidates, fence, False, why)


def missing_score(made: Made, fence: Fence, why: str) -> FencedScore:
    """One that could not be made: it says nothing."""
    fence.unmade[made.route] = why
    return FencedScore(None, made.candidates, fence, "tick", "given", unmade=why)


def _made(
    make: Callable[[Made], Any], made: Made, fence: Fence, seconds: float, read: Callable[[Any], Read], nothing: Read
) -> tuple[Any, Read, str]:
    """A plugin, what was read of it, and empty; or None, nothing, and why it cannot be made.

    Raises:
        ValueError: making it raises one, whose words are of use to whoever wrote the settings. What is raised later is no such.
    """
    alarm, hard = fence.alarm, fence.limits.hard
    given = False
    try:
        plugin = alarm.call(seconds, make, _bare(made))
        given = True
        found = alarm.call(seconds, read, plugin)
    except BaseException as error:
        if not given and issubclass(type(error), ValueError):
            raise ValueError(words_of(error, alarm, hard)) from None
        fence.counts["raised"] += 1
        return None, nothing, f"cannot be made: {described(error, alarm, hard)}"
    fence.unmade.pop(made.route, None)
    return plugin, found, ""


def _read_filter(plugin: Any) -> bool:
    if not issubclass(type(plugin), Filter):
        dispose(plugin)
        raise TypeError(f"{shown(plugin)} is no Filter")
    return bool(_of(plugin, "strict"))


def _read_score(plugin: Any) -> tuple[Calls, str, str]:
    """What is called of it, how often that can change, and its scale."""
    if not issubclass(type(plugin), Score):
        dispose(plugin)
        raise TypeError(f"{shown(plugin)} is no Score")
    varies, scale = _one_of(plugin, "varies", VARIES), _one_of(plugin, "scale", SCALES)
    facet = None if varies == "request" else _own(plugin, "facet")
    return Calls(_of(plugin, "score"), facet, _own(plugin, "reserve"), _own(plugin, "release")), varies, scale


def _one_of(plugin: Score, what: str, known: tuple[str, ...]) -> str:
    """The one of these words that an attribute is: not itself, which may be of a kind of its own."""
    said = _of(plugin, what)
    for one in known:
        if said == one:
            return one
    raise TypeError(f"{what} is {', '.join(known[:-1])} or {known[-1]}, not {said!r}")


def _own(plugin: Score, what: str) -> Callable[..., Any] | None:
    """A method, where its class has one of its own."""
    if _of(type(plugin), what) is _of(Score, what):
        return None
    found: Callable[..., Any] = _of(plugin, what)
    return found


def _bare(made: Made) -> Made:
    """Plugins find those of before, not their fences."""
    before = [one.plugin if isinstance(one, FencedScore) and one.plugin is not None else one for one in made.before]
    return Made(made.route, tuple(made.candidates), made.settings, made.snapshot, made.costs, made.latencies, before)


def _of(one: object, what: str) -> Any:
    """An attribute by its name: compiled code would see that of the class it knows, not that of a plugin's subclass."""
    return getattr(one, what)
