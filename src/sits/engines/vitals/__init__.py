"""What model servers tell of their own load: pages read into one form. Pure."""

from __future__ import annotations

from sits.engines.vitals.answers import Series, query_series, query_values
from sits.engines.vitals.exposition import Sample, samples
from sits.engines.vitals.servers import SERVERS, Server, default_path, vitals_of
from sits.engines.vitals.signs import Telling, Vitals

__all__ = [
    "SERVERS",
    "Sample",
    "Series",
    "Server",
    "Telling",
    "Vitals",
    "default_path",
    "query_series",
    "query_values",
    "samples",
    "vitals_of",
]
