"""Policies that look at who is under way and how long answers take."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, gcd

from sits.routing.policies.base import UNSEEN, Policy
from sits.routing.policies.state import MEMORY, TargetState

FEW = 16
"""So many targets are all looked at; of more, so many are drawn. Looking at all of them costs time, and gateways that do not know
of each other would all choose the same one (Mitzenmacher, "How Useful Is Old Information?", IEEE TPDS 2000)."""
_IDLE = 1.0
_FORGET = 30.0
"""Seconds: an idle target is believed for so long without a doubt, and then its costs fade to 1/e in so long. Sooner costs slow
answers in calm hours; later leaves a target that is well again out for long."""
_PATIENT = 4.0
"""So many times the usual gap between two signs of life make a silence."""
_QUEUE = 8.0
"""What a second in line counts for `LeastAdded`. A line lasts, and everybody who comes before it is gone waits for the one who
joined it: close to full, one second of waiting costs many. 8 to 16 did alike in simulations, 2 worse."""


class LeastConnections(Policy):
    """The fewest under way for its weight, of all requests of this service."""

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        # With the one that would be added, or a small target is as good as a big one whenever both are idle.
        return [(states[index].of_service() + 1) / weights[index] for index in range(len(states))]


class PeakEwma(Policy):
    """Of two that are drawn, the one with less to do: under way, times a latency that goes up at once and down slowly.

    Two choices: Mitzenmacher, "The Power of Two Choices in Randomized Load Balancing", IEEE TPDS 2001. The cost is that of
    Finagle's `Balancers.p2cPeakEwma`.
    """

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        count = len(states)
        at = draw * count
        one = int(at)
        costs = [UNSEEN] * count
        costs[one] = _peak(states[one], now) / weights[one]
        if count > 1:
            two = int((at - one) * (count - 1))
            if two >= one:
                two += 1
            costs[two] = _peak(states[two], now) / weights[two]
        return costs


def _peak(state: TargetState, now: float) -> float:
    outstanding = state.of_service()
    peak = state.peak
    if peak == 0.0:
        # Never heard of: asked once, then left alone until it answers.
        return 1e6 + outstanding if outstanding else 0.0
    return peak * exp((state.noted - now) / MEMORY) * (outstanding + 1)


class LeastExpected(Policy):
    """Where the request is expected to end soonest, by the line of each target.

    `share` is how much of what it makes the others slower counts beside its own time, `queue` what a second in line counts. 0 and
    1 are what is best for this request (shortest expected delay: Banawan and Zeidat, 1992).
    """

    reads = True

    def __init__(self, share: float = 0.0, queue: float = 1.0) -> None:
        self._share: float = share
        self._queue: float = queue

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        many = len(states)
        index, step, looked = 0, 1, many
        if many > FEW:
            at = draw * many
            index = int(at)
            step = 1 + int((at - index) * (many - 1))
            while many // gcd(step, many) < FEW:
                step -= 1  # It would come back to where it began before it has seen so many. A step of 1 never does.
            looked = FEW
        costs = [UNSEEN] * many
        if many > FEW and warm:
            # Who has read it is looked at besides.
            for other in range(many):
                if warm[other] > 0.0:
                    costs[other] = self.cost(states[other], now, size - warm[other], warm[other]) / weights[other]
        for _ in range(looked):
            known = warm[index] if warm else 0.0
            costs[index] = self.cost(states[index], now, size - known, known) / weights[index]
            index += step
            if index >= many:
                index -= many
        return costs

    def cost(self, state: TargetState, now: float, cold: float = 0.0, warm: float = 0.0) -> float:
        """What a request there is thought to cost, in seconds, before the weight. The least is picked. Of its prompt, `cold`
        bytes are new to the target and `warm` ones are not; 0 where nobody has looked, and it is taken to be a usual one."""
        ours = state.outstanding
        under_way = ours + state.elsewhere
        slope, room, share = state.slope, state.room, self._share
        base, reading = state.base, state.reading
        # Whoever reads keeps those from writing who are beside it. The usual part of that is in the slope.
        more = 0.0
        if cold + warm > 0.0:
            own = state.read * cold + state.again * warm
            more = own - reading
            reading = own
        base += reading
        if under_way < room:
            cost = base + slope * (1.0 + (1.0 + share) * under_way) + share * more * under_way
        else:
            # It waits until enough of those before it are done; those that come after it wait for it.
            full = base + slope * room
            cost = full * (1.0 + self._queue * (under_way + 1.0 - room) / room) + share * (slope + more) * room
        if cost < base:
            cost = base  # It saves others nothing that they would not have to wait for anyway.
        silent = now - state.heard
        if ours:
            at_once = ours if ours < room else room
            if silent * at_once > _PATIENT * (base + slope * at_once) and silent * ours > cost:
                # Little's law: so many of ours under way and none done for so long means that each takes so long at the least.
                cost = silent * ours
        elif silent > _IDLE:
            # What is known of it is old. In the end it is tried again, by one request.
            cost *= exp(-silent / _FORGET)
        if state.kv > 0.95:
            cost *= 2.0  # It is about to put requests off (preemption) to free memory.
        return cost


class LeastAdded(LeastExpected):
    """Where the request adds least to the time of all, its own and that of those beside and behind it: our own policy."""

    def __init__(self) -> None:
        super().__init__(1.0, _QUEUE)
