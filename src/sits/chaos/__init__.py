"""Chaos experiments: a steady state, faults, and what must be true of the clients meanwhile. See docs/chaos.md.

spec   --> world    servers, proxies and gateways of one experiment, each a process that is surely ended
       --> crowd    clients that check every token
       --> injector faults on and off, on schedule
       --> figures  metrics and requests by time; probes are queries about them
       --> report   a verdict
"""

from __future__ import annotations


class BadExperiment(Exception):
    """The file cannot be run as it is; says all that is wrong with it."""


class NotRun(Exception):
    """It could not be tried here; says why. That is no verdict."""
