"""What tokens cost, in whole numbers: sums of money must not depend on the order in which they are added."""

from __future__ import annotations

import msgspec

from sits.inner.event import Usage
from sits.resources.kinds import Cost


class Price(msgspec.Struct, frozen=True):
    """Pico-dollars (10^-12 USD) for one token; a price of 0.15 USD for a million tokens is 150,000."""

    input: int = 0
    output: int = 0
    cached: int = 0
    """For prompt tokens that the provider had in its cache."""
    cache_written: int = 0
    """For prompt tokens that the provider put into its cache."""

    @property
    def free(self) -> bool:
        return not (self.input or self.output or self.cached or self.cache_written)

    def of(self, usage: Usage | None) -> int | None:
        """Nano-dollars for what was used, half up; None when something is priced but how much of it was used is not known."""
        if self.free:
            return 0
        if usage is None or (usage.input is None and self.input) or (usage.output is None and self.output):
            return None
        cached, written = usage.cached or 0, usage.cache_written or 0
        plain = max(0, (usage.input or 0) - cached - written)
        pico = plain * self.input + cached * self.cached + written * self.cache_written + (usage.output or 0) * self.output
        return (pico + 500) // 1000


def price_of(cost: Cost) -> Price:
    """The price that a Model declares. Cached tokens cost what others do: a Model cannot say otherwise."""
    input_price = round(cost.input_per_million * 1e6)
    return Price(input_price, round(cost.output_per_million * 1e6), input_price, input_price)
