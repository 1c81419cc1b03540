"""The semantic registry: when a service is hot or cold, and what is done about it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sits.resources.vocabulary import Positive, Spec


class HotSpec(Spec, frozen=True):
    """A service that is much asked for belongs into the pool `accelerator`."""

    qps: Positive = 500.0
    """Requests a second above which it is hot; it stays so down to four fifths of them."""
    renew_seconds: Positive = 3600.0
    """Vectors are renewed this often; a service whose vector is older is not hot."""


class ColdSpec(Spec, frozen=True):
    """A service that nobody means belongs into the pool `cpu-low-priority`."""

    cosine: Annotated[float, msgspec.Meta(gt=0, lt=1)] = 0.3
    """No query came nearer than this, on the calibrated scale."""
    hours: Positive = 24.0
    """For so long."""
    quiet_per_hour: Positive = 60.0
    """A service that is asked for by name more often than this is not cold, whatever queries mean."""
    unload: bool = True
    """Whether a cold model of this machine is unloaded; the next request loads it again."""


class RegistrySpec(Spec, frozen=True):
    """Grading of services by how they are searched and asked for. Searching works without it."""

    hot: HotSpec = HotSpec()
    """When it is hot."""
    cold: ColdSpec = ColdSpec()
    """When it is cold."""
