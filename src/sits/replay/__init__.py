"""Recorded traffic decided on again, on the same configuration or on another one, and what would have come of it."""

from __future__ import annotations
