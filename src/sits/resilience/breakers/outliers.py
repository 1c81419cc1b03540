"""Which targets do worse than the others of their route: Envoy's success rate ejection.

https://www.envoyproxy.io/docs/envoy/latest/intro/arch_overview/upstream/outlier: an outlier is below the mean of the success
rates minus so many (1.9) standard deviations. One value of n lies at the most sqrt(n - 1) of them from the mean, so that with 1.9
nothing is found among fewer than five targets; Envoy asks for five as well. Its least number of requests is a hundred; here it is
the breaker's own `volume`, and a target with fewer than three failures is no outlier, or among five faultless ones a single
failure would make one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

LEAST_FAILURES = 3
_NOISE = 1e-9
"""Rounding: equal shares have no outlier."""


def outliers(shares: Mapping[str, float], deviations: float) -> list[str]:
    """The names whose share of good answers is below the mean minus `deviations` standard deviations, worst first."""
    count = len(shares)
    if count < 2:
        return []
    mean = math.fsum(shares.values()) / count
    deviation = math.sqrt(math.fsum((share - mean) ** 2 for share in shares.values()) / count)
    least = mean - deviations * deviation - _NOISE
    return sorted((name for name, share in shares.items() if share < least), key=lambda name: shares[name])


def most(count: int, share: float) -> int:
    """How many of `count` targets may be left out when `share` of them may: never all, and one in any case where there are two
    (as in Envoy), unless the share is zero."""
    if share <= 0 or count < 2:
        return 0
    return min(max(1, math.floor(share * count + _NOISE)), count - 1)
