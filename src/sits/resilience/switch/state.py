"""Where a switch is: facts that anybody may note, and the one thing that they mean together.

No gateway leads. Each notes facts in the generation that it knows, and what they all know is the union of what each knows
(`sits.state.crdt.Round`: a join semilattice, so it is the same whatever the order, however often a message comes):

    start              somebody began; this opens a generation, and everything of the one before is over
    reach.4.002        the switch has come to phase 4 (shift), step 2
    pause.TOKEN        somebody paused it; `lift.TOKEN` takes this very pause away, not one that was not seen
    promote            a canary may go on to everybody
    abort              roll back

**The rule for what contradicts.** Of what was noted on two sides of a partition, this counts:

1. A later generation before an earlier one: who starts has seen how the last one ended.
2. Within one, `retire` before `abort`, `abort` before everything else: what is rolled back does not go on, and what is retired
   does not come back, because since then the old model may be switched off.
3. A pause before a resume that had not seen it.
4. Of phases and steps, the furthest.

The first two make the outcome of a switch a chain (`Course.rank`): more facts can only move it up, never back. Of notes of
the same fact the earliest stays, so that everybody tells the same who, when and why.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator

import msgspec
from blake3 import blake3

from sits.inner.errors import Code, SitsError
from sits.state.crdt.round import LARGEST_NOTE, Round

MOST_FACTS = 500
"""In one generation: some hundred steps and as many pauses, and then nobody may pause any more."""
LONGEST_WHY = 700
_KINDS = ("start", "reach", "pause", "lift", "promote", "abort")
_LATEST = 2**63 - 1
_HEAD = 8


class Phase(enum.IntEnum):
    """How far a switch has come."""

    PREPARE = 1
    """It is looked whether the new model is there and can do what the old one can."""
    WARM = 2
    """Every gateway asks it something."""
    VERIFY = 3
    """Its answers are looked at."""
    SHIFT = 4
    """It gets a share of the requests, step by step."""
    DRAIN = 5
    """It gets all of them; the old one's last answers end."""
    RETIRE = 6
    """No gateway asks the old one any more."""


class Note(msgspec.Struct, frozen=True, array_like=True):
    """Who noted a fact, when and why."""

    at: int
    """Milliseconds since 1970."""
    who: str
    why: str = ""

    def packed(self) -> bytes:
        """As the content of a fact: of two, the earlier one is greater."""
        head = (_LATEST - min(max(self.at, 0), _LATEST)).to_bytes(_HEAD, "big")
        short = Note(self.at, self.who[:200], self.why[:LONGEST_WHY])
        return (head + msgspec.msgpack.encode(short))[:LARGEST_NOTE]


class Event(msgspec.Struct, frozen=True):
    """A fact that was noted, as people read of it."""

    generation: int
    fact: str
    note: Note

    @property
    def order(self) -> tuple[int, int, int, str]:
        """By when it was noted; of one moment, as it must have been."""
        kind = self.fact.partition(".")[0]
        return self.generation, self.note.at, _KINDS.index(kind) if kind in _KINDS else len(_KINDS), self.fact

    @property
    def what(self) -> str:
        """In words: `shift, step 2`."""
        kind, _, rest = self.fact.partition(".")
        if kind == "reach":
            phase, step = _position(rest)
            return phase.name.lower() if phase is not Phase.SHIFT else f"shift, step {step + 1}"
        return {"lift": "resume"}.get(kind, kind)


class Course:
    """What the facts of a switch mean. Made of a `Round`, which it does not change; mutators return deltas of one."""

    __slots__ = ("aborted", "generation", "notes", "phase", "promoted", "round", "started", "step")

    def __init__(self, round: Round) -> None:
        self.round = round
        self.generation = round.number
        self.notes = {fact: note for fact, content in round.facts.items() if (note := _read(content)) is not None}
        self.started = self.notes.get("start")
        self.aborted = self.notes.get("abort")
        self.promoted = "promote" in self.notes
        reached = [_position(fact[6:]) for fact in self.notes if fact.startswith("reach.")]
        self.phase, self.step = max(reached, default=(Phase.PREPARE, 0))

    @property
    def idle(self) -> bool:
        """It was never begun."""
        return self.generation == 0

    @property
    def retired(self) -> bool:
        return not self.idle and self.phase is Phase.RETIRE

    @property
    def rolled_back(self) -> bool:
        return self.aborted is not None and not self.retired

    @property
    def over(self) -> bool:
        return self.retired or self.rolled_back

    @property
    def live(self) -> bool:
        """It is on its way."""
        return not self.idle and not self.over

    @property
    def pauses(self) -> list[Note]:
        """The pauses that nobody has taken away."""
        return [note for fact, note in self.notes.items() if fact.startswith("pause.") and f"lift.{fact[6:]}" not in self.notes]

    @property
    def rank(self) -> tuple[int, int, int]:
        """Where it is in the chain of outcomes. More facts never lower it."""
        if self.idle:
            return 0, 0, 0
        if self.rolled_back:
            return self.generation, int(Phase.RETIRE), 0
        return (self.generation, int(Phase.RETIRE) + 1, 0) if self.retired else (self.generation, int(self.phase), self.step)

    @property
    def state(self) -> str:
        """In a word: `idle`, a phase, `aborted` or `retired`."""
        if self.idle:
            return "idle"
        if self.rolled_back:
            return "aborted"
        return "retired" if self.retired else self.phase.name.lower()

    def events(self) -> list[Event]:
        """What was noted in this generation, oldest first."""
        return sorted((Event(self.generation, fact, note) for fact, note in self.notes.items()), key=lambda event: event.order)

    def paused_seconds(self, wall: float) -> float:
        """How long it has been paused in all."""
        total, until = 0.0, float("-inf")
        for begun, ended in sorted(self._pauses(wall)):
            total += max(0.0, ended - max(begun, until))
            until = max(until, ended)
        return total

    # Facts. Each returns the delta; what is known already is an empty one.

    def start(self, note: Note) -> Round:
        """Begin. While it is on its way already nothing happens."""
        return Round() if self.live else self.round.next("start", note.packed())

    def reach(self, phase: Phase, step: int, note: Note) -> Round:
        """Come to a phase and step. What is over or further already stays there."""
        if not self.live or (phase, step) <= (self.phase, self.step):
            return Round()
        return self._noted(f"reach.{int(phase)}.{step:03d}", note)

    def abort(self, note: Note) -> Round:
        """Roll back.

        Raises:
            SitsError: `conflict`, there is nothing under way; `retired` cannot be undone, a switch back can be declared.
        """
        if self.idle or self.retired:
            raise self._refused("was never started" if self.idle else "is retired: declare a switch back to the old model")
        return Round() if self.rolled_back else self._noted("abort", note)

    def pause(self, note: Note, token: str) -> Round:
        """Stay where it is until somebody resumes it. `token` is new each time.

        Raises:
            SitsError: `conflict`, it is not on its way, or was paused too often.
        """
        self._need_live()
        if len(self.round.facts) >= MOST_FACTS:
            raise self._refused("was paused too often; abort it and start it again")
        return self._noted(f"pause.{token}", note)

    def resume(self, note: Note) -> Round:
        """Take away every pause that is known here. None: nothing happens.

        Raises:
            SitsError: `conflict`, it is not on its way.
        """
        self._need_live()
        tokens = [fact[6:] for fact in self.notes if fact.startswith("pause.") and f"lift.{fact[6:]}" not in self.notes]
        return Round(self.generation, {f"lift.{token}": note.packed() for token in tokens}) if tokens else Round()

    def promote(self, note: Note) -> Round:
        """Let a canary go on to everybody.

        Raises:
            SitsError: `conflict`, it is not on its way.
        """
        self._need_live()
        return Round() if self.promoted else self._noted("promote", note)

    def _noted(self, fact: str, note: Note) -> Round:
        return self.round.note(fact, note.packed())

    def _pauses(self, wall: float) -> Iterator[tuple[float, float]]:
        for fact, note in self.notes.items():
            if fact.startswith("pause."):
                lifted = self.notes.get(f"lift.{fact[6:]}")
                yield note.at / 1000, (lifted.at / 1000 if lifted is not None else wall)

    def _need_live(self) -> None:
        if not self.live:
            raise self._refused("was never started" if self.idle else f"is over: it is {self.state}")

    def _refused(self, why: str) -> SitsError:
        return SitsError(Code.CONFLICT, f"the switch {why}")


def key_of(name: str, old: str, new: str) -> str:
    """What a switch is kept by. Another pair of models under the same name is another switch, which was never started."""
    return blake3("\0".join((name, old, new)).encode()).hexdigest(16)


def _position(text: str) -> tuple[Phase, int]:
    phase, _, step = text.partition(".")
    try:
        return Phase(int(phase)), int(step)
    except ValueError:
        # A newer version knows phases that we do not; what it does by them it tells by facts that we know as well.
        return Phase.PREPARE, 0


def _read(content: bytes) -> Note | None:
    try:
        return _NOTE.decode(content[_HEAD:])
    except (msgspec.MsgspecError, RecursionError):
        return None


_NOTE = msgspec.msgpack.Decoder(Note)
