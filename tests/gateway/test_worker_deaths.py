"""A worker that ended before it was to: what the log says, and what is counted, also by those that come after it."""

from __future__ import annotations

import json
import os
import pathlib
import signal

import pytest
from gateway_client import eventually
from gateway_process import Sits
from gateway_rig import inside_loop

from sits.gateway.crew import Figures
from sits.gateway.deaths import DEATHS, Death, Deaths
from sits.observe.exposition import merge
from sits.observe.metrics import Registry

KILLED = (
    "worker 1 (pid 4711) was killed by SIGKILL (by hand, or by a kernel that was out of memory: it says so in its own log)"
    " after 12.3 s; answers that it had under way are cut"
)


@pytest.mark.parametrize(
    ("death", "said"),
    [
        pytest.param(Death(1, 4711, -9, 12.34, 0.0), f"{KILLED}; it is started again now", id="killed"),
        pytest.param(Death(1, 4711, -9, 12.34, None), KILLED, id="killed while all end"),
        pytest.param(
            Death(0, 5, -11, 0.0, 2.0),
            "worker 0 (pid 5) was killed by SIGSEGV after 0.0 s; answers that it had under way are cut;"
            " it is started again in 2.0 s",
            id="a defect of a library",
        ),
        pytest.param(
            Death(0, 5, -63, 1.0, None),
            "worker 0 (pid 5) was killed by signal 63 after 1.0 s; answers that it had under way are cut",
            id="a signal without a name",
        ),
        pytest.param(
            Death(0, 5, 0, 1.0, 0.5),
            "worker 0 (pid 5) ended with exit code 0 after 1.0 s; answers that it had under way were finished;"
            " it is started again in 0.5 s",
            id="sent away alone",
        ),
    ],
)  # fmt: skip
def test_a_death_is_told_in_one_sentence(death: Death, said: str) -> None:
    assert str(death) == said


def test_deaths_are_counted_by_whoever_answers_and_cut_answers_alone_are_deaths(tmp_path: pathlib.Path) -> None:
    lines: list[bytes] = []
    deaths = Deaths(2, Figures(tmp_path, 7, "crew"), lines.append, lambda: 0.25)
    answering = Figures(tmp_path, 7, 0)
    registry = Registry(50)
    registry.worker = answering.name

    def told() -> list[str]:
        page = merge([registry.dump()], left=answering.left)
        assert "sits_metrics_workers_missing 0" in page
        return [line for line in page.splitlines() if line.startswith(DEATHS)]

    assert told() == [f'{DEATHS}{{worker="0"}} 0.0', f'{DEATHS}{{worker="1"}} 0.0']
    for code in (-9, 1, 0):
        deaths(Death(1, 4711, code, 1.0, 0.0))
    assert told() == [f'{DEATHS}{{worker="0"}} 0.0', f'{DEATHS}{{worker="1"}} 2.0']
    assert [json.loads(line)["level"] for line in lines] == ["error", "error", "warning"]
    assert json.loads(lines[1]) == {
        "ts": "1970-01-01T00:00:00.250Z", "level": "error", "logger": "sits.gateway", "msg": str(Death(1, 4711, 1, 1.0, 0.0))
    }  # fmt: skip


@inside_loop
async def test_a_worker_that_is_killed_is_told_of_and_those_whose_parent_is_killed_end(tmp_path: pathlib.Path) -> None:
    async with Sits(tmp_path, workers=2) as sits:
        victim = sits.crew()[-1]
        os.kill(victim, signal.SIGKILL)
        await sits.logged(rf"worker 1 \(pid {victim}\) was killed by SIGKILL .* answers that it had under way are cut")
        await eventually(lambda: len(sits.crew()) == 2 and victim not in sits.crew(), "another has taken its place")
        asked = await sits.ask("/metrics")
        assert f'{DEATHS}{{worker="1"}} 1' in asked.body.decode()
        who = (await sits.ask("/v1/admin/status")).json["reports"]["who"]
        assert any(who.rpartition("-")[0].endswith(f"-worker-{n}-pid-{pid}") for n, pid in enumerate(sits.crew()))
        assert [line["level"] for line in sits.lines if "worker 1 (pid" in line.get("msg", "")] == ["error"]
        # Nobody would look after them once their parent is gone.
        crew = sits.crew()
        sits.signal(signal.SIGKILL)
        await eventually(lambda: not any(sits.lives(pid) for pid in crew), "the workers of a parent that was killed end too")
