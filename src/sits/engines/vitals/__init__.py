"""What model servers tell of their own load: pages read into one form. Pure."""

from __future__ import annotations

from sits.engines.vitals.answers import query_values
from sits.engines.vitals.exposition import Sample, samples
from sits.engines.vitals.servers import SERVERS, Server, default_path, vitals_of
from sits.engines.vitals.signs import Telling, Vitals

__all__ = ["SERVERS", "Sample", "Server", "Telling", "Vitals", "default_path", "query_values", "samples", "vitals_of"]
