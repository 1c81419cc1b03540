"""Three gateways in three network namespaces, and what becomes of them when the network between them fails.

NATS and Redis are in a fourth namespace; each gateway has a model server on its own loopback and, beside it, a process with a
replica of CRDTs and the sessions of that node (`state_node.py`). We talk to all of them over their loopback addresses and pipes,
which no partition touches. In a round some places are cut off, things are changed on every side, the cut is mended, and it is
waited until all say the same.
"""

from __future__ import annotations

import contextlib
import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec

from sits.bench import BenchError
from sits.bench.state_gateway import GatewayProcess, model_server, openai_model, registration
from sits.chaos.netns import Namespace, Net, Traffic, Weather
from sits.ports.servers.nats import NatsServer
from sits.ports.servers.redis import RedisServer

HUB, NODES = 0, (1, 2, 3)
FAIR = Weather()
ROUGH = Weather(delay=(0.001, 0.02), loss=0.01, twice=0.01)
_PATIENCE = 30.0
_LOOK = 0.01
_LONG = 5.0
"""In cuts that last as long the session is changed twice: a node that is cut off notices first that it is."""
_PASSWORD = "bench"  # noqa: S105 - Redis wants one for addresses beyond loopback


class Trial(msgspec.Struct, frozen=True):
    """A round: who is cut off for how long, in which weather."""

    name: str
    what: str
    deaf: tuple[int, ...]
    mute: tuple[int, ...]
    seconds: float
    weather: Weather = FAIR


def _trial(what: str, cut: tuple[int, ...], seconds: float, weather: Weather = FAIR) -> Trial:
    kind = "" if weather is FAIR else ", rough"
    return Trial(f"{what} {seconds:g} s{kind}", what, cut, cut, seconds, weather)


TRIALS = (
    _trial("one node away", (3,), 1.0),
    _trial("one node away", (3,), 4.0, ROUGH),
    _trial("one node away", (2,), 9.0),
    _trial("one node away", (1,), 25.0),
    _trial("two nodes away", (1, 2), 3.0, ROUGH),
    _trial("two nodes away", (2, 3), 7.0),
    _trial("all apart", NODES, 2.0),
    _trial("all apart", NODES, 6.0, ROUGH),
    _trial("all apart", NODES, 15.0),
    Trial("one node hears nothing 5 s", "one node hears nothing", (3,), (), 5.0),
    Trial("one node is not heard 5 s, rough", "one node is not heard", (), (2,), 5.0, ROUGH),
)
QUICK = (TRIALS[0], _trial("all apart", NODES, 2.0, ROUGH))


class Healed(msgspec.Struct, frozen=True):
    """What one round showed: seconds from healing until all three agreed; None: they did not."""

    trial: str
    gateways: float | None
    replicas: float | None
    sessions: float | None
    left: list[str]
    """Removed models that somebody still had at the end."""
    lost: list[str]
    """Changes that were acknowledged and are not there."""
    unrecorded: list[str]
    """Turns that must have forked the session, without a conflict record."""
    faults: list[str]
    forks: int
    differed: str = ""
    """In what the gateways differed last."""


class Place:
    """One node: its namespace, its gateway, its model server and the process beside it."""

    def __init__(self, namespace: Namespace, folder: Path, number: int) -> None:
        folder.mkdir()
        self.name = f"node{number}"
        self.number = number
        self._namespace = namespace
        self._folder = folder
        self._node: subprocess.Popen[str] | None = None
        with namespace.entered():
            self.gateway = GatewayProcess(folder)

    @contextlib.contextmanager
    def living(self, bus: str, store: str) -> Iterator[None]:
        """Everything of it runs while the block lasts."""
        with contextlib.ExitStack() as stack:
            with self._namespace.entered():
                self.endpoint = stack.enter_context(model_server())
                where = self._folder / "store-address"
                where.write_text(store)
                spec = {"bus": bus, "store": f"file:{where}", "accessLog": False, "ledger": {"enabled": False}}
                self.gateway.declare("settings", "Settings", spec)
                self.gateway.declare("declared", "Model", openai_model("http://127.0.0.1:9"))
                stack.enter_context(self.gateway)
                log = stack.enter_context((self._folder / "node.log").open("wb"))
                command = [sys.executable, "-m", "sits.bench.state_node", self.name, bus, store, str(self._folder)]
                self._node = subprocess.Popen(  # noqa: S603
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
                )
            stack.callback(self._end)
            self._answer()
            yield

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        """Of the gateway."""
        with self._namespace.entered():
            return self.gateway.ask(method, path, body)

    def tell(self, do: str, **arguments: Any) -> None:
        """Let the process beside it do something; its answer is to be taken by `hear`."""
        assert self._node is not None
        assert self._node.stdin is not None
        self._node.stdin.write(msgspec.json.encode({"do": do, **arguments}).decode() + "\n")
        self._node.stdin.flush()

    def hear(self) -> Any:
        """The answer; None when it could not be done just now."""
        return self._answer().get("answer")

    def do(self, do: str, **arguments: Any) -> Any:
        self.tell(do, **arguments)
        return self.hear()

    def must(self, do: str, **arguments: Any) -> Any:
        """The same, when there is no reason why it could not be done."""
        self.tell(do, **arguments)
        answer = self._answer()
        if "error" in answer:
            raise BenchError(f"{self.name}: {do}: {answer['error']}")
        return answer["answer"]

    def _answer(self) -> dict[str, Any]:
        assert self._node is not None
        assert self._node.stdout is not None
        line = self._node.stdout.readline()
        if not line:
            raise BenchError(f"the process beside {self.name} ended:\n{(self._folder / 'node.log').read_text()[-2000:]}")
        answer: dict[str, Any] = msgspec.json.decode(line)
        return answer

    def _end(self) -> None:
        if self._node is not None:
            with contextlib.suppress(subprocess.TimeoutExpired, OSError):
                self._node.communicate(timeout=5.0)
            self._node.kill()
            self._node.wait()


class Three:
    """The three, running, with what they must have in common. Use it by `with`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = contextlib.ExitStack()
        self._numbers = itertools.count(1)
        self.registered: set[str] = set()
        self.places: list[Place] = []
        self.counted = 0
        self.put: set[str] = set()
        self.turns: set[str] = set()
        self.session = ""
        self._differed = ""

    def __enter__(self) -> Three:
        with contextlib.ExitStack() as stack:
            self.net = stack.enter_context(Net(1 + len(NODES), self._folder))
            hub, host = self.net.places[HUB], self.net.address(HUB)
            with hub.entered():
                nats = stack.enter_context(NatsServer(self._folder / "nats", host=host))
                redis = stack.enter_context(RedisServer(self._folder / "redis", password=_PASSWORD, host=host))
            assert isinstance(nats, NatsServer)
            assert isinstance(redis, RedisServer)
            for number in NODES:
                place = Place(self.net.places[number], self._folder / f"node{number}", number)
                stack.enter_context(place.living(nats.address, redis.address))
                self.places.append(place)
            self.session = self.places[0].must("create")
            for place in self.places[1:]:
                place.must("join", session=self.session)
            self._stack = stack.pop_all()
        self.await_agreement()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()

    def register(self, place: Place) -> float | None:
        """Register a model at one; seconds until all three serve it, None when they do not."""
        name = f"registered-{next(self._numbers)}"
        began = time.monotonic()
        status, answer = place.ask("POST", "/v1/models/register", registration(name, place.endpoint))
        if status != 201:
            raise BenchError(f"a registration was refused: {status} {answer}")
        self.registered.add(name)
        return _until(lambda: all(name in self._status(one)["models"] for one in self.places), began)

    def await_agreement(self) -> None:
        """All serve the same.

        Raises:
            BenchError: they do not.
        """
        if _until(lambda: self._agree() is None, time.monotonic()) is None:
            raise BenchError(f"the gateways do not come to agree: {self._agree()}")

    def traffic(self) -> Traffic:
        return self.net.traffic()

    def round(self, trial: Trial) -> Healed:
        """Cut, change everything everywhere, mend, wait."""
        self.net.set(trial.weather)
        doomed = self._doomed()
        self.net.set(msgspec.structs.replace(trial.weather, deaf=trial.deaf, mute=trial.mute))
        cut = [place for place in self.places if place.number in (*trial.deaf, *trial.mute)]
        linked = [place for place in self.places if place not in cut]
        until = time.monotonic() + trial.seconds
        self._change_files(cut[-1])
        if linked:
            self._change_registrations(linked[0], doomed)
        self._change_replicas()
        said = [self._commit() for _ in range(2 if trial.seconds >= _LONG else 1)]
        time.sleep(max(0.0, until - time.monotonic()))
        # Mended is what delivers again; it may still delay, double and reorder.
        self.net.set(msgspec.structs.replace(trial.weather, loss=0.0))
        healed = time.monotonic()
        forked = self._forked(cut, [turn for hear in said for turn in hear()])
        found = self._compare(trial, self._watch(healed), doomed if linked else "", forked)
        self.net.set(FAIR)
        if found.gateways is not None:
            self.await_agreement()
        return found

    def _doomed(self) -> str:
        """A model that all have, to be removed while some are away."""
        self.register(self.places[0])
        return max(self.registered, key=lambda name: int(name.rpartition("-")[2]))

    def _change_files(self, place: Place) -> None:
        number = next(self._numbers)
        for old in place.gateway.config.glob("changed-*.json"):
            old.unlink()
        place.gateway.declare(f"changed-{number}", "Model", openai_model(f"http://127.0.0.1:{10 + number}"))
        place.ask("POST", "/v1/admin/reload")
        self.changed = f"changed-{number}"

    def _change_registrations(self, place: Place, doomed: str) -> None:
        """What the network makes fail is asked again: only what was answered counts."""
        name = f"registered-{next(self._numbers)}"
        wanted = registration(name, place.endpoint)
        if _until(lambda: place.ask("POST", "/v1/models/register", wanted)[0] in (201, 409), time.monotonic()) is None:
            raise BenchError(f"{place.name} has the bus and cannot register")
        self.registered.add(name)
        if _until(lambda: place.ask("DELETE", f"/v1/models/{doomed}")[0] in (200, 404), time.monotonic()) is None:
            raise BenchError(f"{place.name} has the bus and cannot remove")
        self.registered.discard(doomed)

    def _change_replicas(self) -> None:
        for place in self.places:
            number = next(self._numbers)
            self.counted += number
            place.must("count", by=number)
            place.must("put", name=f"name-{number}")
            self.put.add(f"name-{number}")
            place.must("note", text=f"note-{number} 记")

    def _commit(self) -> Callable[[], list[tuple[Place, str, dict[str, Any]]]]:
        """Let every node make a change of the session; what is returned hears what became of them."""
        turns = [(place, f"turn-{next(self._numbers)}") for place in self.places]
        for place, turn in turns:
            place.tell("commit", turn=turn)
        return lambda: [(place, turn, place.hear() or {"kept": False}) for place, turn in turns]

    def _forked(self, cut: Sequence[Place], turns: Sequence[tuple[Place, str, dict[str, Any]]]) -> set[str]:
        """The turns that must have forked the session: kept aside by who was cut off, while others brought theirs in."""
        kept = [(place, turn, answer["state"]) for place, turn, answer in turns if answer["kept"]]
        self.turns |= {turn for _, turn, _ in kept}
        if not any(place not in cut and state == "synced" for place, _, state in kept):
            return set()
        return {turn for place, turn, state in kept if place in cut and state == "pending"}

    def _watch(self, healed: float) -> tuple[float | None, float | None, float | None]:
        """Seconds until gateways, replicas and sessions agree, each looked at again and again until it does."""
        tests = [self._agreed, self._replicated, self._synced]
        done: list[float | None] = [None, None, None]
        while time.monotonic() - healed < _PATIENCE and None in done:
            for index, test in enumerate(tests):
                if done[index] is None and test():
                    done[index] = time.monotonic() - healed
            time.sleep(_LOOK)
        return done[0], done[1], done[2]

    def _status(self, place: Place) -> dict[str, Any]:
        _, status = place.ask("GET", "/v1/admin/status")
        found: dict[str, Any] = status
        return found

    def _agree(self) -> str | None:
        """What the gateways differ in: snapshot, models, and what each knows of the others."""
        told = [self._status(place) for place in self.places]
        hashes = {one["config"]["hash"] for one in told}
        heard = {row["hash"] for one in told for row in one["cluster"]["nodes"] if row["there"]}
        present = {sum(row["there"] for row in one["cluster"]["nodes"]) for one in told}
        wanted = {"declared", *self.registered, *([self.changed] if hasattr(self, "changed") else [])}
        models = [set(one["models"]) for one in told]
        if len(hashes) == 1 and heard == hashes and present == {len(NODES)} and all(one == wanted for one in models):
            return None
        return (
            f"{len(hashes)} snapshots, rows of {len(heard)}, {present} there, models {[sorted(one ^ wanted) for one in models]}"
        )

    def _agreed(self) -> bool:
        difference = self._agree()
        self._differed = difference or self._differed
        return difference is None

    def _replicated(self) -> bool:
        told = [place.must("replicated") for place in self.places]
        return len({one["hash"] for one in told}) == 1 and told[0]["count"] == self.counted and set(told[0]["names"]) == self.put

    def _synced(self) -> bool:
        for place in self.places:
            place.tell("session")
        told = [place.hear() for place in self.places]
        return None not in told and len({one["hash"] for one in told}) == 1 and not any(one["waiting"] for one in told)

    def _compare(
        self, trial: Trial, healed: tuple[float | None, float | None, float | None], doomed: str, forked: set[str]
    ) -> Healed:
        """What is there against what was acknowledged."""
        left = [f"{doomed} on {place.name}" for place in self.places if doomed and doomed in self._status(place)["models"]]
        session = self.places[0].do("session") or {"turns": [], "forks": 0}
        forks = self.places[0].do("forks") or {"recorded": [], "faults": ["the session cannot be looked at"]}
        lost = sorted(self.turns - set(session["turns"]))
        doubled = [turn for turn in session["turns"] if session["turns"].count(turn) > 1]
        unrecorded = sorted(forked - set(forks["recorded"]))
        if session["forks"] != len(forks["recorded"]):
            unrecorded.append(f"{session['forks']} forks and {len(forks['recorded'])} records")
        faults = [*forks["faults"], *(f"{turn} is there twice" for turn in doubled)]
        return Healed(trial.name, *healed, left, lost, unrecorded, faults, session["forks"], self._differed)


def _until(met: Callable[[], bool], began: float) -> float | None:
    """Seconds since `began` until it is true; None after `_PATIENCE`."""
    while time.monotonic() - began < _PATIENCE:
        if met():
            return time.monotonic() - began
        time.sleep(_LOOK)
    return None
