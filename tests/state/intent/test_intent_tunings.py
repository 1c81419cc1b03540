"""Figures belong to the weights that they were made with: where they are kept, and when they are not used."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from sits.inner.errors import SitsError
from sits.routing.intent.tune import Tuning
from sits.state.intent.building import load_tuning
from sits.state.intent.tunings import Found, find, kept, read, write

SHIPPED = load_tuning(Path("no such file"))
OURS = Tuning(safe=0.7)


def test_figures_of_a_declared_model_are_found_by_its_weights_alone(tmp_path: Path) -> None:
    assert find(tmp_path, "bge-m3", "ab12-bge-m3", built_in=False) == Found(SHIPPED, False)
    path = write(tmp_path, kept(OURS, "ab12-bge-m3"), built_in=False)
    assert (path.name, read(path)) == ("tuning-ab12-bge-m3.json", kept(OURS, "ab12-bge-m3"))
    assert find(tmp_path, "bge-m3", "ab12-bge-m3", built_in=False) == Found(OURS, True)
    assert find(tmp_path, "e5", "e5-1", built_in=True) == Found(SHIPPED, True)
    assert find(tmp_path, "minilm", "cd34-minilm", built_in=False) == Found(SHIPPED, False)


def test_those_of_other_weights_of_its_name_are_told_and_not_used(tmp_path: Path) -> None:
    write(tmp_path, kept(OURS, "ab12-bge-m3"), built_in=False)
    said = "intent/tuning-ab12-bge-m3.json was made with other weights of bge-m3 and is not used; "
    said += "`sits intent tune --use` makes one for these"
    assert find(tmp_path, "bge-m3", "cd34-bge-m3", built_in=False) == Found(SHIPPED, False, said)
    (tmp_path / "tuning-ab12-bge-m3.json").rename(tmp_path / "tuning-cd34-bge-m3.json")
    renamed = find(tmp_path, "bge-m3", "cd34-bge-m3", built_in=False)
    assert (renamed.own, "was made with ab12-bge-m3 and is not used" in renamed.trouble) == (False, True)


@pytest.mark.parametrize(
    ("weights", "used"), [("e5-1", True), ("", True), ("ab12-bge-m3", False)], ids=["its own", "not said", "another's"]
)
def test_the_built_in_model_takes_what_is_its_own_or_older_than_there_being_others(
    tmp_path: Path, weights: str, used: bool
) -> None:
    whole = msgspec.to_builtins(kept(OURS, weights))
    if not weights:
        del whole["weights"]
    (tmp_path / "tuning.json").write_bytes(msgspec.json.encode(whole))
    found = find(tmp_path, "e5", "e5-1", built_in=True)
    assert (found.tuning, found.own, found.trouble == "") == (OURS if used else SHIPPED, True, used)


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "tuning-w.json").write_text('{"safe": "high"}')
    with pytest.raises(SitsError, match=r"tuning-w.json: .*safe"):
        find(tmp_path, "m", "w", built_in=False)
    for file, built_in in (("tuning-w.json", False), ("tuning.json", True)):
        (tmp_path / file).write_text('{"deep": ' + '{"more": ' * 100_000)
        with pytest.raises(SitsError, match=rf"{file}: maximum recursion depth"):
            find(tmp_path, "m", "w", built_in=built_in)
    with pytest.raises(SitsError, match="No such file"):
        read(tmp_path / "none.json")
