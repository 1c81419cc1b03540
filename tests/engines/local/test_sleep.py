"""A model that is put away but not unloaded: what it gives back, that nothing is lost on the way there and back, and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from local_kit import DEADLINES as LIMITS
from local_kit import alive, ask, chat, e5_plan, house, post, run, smol_plan, until

from sits.engines.local.child import start
from sits.engines.local.engine import LocalEngine
from sits.engines.local.fetch import fetch
from sits.engines.local.hosting import REST, HostSpec
from sits.engines.local.lease import living, read
from sits.engines.local.zeros import _anonymous
from sits.inner.errors import Code

MIB = 1024 * 1024
QUESTION = chat("What is 2+2?", max_tokens=8)
LONG = chat("Tell me a long story.", max_tokens=30, ignore_eos=True, stream=True)


def private(pid: int | None) -> int:
    """Bytes of memory that a process holds and no file can give back."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Anonymous:"))


async def said(engine: LocalEngine, body: dict[str, Any] = QUESTION) -> Any:
    return (await ask(engine, "/v1/chat/completions", body))["choices"][0]["message"]["content"]


async def counted(engine: LocalEngine) -> Any:
    body = {"prompt": "One, two, three,", "max_tokens": 4, "temperature": 0}
    return (await ask(engine, "/v1/completions", body))["choices"][0]["text"]


async def prompt_tokens_read(engine: LocalEngine, prompt: str) -> int:
    body = {"prompt": prompt, "max_tokens": 1, "temperature": 0}
    return int((await ask(engine, "/v1/completions", body))["timings"]["prompt_n"])


def test_asleep_it_holds_little_and_awake_it_says_what_it_said_before(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(context=2048), models)
            before = await said(engine)
            tale = "A tale of the sea. " * 10
            assert await prompt_tokens_read(engine, tale) > 40
            assert await prompt_tokens_read(engine, tale) < 10, "it is kept"
            awake, held = engine.status, private(engine.status.pid)
            assert held > 200 * MIB, "4 x 2048 tokens take 180"
            assert await engine.rest()
            assert await engine.rest(), "there is nothing left to do"
            asleep = engine.status
            assert (asleep.state, asleep.pid) == ("asleep", awake.pid)
            assert private(asleep.pid) < 80 * MIB
            assert asleep.needs_bytes is not None
            assert asleep.needs_bytes < 80 * MIB, "it counts as what it holds"
            assert asleep.resident_bytes > 90 * MIB, "its weights stay mapped"
            await engine.probe(None, LIMITS)
            assert engine.status.state == "asleep", "to look does not wake it"
            assert await prompt_tokens_read(engine, tale) > 40, "what it had read is gone"
            assert await said(engine) == before
            assert (engine.status.state, engine.status.pid) == ("hot", awake.pid)
            assert engine.status.needs_bytes == awake.needs_bytes
            await engine.aclose()
            assert not alive(awake.pid or 0)

    run(story())


def test_requests_that_come_while_it_falls_asleep_or_wakes_are_all_answered(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models, house(data) as others:
            engine, other = LocalEngine(smol_plan(), models), LocalEngine(smol_plan(), others)
            expected = await counted(engine)
            await counted(other)
            seen: set[str] = set()
            for _ in range(2):
                asked = []
                resting = asyncio.create_task(engine.rest())
                await until(lambda: (lease := living(engine._resident.lease)) is not None and lease.state != "hot")
                while not resting.done():
                    for one in (engine, other) if len(asked) < 8 else ():
                        asked.append(asyncio.create_task(counted(one)))
                    seen.add(other.status.state)
                    await asyncio.sleep(0.15)
                assert set(await asyncio.gather(*asked)) == {expected}
                await resting
                assert await engine.rest()
                assert await counted(other) == expected, "the other worker finds it where it is now"
            assert seen >= {"asleep"}
            await other.aclose()
            await engine.aclose()

    run(story())


def test_no_worker_puts_it_to_sleep_under_the_request_of_another(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models, house(data) as others:
            engine, other = LocalEngine(smol_plan(), models), LocalEngine(smol_plan(), others)
            await engine.warm()
            await other.warm()
            held = other._resident.hold()  # As of a request that is on its way to the model, who knows nothing of it yet.
            assert held
            assert not await engine.rest()
            other._resident.let()
            _, answer = post(engine, "/v1/chat/completions", LONG)
            await answer.first.wait()
            assert not await engine.rest()
            assert len((await answer.wait()).events()) > 30
            assert await other.rest()
            await until(lambda: engine.status.state == "asleep")
            await other.aclose()
            await engine.aclose()

    run(story())


def test_one_that_is_killed_in_its_sleep_is_missed_and_loaded_again(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(smol_plan(), models)
            before = await said(engine)
            assert await engine.rest()
            pid = engine.status.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            await until(lambda: engine.status.state == "cold")
            assert await said(engine) == before
            assert engine.status.pid not in (None, pid)
            await engine.aclose()

    run(story())


SLEEPER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from local_kit import house, run, smol_plan
from sits.engines.local.engine import LocalEngine

async def story():
    async with house(Path(sys.argv[1])) as models:
        engine = LocalEngine(smol_plan(), models)
        await engine.warm()
        assert await engine.rest()
        print(engine.status.pid, flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)

run(story())
"""


def test_one_that_sleeps_ends_with_its_owner(data: Path) -> None:
    command = [sys.executable, "-c", SLEEPER, str(data), str(Path(__file__).parent)]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert alive(pid)
    owner.kill()
    owner.communicate()

    async def story() -> None:
        await until(lambda: not alive(pid))

    run(story())


def test_those_that_sleep_make_room_first_and_one_for_which_there_is_no_room_sleeps_on(data: Path) -> None:
    async def story() -> None:
        async with house(data, memory_mib=470) as models:
            idle = LocalEngine(smol_plan(prefixes_mib=0), models)
            asleep = LocalEngine(smol_plan(prefixes_mib=0, context=768), models)
            await idle.warm()
            await asleep.warm()
            assert await asleep.rest()
            third = LocalEngine(smol_plan(prefixes_mib=0, context=1280), models)
            await third.warm()
            states = [engine.status.state for engine in (idle, asleep, third)]
            assert states == ["hot", "cold", "hot"], "though the idle one was used longer ago"
            assert await third.rest()
            await asleep.warm()
            assert third.status.state == "asleep"
            assert await idle.unload()
            _, tale = post(asleep, "/v1/chat/completions", LONG)
            await tale.first.wait()
            pid = third.status.pid
            _, refused = post(third, "/v1/chat/completions", QUESTION)
            await refused.wait()
            assert refused.error is not None
            assert refused.error.code is Code.MODEL_DOES_NOT_FIT
            assert " awake, " in refused.error.message
            assert (third.status.state, third.status.pid, third.status.error) == ("asleep", pid, refused.error.message)
            assert len((await tale.wait()).events()) > 30

    run(story())


def test_one_that_cannot_sleep_is_unloaded(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            engine = LocalEngine(e5_plan(), models)
            await engine.warm()
            assert await engine.rest()
            assert engine.status.state == "cold"
            await engine.aclose()

    run(story())


def test_one_that_would_hold_most_of_its_memory_in_its_sleep_leaves(data: Path) -> None:
    async def story() -> None:
        async with house(data) as models:
            ((weights,),) = fetch(smol_plan().wanted, models.machine.models, lambda done, total, what: None)
            lease = models.machine.run / "m.json"
            child = await start(HostSpec("local", "smol", str(weights), str(lease), "key", 40 * MIB, context=256, slots=1), 60.0)
            child.send(REST)
            assert await child.wait(20.0)
            found = read(lease)
            assert found is not None
            assert found.left

    run(story())


ZEROS = """
import mmap, sys
from pathlib import Path
from sits.engines.local import memory, zeros
MIB = 1024 * 1024
area = mmap.mmap(-1, 64 * MIB, flags=mmap.MAP_PRIVATE)
area.write(b"\1" * (64 * MIB))
area[:] = bytes(64 * MIB)
area[20 * MIB + 5] = 7
area[64 * MIB - 1] = 9
before = memory.private()
given = zeros.give_zeros_back()
freed = before - memory.private()
assert given > 55 * MIB and freed > 55 * MIB, (given, freed)
assert (area[20 * MIB + 5], area[64 * MIB - 1], area[:].count(0)) == (7, 9, 64 * MIB - 2)
zeros.trim()
print("well")
"""


@pytest.mark.parametrize(
    ("malloc", "last"),
    [("malloc", "well"), ("pymalloc", "PYTHONMALLOC=malloc")],
    ids=["only zeros go", "not under Python's own feet"],
)
def test_zeros_are_given_back_and_nobody_can_tell(malloc: str, last: str) -> None:
    environment = os.environ | {"PYTHONMALLOC": malloc}
    done = subprocess.run([sys.executable, "-c", ZEROS], env=environment, capture_output=True, text=True, check=False)
    assert (done.stdout + done.stderr).strip().endswith(last)


def test_stacks_of_threads_and_what_has_a_name_are_left_alone() -> None:
    maps = """\
1000000-2000000 r--p 00000000 08:01 12 /lib/some.so
2000000-3000000 rw-p 00000000 00:00 0 [heap]
4000000-5000000 rw-p 00000000 00:00 0
5000000-5001000 ---p 00000000 00:00 0
5001000-5801000 rw-p 00000000 00:00 0
5801000-6801000 rw-p 00000000 00:00 0
7000000-7001000 ---p 00000000 00:00 0
7001000-f001000 rw-p 00000000 00:00 0
f100000-f180000 rw-p 00000000 00:00 0
f200000-f400000 rw-s 00000000 00:01 7 /dev/zero (deleted)
f400000-f600000 r--s 00000000 08:01 13 /模型/小\x1c模\x85型\u2028 .gguf
""".encode().split(b"\n")
    assert list(_anonymous(maps)) == [(0x4000000, 0x5000000), (0x5801000, 0x6801000), (0x7001000, 0xF001000)]
