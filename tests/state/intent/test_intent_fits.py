"""What is made once and read from then on: embeddings that come with the package, and fits in the data folder."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from sits.bench.intent_domains import texts
from sits.inner.errors import Code, SitsError
from sits.routing.intent.fitting import fit_intent, known
from sits.routing.intent.intent import Intent
from sits.routing.intent.spread import spread
from sits.routing.intent.tune import Tuning
from sits.state.intent import apart, shipped
from sits.state.intent.apart import Task, fit_apart, fit_task
from sits.state.intent.embedders import open_e5, weights_named
from sits.state.intent.fits import MOST, Fits, digest, hold, pack, unpack

MODELS = Path(os.environ.get("SITS_TEST_MODELS", Path(__file__).parents[3] / ".cache" / "models"))
SAID = ("sue him", "the court", "a judge", "my lawyer", "起诉他", "法院", "法官", "律师")
NONE = ("hello", "lunch", "a joke", "nice day", "你好", "午饭", "讲个笑话", "天气真好")


def task(english: bool = False) -> Task:
    listed = [*(SAID[:4] if english else SAID), *NONE]
    labels = np.array([0] * (len(listed) - 8) + [1] * 8)
    tokens, rows = np.eye(4, dtype=np.float32)[labels], np.eye(5, dtype=np.float32)[labels]
    shared, left = labels == 1, np.arange(len(listed))
    return Task(("law",), (0.4,), listed, hold(labels), hold(shared), hold(tokens), hold(rows), Tuning(safe=0.7), hold(left))


def fitted(english: bool = False) -> Intent:
    return unpack(fit_task(task(english)))[0]


@pytest.mark.parametrize("english", [False, True], ids=["both languages", "one"])
def test_what_is_fitted_is_kept_whole(english: bool) -> None:
    given = task(english)
    labels = np.array([0] * (len(given.texts) - 8) + [1] * 8)
    tokens, rows = np.eye(4, dtype=np.float32)[labels], np.eye(5, dtype=np.float32)[labels]
    made = fit_intent(given.domains, given.least, known(given.texts, tokens, labels, labels == 1, rows), given.tuning)
    again, left = unpack(pack(made, np.array([0, 2])))
    assert left.tolist() == [0, 2]
    assert (again.domains, again.least, again.tuning, again.covered) == (made.domains, made.least, made.tuning, made.covered)
    assert (again.bare is None, made.bare is None) == (not english, not english)
    for text in ("the judge", "法官呢", "hello"):
        asked = text, np.eye(4, dtype=np.float32)[0], np.eye(5, dtype=np.float32)[0]
        assert again.quickly(*asked[:2]) == made.quickly(*asked[:2])
        assert again.deeply(*asked).confidence == pytest.approx(made.deeply(*asked).confidence, abs=1e-3)


def test_what_examples_are_spread_out_by_is_kept_with_the_fit() -> None:
    rows = np.random.default_rng(2).normal(size=(40, 5)).astype(np.float32)
    made = msgspec.structs.replace(fitted(), spread=spread(rows * np.array([3, 1, 1, 1, 1], dtype=np.float32)))
    again, _ = unpack(pack(made, np.array([0])))
    assert made.spread is not None
    assert again.spread is not None
    assert again.spread.out(rows).tobytes() == made.spread.out(rows).tobytes()
    assert fitted().spread is None


def test_a_process_of_its_own_fits_the_same() -> None:
    assert asyncio.run(fit_apart(task())) == fit_task(task())


def test_a_process_that_fails_is_an_error_that_says_why() -> None:
    broken = msgspec.structs.replace(task(), domains=())
    with pytest.raises(SitsError, match=r"fitting failed \(1\).*one domain") as caught:
        asyncio.run(fit_apart(broken))
    assert caught.value.code is Code.INTERNAL


@pytest.mark.parametrize("early", [True, False], ids=["while it is started", "while it works"])
def test_whoever_is_cancelled_leaves_no_process_behind(monkeypatch: pytest.MonkeyPatch, early: bool) -> None:
    started: list[subprocess.Popen[bytes]] = []
    begun, go, works = threading.Event(), threading.Event(), threading.Event()
    sleeper = [sys.executable, "-c", "import sys, threading; sys.stdin.read(); threading.Event().wait()"]
    popen, talk = subprocess.Popen, apart._talk

    def start(command: list[str], **more: object) -> subprocess.Popen[bytes]:
        begun.set()
        assert go.wait(60)
        started.append(popen(sleeper, **more))  # type: ignore[call-overload]
        return started[0]

    def talked(*given: Any) -> tuple[bytes, str]:
        works.set()
        return talk(*given)

    monkeypatch.setattr(apart.subprocess, "Popen", start)
    monkeypatch.setattr(apart, "_talk", talked)

    async def play() -> None:
        fitting = asyncio.create_task(fit_apart(task()))
        assert await asyncio.to_thread(begun.wait, 60)
        if not early:
            go.set()
            assert await asyncio.to_thread(works.wait, 60)
        fitting.cancel()
        await asyncio.gather(fitting, return_exceptions=True)
        go.set()
        assert await asyncio.to_thread(works.wait, 60)

    asyncio.run(play())
    assert started[0].wait(60) < 0


def test_fits_are_kept_by_what_they_are_made_of_and_the_oldest_go(tmp_path: Path) -> None:
    fits, raw = Fits(tmp_path / "intent"), fit_task(task())
    assert fits.take("a") is None
    for at in range(MOST + 2):
        fits.keep(f"{at}", raw)
        os.utime(fits.folder / f"fit-{at}.bin", (at, at))
    fits.keep("last", raw)
    names = sorted(path.name for path in fits.folder.iterdir())
    assert names == [*(f"fit-{at}.bin" for at in range(3, MOST + 2)), "fit-last.bin"]
    found = fits.take("last")
    assert found is not None
    assert found[0].domains == ("law",)
    assert digest(b"a", b"b") != digest(b"ab") != digest(b"a", b"bc")


@pytest.mark.parametrize("content", [b"", b"no file of ours", b"\x90"], ids=["empty", "foreign", "wrong"])
def test_a_fit_that_cannot_be_read_is_made_anew(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "fit-a.bin").write_bytes(content)
    assert Fits(tmp_path).take("a") is None
    assert "is made anew" in caplog.text


@pytest.mark.parametrize("damage", ["a bit", "the end"])
def test_of_a_fit_that_is_damaged_no_figure_is_taken(tmp_path: Path, damage: str) -> None:
    fits, raw = Fits(tmp_path), fit_task(task())
    fits.keep("a", raw)
    file = tmp_path / "fit-a.bin"
    whole = file.read_bytes()
    for at in range(0, len(whole), max(1, len(whole) // 40)):
        file.write_bytes(whole[:at] if damage == "the end" else whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert fits.take("a") is None
    file.write_bytes(whole)
    assert fits.take("a") is not None


def test_a_folder_that_cannot_be_written_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SitsError, match=r"file/fit-a.bin") as caught:
        Fits(tmp_path / "file").keep("a", b"")
    assert caught.value.code is Code.INTERNAL


def test_embeddings_that_come_along_are_near_what_they_were(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rows = np.random.default_rng(5).normal(size=(6, 384)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    (tmp_path / shipped.FILE).write_bytes(shipped.pack("m", list("abcde甲"), rows))
    monkeypatch.setattr(shipped.importlib.resources, "files", lambda package: tmp_path)
    found = shipped.take(["甲", "b", "z"], "m")
    assert sorted(found) == ["b", "甲"]
    assert np.linalg.norm(np.frombuffer(found["甲"], "<f4") - rows[5]) < 0.01
    assert shipped.take(["b"], "another") == {}


def test_everything_that_is_shipped_comes_with_its_embedding() -> None:
    every = texts()
    found = shipped.take(every, weights_named())
    assert len(found) == len(every), "run `python -m sits.bench.intent_domains`"


def test_the_embeddings_that_come_along_are_those_of_the_model(tmp_path: Path) -> None:
    MODELS.mkdir(parents=True, exist_ok=True)
    (tmp_path / "models").symlink_to(MODELS)
    some = texts()[::400]
    found = shipped.take(some, weights_named())
    rows = np.stack([np.frombuffer(found[text], "<f4") for text in some])
    assert np.abs(rows - open_e5(tmp_path).embed(some)).max() < 0.01
    assert len(some) > 10


def test_a_process_of_its_own_says_how_far_it_is() -> None:
    heard: list[tuple[int, int]] = []
    asyncio.run(fit_apart(task(), lambda done, of: heard.append((done, of))))
    assert heard[0][0] == 0
    assert heard == [(at, heard[0][1]) for at in range(heard[0][1] + 1)]
