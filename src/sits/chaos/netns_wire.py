"""The wire between the namespaces: `python -m sits.chaos.netns_wire SEED FD...`, one TUN device a descriptor.

Packets of IP version 4 go to the device whose number, from 1, is the last byte of their destination. A line of JSON on the input
is a `Weather`, or null; it is answered by a line with the traffic so far. The end of the input ends the wire.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import random
import select
import sys
import time

import msgspec

from sits.chaos.netns import Traffic, Weather

_PACKET = 65536
_MOST_WAITING = 10_000
"""Packets on their way; beyond, they are lost, as in any router."""


class Wire:
    """Packets on their way. Time is passed in, so that it can be tested without waiting."""

    def __init__(self, ports: int, chance: random.Random) -> None:
        self.weather = Weather()
        self._ports = ports
        self._chance = chance
        self._coming: list[tuple[float, int, int, int, bytes]] = []
        self._sent = 0
        self._newest: dict[tuple[int, int], int] = {}
        self._counts = dict.fromkeys(Traffic.__struct_fields__, 0)

    @property
    def traffic(self) -> Traffic:
        return Traffic(**self._counts)

    def send(self, source: int, packet: bytes, now: float) -> None:
        """A packet that the port `source` gave us."""
        target = packet[19] - 1 if len(packet) >= 20 and packet[0] >> 4 == 4 else -1
        if not 0 <= target < self._ports:
            return
        weather, draw = self.weather, self._chance.random
        if source in weather.mute or target in weather.deaf:
            self._counts["cut"] += 1
        elif draw() < weather.loss or len(self._coming) >= _MOST_WAITING:
            self._counts["lost"] += 1
        else:
            copies = 2 if draw() < weather.twice else 1
            self._counts["doubled"] += copies - 1
            self._sent += 1
            for _ in range(copies):
                due = now + self._chance.uniform(*weather.delay)
                heapq.heappush(self._coming, (due, self._sent, source, target, packet))

    def due(self) -> float | None:
        """When the next packet arrives."""
        return self._coming[0][0] if self._coming else None

    def take(self, now: float) -> tuple[int, bytes] | None:
        """The next packet that has arrived, and the port it goes to. What was under way when its path was cut is lost."""
        while self._coming and self._coming[0][0] <= now:
            _, number, source, target, packet = heapq.heappop(self._coming)
            if source in self.weather.mute or target in self.weather.deaf:
                self._counts["cut"] += 1
                continue
            pair = (source, target)
            if number < self._newest.get(pair, 0):
                self._counts["overtaken"] += 1
            self._newest[pair] = max(number, self._newest.get(pair, 0))
            self._counts["passed"] += 1
            return target, packet
        return None


def run(wire: Wire, fds: list[int], orders: int, answers: int) -> None:
    """Until `orders` ends."""
    poll = select.poll()
    for fd in (*fds, orders):
        poll.register(fd, select.POLLIN)
    said = b""
    while True:
        due = wire.due()
        wait = None if due is None else max(0.0, (due - time.monotonic()) * 1e3)
        for fd, _ in poll.poll(wait):
            if fd == orders:
                piece = os.read(orders, _PACKET)
                if not piece:
                    return
                *lines, said = (said + piece).split(b"\n")
                for line in lines:
                    wire.weather = msgspec.json.decode(line, type=Weather | None) or wire.weather
                    os.write(answers, msgspec.json.encode(wire.traffic) + b"\n")
            else:
                _read(wire, fds.index(fd), fd)
        while (taken := wire.take(time.monotonic())) is not None:
            target, packet = taken
            # A device whose queue is full drops it, as a cable would.
            with contextlib.suppress(BlockingIOError):
                os.write(fds[target], packet)


def _read(wire: Wire, port: int, fd: int) -> None:
    with contextlib.suppress(BlockingIOError):
        for _ in range(64):
            wire.send(port, os.read(fd, _PACKET), time.monotonic())


if __name__ == "__main__":
    run(Wire(len(sys.argv) - 2, random.Random(int(sys.argv[1]))), [int(fd) for fd in sys.argv[2:]], 0, 1)  # noqa: S311 - faults
