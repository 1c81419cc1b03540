"""The life of a local model: loaded once when it is needed, gone when it is not, and never left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from local_kit import CACHE, Answer, alive, ask, chat, e5_plan, house, outgoing, post, run, smol_plan, until

from granted import Granted
from sits.engines.base import Deadlines
from sits.engines.local.engine import LocalEngine
from sits.inner.errors import Code


class Beside:
    """Counts the steps of another thread: what this process got of the machine while its loop may have been held up."""

    STEP = 0.001

    def __init__(self) -> None:
        self.steps = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._count)

    def __enter__(self) -> Beside:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _count(self) -> None:
        while not self._over.wait(self.STEP):
            self.steps += 1


LONG = chat("Tell me a long story.", max_tokens=400, ignore_eos=True, stream=True)


def test_many_first_requests_load_the_model_once(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            assert engine.status.state in ("absent", "cold")
            asked = [post(engine, "/v1/chat/completions", chat("hi", max_tokens=2)) for _ in range(6)]
            assert engine.status.state in ("loading", "fetching")
            gone, _ = asked.pop()
            gone.cancel()
            for _, answer in asked:
                assert (await answer.wait()).json()["usage"]["completion_tokens"] == 2
            assert engine.status.state == "hot"
            assert len(list((data / "run").glob("*.json"))) == 1
            await engine.aclose()

    run(story())


def test_waiting_for_a_load_counts_against_the_total_deadline_only(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            short = Deadlines(connect=5, headers=0.001, first_token=0.001, idle=0.001, total=0.01)
            call, answer = post(engine, "/v1/chat/completions", chat("hi"), short)
            assert (call.started, call.reused, call.connect_time) == (False, False, 0.0)
            await answer.wait()
            assert answer.error is not None
            assert answer.error.code is Code.UPSTREAM_TIMEOUT
            assert answer.error.message.startswith("total: smol was still ")
            await engine.warm()
            assert engine.status.state == "hot", "the load goes on for those who come later"
            await engine.aclose()

    run(story())


def test_an_unused_model_falls_asleep_leaves_and_comes_back(data: Path) -> None:
    async def story() -> None:
        async with house(data, asleep_seconds=0.4) as models:
            engine = LocalEngine(smol_plan(unload_after=0.4), models)
            await ask(engine, "/v1/chat/completions", chat("hi", max_tokens=30, ignore_eos=True))
            first = engine.status.pid
            assert first is not None
            assert engine.status.resident_bytes > 100_000_000
            await until(lambda: engine.status.state == "asleep")
            assert engine.status.pid == first
            await until(lambda: engine.status.state == "cold")
            assert not alive(first)
            await ask(engine, "/v1/chat/completions", chat("hi", max_tokens=2))
            assert engine.status.pid not in (None, first)
            await engine.aclose()

    run(story())


def test_a_busy_model_is_not_unloaded(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(unload_after=0.2), models)
            call, answer = post(engine, "/v1/chat/completions", LONG)
            await answer.first.wait()
            assert not await engine.unload()
            await answer.wait()
            assert len(answer.events()) > 400
            call.cancel()
            assert await engine.unload()
            assert engine.status.state == "cold"
            await engine.aclose()

    run(story())


def test_a_crash_breaks_the_answer_under_way_and_the_next_request_reloads(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            _, answer = post(engine, "/v1/chat/completions", LONG)
            await answer.first.wait()
            pid = engine.status.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await answer.wait()
            assert answer.error is not None
            assert answer.error.code is Code.UPSTREAM_BROKEN
            await ask(engine, "/v1/chat/completions", chat("hi", max_tokens=2))
            assert engine.status.pid not in (None, pid)
            await engine.aclose()

    run(story())


def test_how_a_killed_process_ended_is_told_though_its_silence_was_seen_first(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            await ask(engine, "/v1/chat/completions", chat("hi", max_tokens=2))
            pid, remote = engine.status.pid, engine._resident.remote
            assert pid is not None
            assert remote is not None
            engine._resident.lose(remote)
            os.kill(pid, signal.SIGKILL)
            said = "the process of smol ended: killed by SIGKILL, perhaps for want of memory"
            await until(lambda: said in caplog.messages)
            await engine.aclose()

    run(story())
    assert not any("still running" in said for said in caplog.messages)


def test_closing_ends_the_process_after_the_last_answer(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            _, answer = post(engine, "/v1/chat/completions", chat("hi", max_tokens=60, ignore_eos=True, stream=True))
            await answer.first.wait()
            pid = engine.status.pid
            assert pid is not None
            await engine.aclose()
            await engine.aclose()
            late = Answer()
            engine.send(outgoing("/v1/chat/completions", chat("hi")), late, Deadlines())
            assert not late.done.is_set(), "nothing is told before send has returned"
            await late.wait()
            assert late.error is not None
            assert late.error.code is Code.MODEL_UNAVAILABLE
            await answer.wait()
            assert len(answer.events()) > 60
            await until(lambda: not alive(pid))

    run(story())


def test_two_declarations_of_one_model_share_its_process_and_a_new_one_outlives_the_old(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            old, new = LocalEngine(smol_plan(), models), LocalEngine(smol_plan(), models)
            await old.warm()
            assert old.status.pid == new.status.pid
            await old.aclose()
            await ask(new, "/v1/chat/completions", chat("hi", max_tokens=2))
            await new.aclose()

    run(story())


def test_a_process_that_is_there_already_goes_on_and_is_not_told_of_as_loaded(
    data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "sits.local")

    async def story() -> None:
        async with house(data) as models, house(data) as others:
            engine, other = LocalEngine(smol_plan(), models), LocalEngine(smol_plan(), others)
            await engine.warm()
            await other.warm()
            assert engine.status.pid == other.status.pid
            await other.aclose()
            await engine.aclose()

    run(story())
    said = [record.getMessage().partition(" (pid")[0].split(" after")[0] for record in caplog.records]
    assert said == ["smol is ready", "smol goes on in its process", "smol is unloaded"]


WORKER = """
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from local_kit import ask, chat, house, run, smol_plan
from sits.engines.local.engine import LocalEngine

async def story():
    async with house(Path(sys.argv[1])) as models:
        engine = LocalEngine(smol_plan(), models)
        await ask(engine, "/v1/chat/completions", chat("hi", max_tokens=2))
        print(json.dumps({"pid": engine.status.pid}), flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

run(story())
"""


def worker(data: Path) -> subprocess.Popen[str]:
    secret = os.environ | {"OPENAI_API_KEY": "canary-secret"}
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, str(data), str(Path(__file__).parent)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=secret,
    )


def told(process: subprocess.Popen[str]) -> int:
    assert process.stdout is not None
    return int(json.loads(process.stdout.readline())["pid"])


def wait_until_gone(pid: int) -> None:
    """No process outlives its owner."""

    async def story() -> None:
        await until(lambda: not alive(pid))

    run(story())


def test_workers_share_one_process_that_knows_no_secret_and_dies_with_its_owner(data: Path) -> None:
    first = worker(data)
    pid = told(first)
    second = worker(data)
    try:
        assert told(second) == pid
        assert b"canary-secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        lease = next((data / "run").glob("*.json"))
        assert lease.stat().st_mode & 0o777 == 0o600
        assert json.loads(lease.read_text())["key"].encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()
        first.kill()
        first.communicate()
        wait_until_gone(pid)
        third = worker(data)
        try:
            fresh = told(third)
            assert fresh != pid
        finally:
            third.communicate("")
        assert not alive(fresh)
    finally:
        first.kill()
        second.communicate("")


def test_an_owner_killed_while_the_model_loads_leaves_nothing(data: Path) -> None:
    first = worker(data)
    children = Path(f"/proc/{first.pid}/task/{first.pid}/children")

    async def story() -> int:
        found: list[int] = []

        def started() -> bool:
            command = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children.read_text().split()}
            found[:] = [int(pid) for pid, line in command.items() if b"engines.local.host" in line]
            return bool(found)

        await until(started)
        return found[0]

    pid = run(story())
    first.kill()
    first.communicate()
    wait_until_gone(pid)


def test_what_does_not_fit_is_refused_with_figures(data: Path) -> None:
    async def story() -> None:
        async with house(data, memory_mib=150) as models:
            engine = LocalEngine(smol_plan(context=4096, prefixes_mib=0), models)
            _, answer = post(engine, "/v1/chat/completions", chat("hi"))
            await answer.wait()
            assert answer.error is not None
            assert answer.error.code is Code.MODEL_DOES_NOT_FIT
            assert answer.error.message.startswith("smol needs 5")
            assert "(weights 94 MiB, KV 360 MiB, buffers " in answer.error.message
            assert answer.error.message.endswith("), 150 MiB free of localMemoryMib 150")
            assert engine.status.state == "failed"
            await engine.aclose()

    run(story())


def test_the_longest_idle_model_makes_room_and_a_busy_one_does_not(data: Path) -> None:
    async def story() -> None:
        async with house(data, memory_mib=420) as models:
            e5, one = LocalEngine(e5_plan(), models), LocalEngine(smol_plan(), models)
            other = LocalEngine(smol_plan(context=256), models)
            await one.warm()
            await e5.warm()
            await ask(e5, "/v1/embeddings", {"input": "hello"})
            await other.warm()
            assert [one.status.state, e5.status.state, other.status.state] == ["cold", "hot", "hot"]
            call, answer = post(other, "/v1/chat/completions", {**LONG, "max_tokens": 200})
            await answer.first.wait()
            await e5.unload()
            _, refused = post(LocalEngine(smol_plan(context=2048), models), "/v1/chat/completions", chat("hi"))
            await refused.wait()
            assert refused.error is not None
            assert refused.error.code is Code.MODEL_DOES_NOT_FIT
            assert "taken by other models" in refused.error.message
            assert (other.status.state, answer.error) == ("hot", None), "the busy one was left alone"
            call.cancel()

    run(story())


def test_a_missing_extra_is_said_with_what_to_do(data: Path, tmp_path: Path) -> None:
    blocker = tmp_path / "block"
    blocker.mkdir()
    (blocker / "xllamacpp.py").write_text("raise ImportError('no module named xllamacpp')")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = str(blocker)
    try:

        async def story() -> None:
            async with house(data) as models:
                engine = LocalEngine(smol_plan(), models)
                _, answer = post(engine, "/v1/chat/completions", chat("hi"))
                await answer.wait()
                assert answer.error is not None
                assert answer.error.code is Code.MODEL_UNAVAILABLE
                assert "install sits[local]" in answer.error.message
                await engine.aclose()

        run(story())
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before


def test_a_cold_start_to_the_first_token_is_fast(data: Path) -> None:
    async def story() -> float:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            async with Granted() as granted:
                _, answer = post(engine, "/v1/chat/completions", chat("hi", stream=True, max_tokens=2))
                await answer.first.wait()
            await answer.wait()
            await engine.aclose()
            return granted.seconds

    run(story())  # the first one may fetch
    took = run(story())
    print(f"cold start to first token: {took:.2f} s")
    assert took < 10


def test_the_models_of_these_tests_are_kept_for_the_next_run() -> None:
    assert any(CACHE.glob("sha256/*/*.gguf"))


def test_the_loop_stays_free_while_a_model_loads(data: Path) -> None:
    async def story() -> float:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            loading = asyncio.create_task(engine.warm())
            worst = 0
            with Beside() as beside:
                while not loading.done():
                    begun = beside.steps
                    await asyncio.sleep(0.001)
                    worst = max(worst, beside.steps - begun)
            await engine.aclose()
            return worst * Beside.STEP

    worst = run(story())
    print(f"longest hold-up of the loop during a load: {worst * 1000:.0f} ms")
    assert worst < 0.5
