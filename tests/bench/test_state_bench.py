"""The benches of shared state and of endurance: the wire that fails to order, the cluster on it, and how their figures judge."""

from __future__ import annotations

import asyncio
import importlib
import random
import socket
import threading
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sits.bench import BenchError, Plan, state_ports, state_workers
from sits.bench.figure import exit_code
from sits.bench.soak import Counts, Soaked, slope, soak_figures
from sits.bench.soak import _gateway as soak_gateway
from sits.bench.soak import _seconds as soak_seconds
from sits.bench.soak_load import ERRANDS, Line, Load
from sits.bench.state import Showed, network_figures, run, workers_figures
from sits.bench.state_cluster import ROUGH, Healed, Three, Trial
from sits.bench.upstream import Paced
from sits.chaos.netns import Net, Traffic, Weather, refusal
from sits.chaos.netns_wire import Wire
from sits.cli.docs_ports import PORTS, checks, consistency
from sits.ports.servers.process import free_port

HERE = ["heal_gateways_seconds", "heal_crdts_seconds", "heal_sessions_seconds", "registration_live_seconds"]
HERE += ["registration_live_rough_seconds", "removed_still_served", "acknowledged_lost", "session_forks_unrecorded"]
HERE += ["session_faults"]


def packet(target: int, number: int = 0) -> bytes:
    """An IP packet, as far as the wire looks at one: version 4, to the address of the port `target`."""
    return b"\x45" + bytes(15) + bytes([10, 77, 0, target + 1]) + number.to_bytes(4, "big")


def delivered(wire: Wire, now: float) -> list[tuple[int, int]]:
    """Port and number of every packet that has arrived."""
    found = []
    while (taken := wire.take(now)) is not None:
        found.append((taken[0], int.from_bytes(taken[1][20:], "big")))
    return found


# The wire


def test_a_packet_arrives_where_its_destination_says_and_what_is_no_packet_nowhere() -> None:
    wire = Wire(3, random.Random(1))
    for data in (packet(2, 7), packet(9), b"\x60" + bytes(40), b"", packet(0, 8)):
        wire.send(1, data, 0.0)
    assert delivered(wire, 0.0) == [(2, 7), (0, 8)]
    assert wire.traffic == Traffic(passed=2)


@pytest.mark.parametrize(
    ("weather", "heard"),
    [
        pytest.param(Weather(deaf=(1,)), [(0, 2)], id="the deaf hear nothing and are heard"),
        pytest.param(Weather(mute=(1,)), [(1, 1)], id="the mute hear and are not heard"),
        pytest.param(Weather().cut((1,)), [], id="who is cut off is both"),
        pytest.param(Weather(loss=1.0), [], id="all is lost"),
    ],
)
def test_what_is_cut_does_not_pass(weather: Weather, heard: list[tuple[int, int]]) -> None:
    wire = Wire(2, random.Random(1))
    wire.weather = weather
    wire.send(0, packet(1, 1), 0.0)
    wire.send(1, packet(0, 2), 0.0)
    assert delivered(wire, 1.0) == heard
    traffic = wire.traffic
    assert traffic.passed == len(heard)
    assert traffic.passed + traffic.cut + traffic.lost == 2


def test_what_was_under_way_when_its_path_was_cut_is_lost() -> None:
    wire = Wire(2, random.Random(1))
    wire.weather = Weather(delay=(1.0, 1.0))
    wire.send(0, packet(1), 0.0)
    assert delivered(wire, 0.5) == []
    wire.weather = wire.weather.cut((1,))
    assert delivered(wire, 2.0) == []
    assert wire.traffic == Traffic(cut=1)


@given(
    seed=st.integers(0, 2**32),
    loss=st.floats(0, 0.5),
    twice=st.floats(0, 0.5),
    longest=st.floats(0, 0.1),
    count=st.integers(0, 60),
)
@settings(max_examples=60, deadline=None)
def test_every_packet_comes_once_or_is_counted_and_a_seed_repeats_it_all(
    seed: int, loss: float, twice: float, longest: float, count: int
) -> None:
    def play() -> tuple[list[tuple[int, int]], Traffic]:
        wire = Wire(2, random.Random(seed))
        wire.weather = Weather(delay=(0.0, longest), loss=loss, twice=twice)
        for number in range(count):
            wire.send(0, packet(1, number), number * 0.001)
        return delivered(wire, 10.0), wire.traffic

    came, traffic = play()
    numbers = [number for _, number in came]
    assert play() == (came, traffic)
    assert len(numbers) == traffic.passed == len(set(numbers)) + traffic.doubled
    assert len(set(numbers)) + traffic.lost == count
    falls = sum(number < max(numbers[:at], default=0) for at, number in enumerate(numbers))
    assert traffic.overtaken == falls


# Namespaces, and the cluster in them, where they are permitted; elsewhere the reason stands in the figures


def _echo(server: socket.socket) -> None:
    connection, _ = server.accept()
    with connection:
        while data := connection.recv(1000):
            connection.sendall(data)


def test_namespaces_talk_over_the_wire_until_it_is_cut_or_the_figures_say_why_not(tmp_path: Path) -> None:
    why = refusal()
    if why:
        assert [figure.ok for figure in network_figures(Showed(why=why)) if figure.bound] == [False] * len(HERE)
        return
    with Net(2, tmp_path) as net:
        with net.places[0].entered():
            server = socket.create_server((net.address(0), 7000))
        with server:
            thread = threading.Thread(target=_echo, args=(server,))
            thread.start()
            with net.places[1].entered():
                client = socket.create_connection((net.address(0), 7000), timeout=5.0)
            with client:
                net.set(Weather(delay=(0.001, 0.005), twice=0.5))
                for number in range(20):
                    client.sendall(b"%02d" % number)
                    assert client.recv(2, socket.MSG_WAITALL) == b"%02d" % number
                net.set(Weather().cut((1,)))
                client.sendall(b"lost")
                client.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    client.recv(4)
                assert net.traffic().cut > 0
                net.set(Weather())
                client.settimeout(10.0)
                assert client.recv(4, socket.MSG_WAITALL) == b"lost"
            thread.join(10.0)


def test_three_gateways_agree_again_after_a_partition(tmp_path: Path) -> None:
    if why := refusal():
        assert {figure.detail for figure in network_figures(Showed(why=why)) if figure.bound} == {why}
        return
    with Three(tmp_path) as three:
        live = [three.register(place) for place in three.places]
        healed = [three.round(Trial("two away", "two away", (2, 3), (2, 3), 2.5, ROUGH))]
        traffic = three.traffic()
    showed = Showed(healed, [one for one in live if one is not None], [0.0], live.count(None), traffic)
    figures = network_figures(showed)
    assert [figure.name for figure in figures if figure.bound] == HERE
    assert {figure.name: figure.detail for figure in figures if figure.ok is False} == {}
    assert healed[0].forks > 0
    assert traffic.cut > 0
    assert traffic.overtaken > 0


def test_nothing_is_left_when_the_cluster_does_not_start(tmp_path: Path) -> None:
    before = set(Path("/proc").glob("[0-9]*"))
    (tmp_path / "node1").mkdir()  # in the way
    with pytest.raises((FileExistsError, OSError, BenchError)), Three(tmp_path):
        raise AssertionError("it started")
    mine = [path for path in set(Path("/proc").glob("[0-9]*")) - before if _is_of(path, tmp_path)]
    assert mine == []


def _is_of(process: Path, folder: Path) -> bool:
    try:
        return str(folder).encode() in (process / "cmdline").read_bytes()
    except OSError:
        return False


# How the figures judge

WELL = Healed("a", 0.5, 0.6, 0.7, [], [], [], [], 4)


@pytest.mark.parametrize(
    ("showed", "missed"),
    [
        pytest.param(Showed([WELL], [0.1], [0.2]), set(), id="all holds"),
        pytest.param(Showed([], [0.1], [0.2]), {*HERE[:3], *HERE[5:]}, id="nothing was broken, so nothing healed"),
        pytest.param(
            Showed([WELL, msgspec.structs.replace(WELL, gateways=None)], [0.1], [0.2]), {HERE[0]}, id="one never agreed again"
        ),
        pytest.param(
            Showed([msgspec.structs.replace(WELL, replicas=2.0)], [0.1], [0.2]), {HERE[1]}, id="two seconds are too long"
        ),
        pytest.param(Showed([WELL], [0.1], [1.5]), {HERE[4]}, id="late in rough weather"),
        pytest.param(Showed([WELL], [0.1], [0.2], 1), {HERE[3], HERE[4]}, id="one registration never was live"),
        pytest.param(
            Showed([msgspec.structs.replace(WELL, left=["m on node1"], lost=["turn-1"], unrecorded=["turn-2"])], [0.1], [0.2]),
            {HERE[5], HERE[6], HERE[7]},
            id="left, lost and unrecorded",
        ),
    ],
)
def test_a_bound_is_missed_by_what_it_is_about_and_by_nothing_else(showed: Showed, missed: set[str]) -> None:
    figures = network_figures(showed)
    assert {figure.name for figure in figures if figure.ok is False} == missed
    assert exit_code(figures) == (1 if missed else 0)


def test_a_limit_that_lets_in_too_few_is_missed_as_much_as_one_that_lets_in_too_many() -> None:
    live = state_workers.Live([0.5], [0.4])
    right = state_workers.Admitted(4, 100, 10, 10, 0.1)
    for admitted, held in ((9, False), (10, True), (11, False)):
        figures = workers_figures(live, right, msgspec.structs.replace(right, admitted=admitted))
        assert [figure.ok for figure in figures] == [True, True, True, held, None]


def test_a_part_that_does_not_exist_is_refused_with_those_that_do(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="'net'; there are: network, workers, ports"):
        run(Plan(say=lambda _: None, cache=tmp_path, only=("net",)))


# Workers and ports


def test_processes_are_let_in_together_exactly_as_often_as_the_limit_says(tmp_path: Path) -> None:
    found = state_workers.admitted(tmp_path, 3, 200, 77)
    assert (found.asked, found.admitted) == (600, 77)


def test_every_worker_goes_by_a_registration_within_a_second(tmp_path: Path) -> None:
    found = state_workers.live(tmp_path, 2, 1)
    assert len(found.registered) == len(found.removed) == 1
    assert max(*found.registered, *found.removed) < 1.0


def test_calls_of_adapters_without_a_server_are_timed_and_a_server_that_is_not_here_leaves_no_value(tmp_path: Path) -> None:
    def broken(folder: Path) -> None:
        raise ModuleNotFoundError("No module named 'tansu'")

    here = tuple(row for row in state_ports.ROWS if row.adapter in ("sqlite", "local"))
    away = msgspec.structs.replace(state_ports.ROWS[-2], adapter="tansu", place=broken)
    times = state_ports.measure((*here, away), tmp_path, 5, lambda _: None)
    assert [(one.port, one.adapter, one.call, len(one.values)) for one in times] == [
        ("store", "sqlite", "commit", 5), ("store", "sqlite", "get", 5), ("store", "sqlite", "add", 5),
        ("bus", "local", "publish", 5), ("bus", "local", "publish to delivery", 5), ("bus", "local", "put to watch", 5),
        ("flows", "tansu", "start to result", 0),
    ]  # fmt: skip
    figures = state_ports.figures(times)
    assert len(figures) == 2 * len(times)
    assert (figures[-1].value, figures[-1].ok, figures[-1].detail) == (None, None, "No module named 'tansu'")
    assert all(figure.value is not None and figure.value > 0 for figure in figures[:-2])


# The soak


@given(
    steep=st.floats(-10, 10),
    start=st.floats(0, 1000),
    count=st.integers(5, 60),
)
@settings(max_examples=60, deadline=None)
def test_the_slope_of_a_line_is_the_lines(steep: float, start: float, count: int) -> None:
    found = slope([(float(x), start + steep * x) for x in range(count)])
    assert found == pytest.approx(steep, abs=1e-6)


def test_the_slope_is_that_of_the_last_two_thirds() -> None:
    climbed = [(float(x), min(float(x), 100.0)) for x in range(300)]
    assert slope(climbed) == pytest.approx(0.0)
    assert slope([(0.0, 1.0)]) is None


RESTED = Counts(12, 8, 39)
SLOPES = {"rss_slope_mib_per_minute", "own_memory_slope_mib_per_minute"}


@pytest.mark.parametrize(
    ("soaked", "missed"),
    [
        pytest.param(
            Soaked(memory=[(0, 50, 30), (60, 50, 30), (120, 50.2, 30.2)], before=RESTED, after=RESTED), set(), id="as it was"
        ),
        pytest.param(Soaked(memory=[(0, 50, 30), (60, 50, 30), (120, 53, 33)], before=RESTED, after=RESTED), SLOPES, id="leaks"),
        pytest.param(
            Soaked(memory=[(0, 50, 30), (60, 50, 30), (120, 50, 30)], before=RESTED, after=Counts(13, 9, 40)),
            {"threads_grown", "tasks_grown", "files_grown"},
            id="keeps what it should let go",
        ),
        pytest.param(
            Soaked(
                memory=[(0, 50, 30), (60, 50, 30), (120, 50, 30)],
                before=RESTED,
                after=RESTED,
                failed={"chat": 1},
                why="chat: 状态 500",
            ),
            {"failed_requests"},
            id="one request failed",
        ),
        pytest.param(
            Soaked(memory=[(0, 50, 30), (60, 50, 30), (120, 53, 30)], before=RESTED, after=RESTED),
            {"rss_slope_mib_per_minute"},
            id="maps more and more files",
        ),
        pytest.param(Soaked(before=RESTED, after=RESTED), SLOPES, id="memory was never seen"),
    ],
)
def test_a_soak_holds_when_nothing_grew_and_nothing_failed(soaked: Soaked, missed: set[str]) -> None:
    figures = soak_figures(soaked, quick=False)
    assert {figure.name for figure in figures if figure.ok is False} == missed
    assert {figure.name for figure in soak_figures(soaked, quick=True) if figure.ok is False} == missed - SLOPES


@pytest.mark.parametrize("said", ["5", "long", ""])
def test_a_soak_that_would_be_too_short_is_refused(said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SITS_SOAK_SECONDS", said)
    with pytest.raises(BenchError, match="SITS_SOAK_SECONDS"):
        soak_seconds(quick=False)
    assert soak_seconds(quick=True) == 30.0


def test_every_errand_of_the_soak_gets_what_it_must_and_a_gateway_that_is_gone_fails_all(tmp_path: Path) -> None:
    upstream = Paced(tmp_path, 0, seconds=0.02)

    async def all_of(port: int) -> Load:
        load, line = Load(port, random.Random(3)), Line(port)
        for _ in range(3):
            for name, (_, errand) in ERRANDS.items():
                await load.run(name, errand(line, load))
        await line.close()
        return load

    with upstream.child:
        upstream.await_ready()
        with soak_gateway(tmp_path, upstream.url) as gateway:
            load = asyncio.run(all_of(gateway.port))  # type: ignore[attr-defined]
    assert (dict(load.failed), load.why) == ({}, "")
    assert dict(load.sent) == dict.fromkeys(ERRANDS, 3)
    gone = asyncio.run(all_of(free_port()))
    assert gone.failed == gone.sent
    assert gone.why.startswith("chat: ConnectionRefusedError")


# The page of the ports


@pytest.mark.parametrize("port", PORTS, ids=lambda port: port.name)
def test_the_page_of_the_ports_has_every_adapter_and_what_each_promises(port: object) -> None:
    assert isinstance(port, type(PORTS[0]))
    room = importlib.import_module(f"sits.ports.{port.name}")
    adapters = room.ADAPTERS
    named = {row.name for row in adapters} if isinstance(adapters, tuple) else set(adapters)
    # `rediss` and `postgres` are further words for an address of the same adapter.
    assert named - {"rediss", "postgres"} == {adapter.name for adapter in port.adapters}
    promised = [list(consistency(adapter.module)) for adapter in port.adapters]
    assert all(one == promised[0] for one in promised)
    for adapter in port.adapters:
        module = importlib.import_module(f"sits.ports.{adapter.module.replace('/', '.')}")
        assert dict(consistency(adapter.module)) == module.CONSISTENCY
    suite = importlib.import_module(f"sits.ports.{port.name}.checks")
    assert checks(f"ports/{port.name}/checks") == len(suite.CHECKS)


def test_a_module_without_promises_is_an_error() -> None:
    with pytest.raises(LookupError, match="assigns nothing to CONSISTENCY"):
        consistency("store/limits")
