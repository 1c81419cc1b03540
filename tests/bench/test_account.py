from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sits.bench import BenchError, account
from sits.bench.child import Child, answers
from sits.ports.servers.process import free_port

# Burns CPU in itself, in a child that it waits for, and in a child that lives on; says what each took, then waits.
BURNER = """
import json, os, subprocess, sys, time
BURN = "import sys, time\\nwhile time.process_time() < {}: pass\\n"
STAY = "print(time.process_time(), flush=True)\\nsys.stdin.read()"
subprocess.run([sys.executable, "-c", BURN.format(0.3)], check=True)
live = subprocess.Popen([sys.executable, "-c", BURN.format(0.4) + STAY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
other = float(live.stdout.readline())
while time.process_time() < 0.5: pass
t = os.times()
print(json.dumps({"cpu": t.user + t.system + t.children_user + t.children_system + other, "live": live.pid}), flush=True)
input()
"""


def test_cpu_is_that_of_the_process_its_live_children_and_those_it_has_waited_for() -> None:
    with subprocess.Popen([sys.executable, "-c", BURNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        said = json.loads(child.stdout.readline())
        found = account.cpu_seconds(child.pid)
        assert account.tree(child.pid) == [child.pid, said["live"]]
        child.communicate("\n")
    assert said["cpu"] > 1.1
    assert found == pytest.approx(said["cpu"], abs=0.06)


def test_memory_grows_by_what_a_process_holds_and_the_peak_stays_when_it_lets_go() -> None:
    code = "x = bytearray(b'x') * (64 << 20); print(1, flush=True); input(); del x; print(2, flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        held = account.memory(child.pid)
        child.stdin.write("\n")
        child.stdin.flush()
        child.stdout.readline()
        after = account.memory(child.pid)
        child.communicate("\n")
    assert 64 < held.rss < 120
    assert after.rss < held.rss - 60
    assert after.peak >= 64


def test_a_process_that_has_gone_has_used_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert account.tree(child.pid) == []
    assert account.cpu_seconds(child.pid) == 0.0
    assert account.memory(child.pid) == account.Memory(0.0, 0.0)


def test_a_child_runs_on_its_core_answers_and_is_gone_with_its_own_children_after_the_with(tmp_path: Path) -> None:
    port, core = free_port(), max(os.sched_getaffinity(0))
    code = f"import subprocess, sys\nsubprocess.run([sys.executable, '-m', 'http.server', '{port}', '--bind', '127.0.0.1'])"
    with Child("server", [sys.executable, "-c", code], core=core, log=tmp_path / "log") as child:
        assert 0 < child.await_ready(answers(f"http://127.0.0.1:{port}/"), seconds=20) < 20
        pids = account.tree(child.pid)
        assert len(pids) == 2
        assert [os.sched_getaffinity(pid) for pid in pids] == [{core}] * 2
    assert not child.alive
    assert account.tree(pids[0]) == []
    assert not answers(f"http://127.0.0.1:{port}/")()


def test_a_child_that_ends_before_it_is_ready_says_why(tmp_path: Path) -> None:
    code = "import sys; sys.exit('the port is taken 端口')"
    with (
        Child("peer", [sys.executable, "-c", code], core=max(os.sched_getaffinity(0)), log=tmp_path / "log") as child,
        pytest.raises(BenchError, match=r"(?s)peer ended with code 1 .*the port is taken 端口"),
    ):
        child.await_ready(lambda: False, seconds=20)


def test_a_child_that_is_never_ready_is_given_up(tmp_path: Path) -> None:
    with (
        Child("peer", [sys.executable, "-c", "input()"], core=max(os.sched_getaffinity(0)), log=tmp_path / "log") as child,
        pytest.raises(BenchError, match=r"peer (was not ready after 0 s|ended)"),
    ):
        child.await_ready(lambda: False, seconds=0.01)
