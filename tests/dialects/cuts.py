"""Ways to cut a wire into pieces."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

CUTS = st.lists(st.integers(0, 4000), max_size=8)


def cut(wire: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(at, len(wire)) for at in cuts), len(wire)]
    return [wire[a:b] for a, b in pairwise(edges)]


def bytewise(wire: bytes) -> list[bytes]:
    return [wire[at : at + 1] for at in range(len(wire))]
