"""Models that answer in the place of those that a route declares: substitutes, replacements, smaller ones, what a switch brings.

Who may not answer a request as a backend may not answer it in another's place either: what strict filters, contracts, the adapter
that is asked for and capabilities leave out, stays out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sits.routing.plan import lacking
from sits.routing.target import Target, operation_capability

if TYPE_CHECKING:
    from sits.gateway.exchange import Exchange


def lacks(x: Exchange, target: Target) -> str:
    """Why a model may not answer a request that was planned, in words; empty when it may."""
    missing = lacking(target, x.needs | {operation_capability(x.operation)})
    if missing:
        return missing
    if x.facts is not None and x.choice is not None:
        return x.choice.refuses(target, x.facts)
    # Nothing of the route looks into requests, so it is not known what this one may be answered by.
    return "answers by a contract" if target.model.spec.semantics is not None else ""


def may(x: Exchange, target: Target) -> bool:
    """Whether it may."""
    return not lacks(x, target)
