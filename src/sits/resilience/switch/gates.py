"""Whether what must hold while requests move over does hold.

A gate is fine, in doubt (what was seen so far is on the wrong side, but may be chance: the switch stays where it is and looks
on) or broken (it is rolled back). Each is a row of `GATES`.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from sits.resilience.switch.proof import against_difference, against_rate, convincing
from sits.resilience.switch.watching import Seen
from sits.resources.reliability import SwitchSpec

SLOW = 0.05
"""The share of answers that may be above the 95th percentile."""


class Verdict(msgspec.Struct, frozen=True):
    """What one gate says."""

    gate: str
    state: str
    """`fine`, `doubt`, `broken`, or `open` while too little was seen."""
    why: str

    @property
    def holds(self) -> bool:
        return self.state in ("fine", "open")


def judge(spec: SwitchSpec, seen: Seen) -> list[Verdict]:
    """What each gate says of what was seen."""
    return [gate(spec, seen) for gate in GATES]


def errors(spec: SwitchSpec, seen: Seen) -> Verdict:
    """The share of failed requests is at most `errors` larger than the old model's."""
    old, new = seen.old, seen.new
    if new.requests < spec.gates.volume or not old.requests:
        return Verdict("errors", "open", _too_few(spec, new.requests, old.requests))
    failed, failed_before = new.failures / new.requests, old.failures / old.requests
    why = f"{failed:.2%} of {new.requests} failed, {failed_before:.2%} of {old.requests} before; {spec.gates.errors:.2%} more may"
    if failed - failed_before <= spec.gates.errors:
        return Verdict("errors", "fine", why)
    evidence = against_difference((old.requests, old.failures), (new.requests, new.failures), spec.gates.errors)
    return Verdict("errors", _sure(spec, evidence), why)


def latency(spec: SwitchSpec, seen: Seen) -> Verdict:
    """The first content takes at most `latency` times as long, at the 95th percentile.

    It is broken when the share of answers beyond that time is surely larger than the twentieth that a 95th percentile allows.
    """
    old, new = seen.old, seen.new
    if new.timed < spec.gates.volume or old.timed < spec.gates.volume:
        return Verdict("latency", "open", _too_few(spec, new.timed, old.timed))
    now, before = new.quantile(1 - SLOW), old.quantile(1 - SLOW)
    assert now is not None
    assert before is not None
    most = before * spec.gates.latency
    why = f"95 of 100 have content within {now:.0f} ms, {before:.0f} ms before; {most:.0f} ms may be"
    if now <= most:
        return Verdict("latency", "fine", why)
    return Verdict("latency", _sure(spec, against_rate(new.timed, new.above(most), SLOW)), why)


def shadow(spec: SwitchSpec, seen: Seen) -> Verdict:
    """At most so many of the answers that were compared behind the clients' backs differ."""
    most = spec.gates.shadow
    if most is None or not seen.compared:
        return Verdict("shadow", "open", "nothing is compared")
    share = seen.differed / seen.compared
    why = f"{share:.2%} of {seen.compared} answers differ; {most:.2%} may"
    if seen.compared < spec.gates.volume:
        return Verdict("shadow", "open", why)
    if share <= most:
        return Verdict("shadow", "fine", why)
    return Verdict("shadow", _sure(spec, against_rate(seen.compared, seen.differed, most)), why)


def _sure(spec: SwitchSpec, evidence: float) -> str:
    # Each step is a test of its own, and so is each gate; all together may be wrong as seldom as was asked.
    looks = len(GATES) * (len(spec.pace.steps) + 1)
    return "broken" if convincing(evidence, spec.gates.confidence, looks) else "doubt"


def _too_few(spec: SwitchSpec, new: int, old: int) -> str:
    return f"{new} answers of the new model, {old} of the old one; it takes {spec.gates.volume} to tell"


GATES: tuple[Callable[[SwitchSpec, Seen], Verdict], ...] = (errors, latency, shadow)
