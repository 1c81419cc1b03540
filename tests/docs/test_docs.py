"""The generated pages of docs/ say what the code says."""

from __future__ import annotations

import pathlib
import re

import pytest
from click.testing import CliRunner

from sits.cli.docs import ADVICE, PAGES, REMEDIES
from sits.cli.sits import main
from sits.inner.errors import CODES, Code, Remedy

DOCS = pathlib.Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("name", PAGES)
def test_a_page_on_disk_is_what_the_code_says(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == PAGES[name](), "run sits docs"


@pytest.mark.parametrize("name", PAGES)
def test_every_table_is_whole_and_every_link_leads_somewhere(name: str) -> None:
    text = PAGES[name]()
    columns = 0
    for line in text.splitlines():
        cells = len(re.findall(r"(?<!\\)\|", line)) if line.startswith("|") else 0
        assert not (columns and cells) or cells == columns, line
        columns = cells
    anchors = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)}
    anchors |= set(re.findall(r'<a id="([^"]+)"', text))
    for target in re.findall(r"\]\(([^)]+)\)", text):
        page, _, anchor = target.partition("#")
        assert page == "" or (DOCS / page).is_file(), target
        assert page != "" or anchor in anchors, target


def test_every_code_and_remedy_has_its_row_of_advice() -> None:
    assert set(ADVICE) == set(CODES) == set(Code)
    assert set(REMEDIES) == set(Remedy)


def test_check_names_the_pages_that_differ_and_writing_mends_them(tmp_path: pathlib.Path) -> None:
    runner = CliRunner()
    written = runner.invoke(main, ["docs", "--out", str(tmp_path)])
    assert (written.exit_code, sorted(p.name for p in tmp_path.iterdir())) == (0, sorted(PAGES))
    assert runner.invoke(main, ["docs", "--check", "--out", str(tmp_path)]).exit_code == 0
    (tmp_path / "errors.md").write_text("# 错误\n", encoding="utf-8")
    (tmp_path / "cli.md").unlink()
    checked = runner.invoke(main, ["docs", "--check", "--out", str(tmp_path)])
    assert (checked.exit_code, re.findall(r"(\S+)\.md differs", checked.stderr)) == (1, [f"{tmp_path}/errors", f"{tmp_path}/cli"])
    assert (tmp_path / "errors.md").read_text(encoding="utf-8") == "# 错误\n"
    mended = runner.invoke(main, ["docs", "--out", str(tmp_path)])
    assert mended.stdout.split() == [f"{tmp_path}/errors.md", f"{tmp_path}/cli.md"]
    assert runner.invoke(main, ["docs", "--check", "--out", str(tmp_path)]).exit_code == 0
