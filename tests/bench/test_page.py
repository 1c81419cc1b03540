from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
import pytest

from sits.bench.environment import cpu_model, environment, installed, load_before, memory
from sits.bench.figure import bounded, measured
from sits.bench.page import Bars, Page, Section, Table, number, render, svg, write

PAGE = Page(
    "speed",
    "Speed",
    "What it is.",
    "make bench",
    [("CPU", "A | B")],
    [
        Section(
            "Plain",
            "Words.",
            [Table(["who", "ms"], [["我们", "1.5"], ["them", "–"]]), Bars("cpu", "CPU", "us", [("我们", 10.0)])],
        )
    ],
)
FIGURES = [bounded("a", 0.5, "x", "<= 1.0", "fine"), bounded("b", None, "x", "<= 1.0", "no peer"), measured("c", 12345.6, "us")]

EXPECTED = """\
# Speed

What it is.

Generated; make it again with:

    make bench

## What must hold

| figure | value | unit | bound | holds | detail |
| --- | ---: | --- | --- | --- | --- |
| `a` | 0.5 | x | `<= 1.0` | yes | fine |
| `b` | – | x | `<= 1.0` | **no** | no peer |

## Plain

Words.

| who | ms |
| --- | ---: |
| 我们 | 1.5 |
| them | – |

![CPU](speed/cpu.svg)

## What it ran on

|  |  |
| --- | --- |
| CPU | A \\| B |

## Every other figure

| figure | value | unit | detail |
| --- | ---: | --- | --- |
| `c` | 12,346 | us |  |
"""


def test_a_page_has_the_figures_the_sections_the_machine_and_the_command_that_makes_it_again() -> None:
    files = render(PAGE, FIGURES)
    assert files["speed.md"] == EXPECTED
    assert set(files) == {"speed.md", "speed/cpu.svg"}


def test_a_page_is_written_with_its_drawings_page_first(tmp_path: Path) -> None:
    assert write(PAGE, FIGURES, tmp_path / "docs") == [tmp_path / "docs/speed.md", tmp_path / "docs/speed/cpu.svg"]
    assert (tmp_path / "docs/speed.md").read_text(encoding="utf-8") == EXPECTED


@pytest.mark.parametrize(
    "bars",
    [
        pytest.param([], id="none"),
        pytest.param([("a", 0.0)], id="all zero"),
        pytest.param([("<我们> & co", 3.0), ("b", 1.0)], id="names that XML would trip over"),
    ],
)
def test_a_drawing_is_well_formed_with_a_bar_a_row(bars: list[tuple[str, float]]) -> None:
    root = ET.fromstring(svg(Bars("s", "T < U", "us", bars)))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f"{space}rect")) == len(bars)
    assert [text.text for text in root.findall(f"{space}text")][1::2] == [name for name, _ in bars]


def test_the_longest_bar_takes_the_width_and_the_others_their_share() -> None:
    root = ET.fromstring(svg(Bars("s", "t", "us", [("a", 4.0), ("b", 1.0)])))
    assert [rect.get("width") for rect in root.iter("{http://www.w3.org/2000/svg}rect")] == ["430.0", "107.5"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (0.0, "0"), (0.12345, "0.123"), (99.94, "99.9"), (99.96, "100"), (512.4, "512"), (12345.6, "12,346")],
)
def test_a_number_shows_the_digits_that_matter(value: float | None, text: str) -> None:
    assert number(value) == text


def test_the_environment_names_the_machine_and_what_was_measured() -> None:
    rows = dict(environment({"nginx": "1.22.1"}))
    assert {"Date", "CPU", "Cores", "Memory", "Kernel", "Python", "SITS", "nginx"} == set(rows)
    assert all(rows.values())
    assert cpu_model("processor\t: 0\nmodel name\t: EPYC: 9\n") == "EPYC: 9"
    assert memory("MemFree: 1 kB\nMemTotal:       2097152 kB\n") == "2.0 GiB"


def test_what_a_bench_tells_of_itself_follows_the_versions() -> None:
    rows = environment({"nginx": "1.22.1"}, load_before(), ("Seed", "1"))
    assert [label for label, _ in rows[-3:]] == ["nginx", "Load of the machine before", "Seed"]


def test_only_what_is_installed_has_a_version() -> None:
    assert installed("msgspec", "no-such-package") == {"msgspec": msgspec.__version__}
