"""Model servers behind HTTP/1.1."""

from __future__ import annotations

from sits.engines.remote.address import Address, parse_address
from sits.engines.remote.connection import AnswerLimits
from sits.engines.remote.engine import RemoteEngine

__all__ = ["Address", "AnswerLimits", "RemoteEngine", "parse_address"]
