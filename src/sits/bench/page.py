"""Renders what a bench found as a page of `docs/`: figures, what they ran on, and the command that makes it again.

Drawings are SVG files of our own few lines beside the page, since Markdown viewers show an image but not an inline drawing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

import msgspec

from sits.bench.figure import Figure
from sits.bench.plot import Plot, plot_svg

QUICK_RUN = "\n\n**A quick run: it shows that the harness works. The figures are not for quoting.**"
"""What an introduction ends with after a quick run."""
_NUMBER = re.compile(r"^(-?[\d,.]+(e[+-]?\d+)?|–)$")


class Table(msgspec.Struct, frozen=True, tag=True):
    """Rows of text under a head; a column of numbers lines up to the right."""

    head: list[str]
    rows: list[list[str]]


class Bars(msgspec.Struct, frozen=True, tag=True):
    """A bar a row, longest value across the whole width."""

    slug: str
    """Name of the file, without its ending."""
    title: str
    unit: str
    bars: list[tuple[str, float]]


class Section(msgspec.Struct, frozen=True):
    title: str
    text: str = ""
    parts: Sequence[Table | Bars | Plot] = ()


class Page(msgspec.Struct, frozen=True):
    name: str
    """Name of the file, without its ending; its drawings go into a folder of that name."""
    title: str
    intro: str
    command: str
    """What makes the page again."""
    environment: list[tuple[str, str]]
    sections: list[Section] = []


def render(page: Page, figures: list[Figure]) -> dict[str, str]:
    """Relative path -> text: the page itself and its drawings. Pure."""
    files: dict[str, str] = {}
    blocks = [f"# {page.title}", page.intro, f"Generated; make it again with:\n\n    {page.command}"]
    bounds = [figure for figure in figures if figure.bound is not None]
    if bounds:
        blocks += ["## What must hold", _table(_bound_table(bounds))]
    for section in page.sections:
        blocks += [f"## {section.title}", *([section.text] if section.text else [])]
        for part in section.parts:
            if isinstance(part, Table):
                blocks.append(_table(part))
                continue
            path = f"{page.name}/{part.slug}.svg"
            files[path] = plot_svg(part) if isinstance(part, Plot) else svg(part)
            blocks.append(f"![{part.title}]({path})")
    blocks += ["## What it ran on", _table(Table(["", ""], [list(pair) for pair in page.environment]))]
    rest = [figure for figure in figures if figure.bound is None]
    if rest:
        blocks += ["## Every other figure", _table(_plain_table(rest))]
    files[f"{page.name}.md"] = "\n\n".join(blocks) + "\n"
    return files


def write(page: Page, figures: list[Figure], folder: Path) -> list[Path]:
    """Write the page and its drawings under `folder`; the paths, page first."""
    written = []
    for name, text in sorted(render(page, figures).items(), key=lambda item: not item[0].endswith(".md")):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        written.append(path)
    return written


def number(value: float | None) -> str:
    """A figure as a person reads it: three digits that matter, thousands set apart; a dash for what is not known."""
    if value is None:
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def svg(drawing: Bars) -> str:
    """Horizontal bars, readable on a light and on a dark ground."""
    row, label, width, top = 26, 170, 430, 34
    longest = max((value for _, value in drawing.bars), default=0.0) or 1.0
    height = top + row * len(drawing.bars) + 8
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{label + width + 120}" height="{height}" '
        'font-family="sans-serif" font-size="13" role="img">',
        f"<title>{escape(drawing.title)}</title>",
        f'<text x="8" y="20" fill="#888" font-weight="bold">{escape(drawing.title)} ({escape(drawing.unit)})</text>',
    ]
    for index, (name, value) in enumerate(drawing.bars):
        y = top + index * row
        length = max(1.0, width * value / longest)
        out += [
            f'<text x="{label - 8}" y="{y + 16}" fill="#888" text-anchor="end">{escape(name)}</text>',
            f'<rect x="{label}" y="{y + 3}" width="{length:.1f}" height="{row - 8}" rx="2" fill="#4a7fb5"/>',
            f'<text x="{label + length + 6:.1f}" y="{y + 16}" fill="#888">{escape(number(value))}</text>',
        ]
    return "\n".join([*out, "</svg>", ""])


def _bound_table(figures: list[Figure]) -> Table:
    rows = [
        [
            f"`{figure.name}`",
            number(figure.value),
            figure.unit,
            f"`{figure.bound}`",
            "yes" if figure.ok else "**no**",
            figure.detail,
        ]
        for figure in figures
    ]
    return Table(["figure", "value", "unit", "bound", "holds", "detail"], rows)


def _plain_table(figures: list[Figure]) -> Table:
    rows = [[f"`{figure.name}`", number(figure.value), figure.unit, figure.detail] for figure in figures]
    return Table(["figure", "value", "unit", "detail"], rows)


def _table(table: Table) -> str:
    """GitHub's table; a bar inside a cell would end it and is escaped."""
    rules = ["---:" if all(map(_NUMBER.match, column)) else "---" for column in zip(*table.rows, strict=True)]
    lines = [table.head, rules or ["---"] * len(table.head), *table.rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in cells) + " |" for cells in lines)
