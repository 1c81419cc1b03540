"""Real servers out of packages, for the tests, the benches and a first try: each on a free loopback port, ended by pid."""

from __future__ import annotations

from sits.ports.servers.process import ServerProcess, free_port

__all__ = ["ServerProcess", "free_port"]
