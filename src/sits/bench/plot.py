"""Lines over time as SVG text: axes, a legend, spans that are marked; readable on a light and on a dark ground."""

from __future__ import annotations

import math
from xml.sax.saxutils import escape

import msgspec

COLOURS = ("#3f7cac", "#c8553d", "#588157", "#b08968", "#7d5ba6", "#888888")
WIDTH, HEIGHT = 760, 320
LEFT, RIGHT, TOP, BOTTOM = 64, 16, 40, 64


class Curve(msgspec.Struct, frozen=True):
    """One line. Points are in the order of x; a y that is None leaves a gap."""

    name: str
    points: list[tuple[float, float | None]]
    dashed: bool = False


class Plot(msgspec.Struct, frozen=True, tag=True):
    """Curves in one drawing."""

    slug: str
    """Name of the file, without its ending."""
    title: str
    x: str
    """What runs to the right, with its unit."""
    y: str
    curves: list[Curve]
    log: bool = False
    """Whether y is drawn by its logarithm; then it must be above 0."""
    spans: list[tuple[float, float, str]] = []
    """Parts of x that are marked: from, to, what it is."""


def plot_svg(plot: Plot) -> str:
    """The drawing."""
    xs = [x for curve in plot.curves for x, _ in curve.points] or [0.0, 1.0]
    ys = [y for curve in plot.curves for _, y in curve.points if y is not None and (y > 0 or not plot.log)] or [1.0]
    frame = _Frame(min(xs), max(xs), *_bounds(min(ys), max(ys), plot.log), plot.log)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12" '
        'role="img">',
        f"<title>{escape(plot.title)}</title>",
        f'<text x="8" y="18" fill="#888" font-weight="bold" font-size="13">{escape(plot.title)}</text>',
        f'<text x="8" y="34" fill="#888">{escape(plot.y)}</text>',
        *_spans(plot, frame),
        *_axes(plot, frame),
    ]
    for index, curve in enumerate(plot.curves):
        colour = COLOURS[index % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
        out += [
            f'<polyline points="{" ".join(piece)}" fill="none" stroke="{colour}" stroke-width="1.8"{dash}/>'
            for piece in frame.pieces(curve)
        ]
    return "\n".join([*out, *_legend(plot), "</svg>", ""])


class _Frame:
    """Where a value is on the paper."""

    def __init__(self, left: float, right: float, low: float, high: float, log: bool) -> None:
        self.left, self.right = left, right if right > left else left + 1.0
        self.low, self.high, self.log = low, high, log

    def x(self, value: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (value - self.left) / (self.right - self.left)

    def y(self, value: float) -> float:
        low, high = (math.log10(self.low), math.log10(self.high)) if self.log else (self.low, self.high)
        at = math.log10(max(value, self.low)) if self.log else value
        share = min(1.0, max(0.0, (at - low) / (high - low)))
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    def pieces(self, curve: Curve) -> list[list[str]]:
        """The points of a line, without its gaps."""
        found: list[list[str]] = [[]]
        for x, y in curve.points:
            if y is None:
                found.append([])
            else:
                found[-1].append(f"{self.x(x):.1f},{self.y(y):.1f}")
        return [piece for piece in found if piece]


def _bounds(low: float, high: float, log: bool) -> tuple[float, float]:
    """Of y: whole decades, or from nothing to a round number."""
    if log:
        bottom = math.floor(math.log10(low))
        return 10.0**bottom, 10.0 ** max(bottom + 1, math.ceil(math.log10(high)))
    return min(0.0, low), _ticks(0.0, high)[-1] if high > 0 else 1.0


def _ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers, the last of them not below `high`."""
    rough = (high - low) / 5 or 1.0
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 5, 10) if size * factor >= rough)
    first = math.floor(low / step)
    last = math.ceil(high / step - 1e-9)
    return [step * index for index in range(first, last + 1)]


def _axes(plot: Plot, frame: _Frame) -> list[str]:
    out = []
    if plot.log:
        decades = round(math.log10(frame.high / frame.low))
        heights = [frame.low * 10.0**index for index in range(decades + 1)]
    else:
        heights = _ticks(frame.low, frame.high)
    for value in heights:
        y = frame.y(value)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#888" stroke-opacity="0.25"/>')
        out.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" fill="#888" text-anchor="end">{value:g}</text>')
    bottom = HEIGHT - BOTTOM
    for value in _ticks(frame.left, frame.right):
        if frame.left <= value <= frame.right:
            out.append(f'<text x="{frame.x(value):.1f}" y="{bottom + 16}" fill="#888" text-anchor="middle">{value:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    return [*out, f'<text x="{middle:.0f}" y="{bottom + 32}" fill="#888" text-anchor="middle">{escape(plot.x)}</text>']


def _spans(plot: Plot, frame: _Frame) -> list[str]:
    out = []
    for begins, ends, what in plot.spans:
        x, width = frame.x(begins), frame.x(ends) - frame.x(begins)
        height = HEIGHT - TOP - BOTTOM
        out.append(f'<rect x="{x:.1f}" y="{TOP}" width="{width:.1f}" height="{height}" fill="#888" fill-opacity="0.12"/>')
        out.append(f'<text x="{x + 4:.1f}" y="{TOP + 14}" fill="#888">{escape(what)}</text>')
    return out


def _legend(plot: Plot) -> list[str]:
    out = []
    x, y = LEFT, HEIGHT - 12
    for index, curve in enumerate(plot.curves):
        colour = COLOURS[index % len(COLOURS)]
        dash = ' stroke-dasharray="5 4"' if curve.dashed else ""
        out.append(f'<line x1="{x}" y1="{y - 4}" x2="{x + 22}" y2="{y - 4}" stroke="{colour}" stroke-width="2"{dash}/>')
        out.append(f'<text x="{x + 27}" y="{y}" fill="#888">{escape(curve.name)}</text>')
        x += 44 + 7 * len(curve.name)
    return out
