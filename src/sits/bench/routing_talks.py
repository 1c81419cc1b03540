"""Conversations: requests that begin like one before, whose servers remember what they have read.

What `routing_world` leaves out, for its prompts are short and all different: a server reads one prompt after the other, at the
speed of its arithmetic, a chunk in each step beside the answers that it writes (chunked prefill: Agrawal et al., Sarathi-Serve,
OSDI 2024), and keeps the attention state of what it has read and written while its memory lasts, what was not used for longest
going first (prefix caching). A turn of a conversation begins with all that was said in it, and every conversation of an
application with the same instructions.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import OrderedDict, deque
from collections.abc import Sequence
from heapq import heappop, heappush

import msgspec

from sits.bench.routing_world import BYTES, WORK, Ask, Backend, Running, Simulation, Traffic, Trouble, moments
from sits.routing.beginnings import EDGES, Reading
from sits.routing.policies import BoundedHash, Policy, TargetState, place
from sits.routing.policies.load import LeastAdded
from sits.routing.pool import reads

CHUNK = 2048
"""Tokens of a prompt that are read in a step beside the answers: the default of vLLM (`max_num_batched_tokens`)."""


class Talks(msgspec.Struct, frozen=True):
    """How people and agents talk. Turns come at their own times, whether the answer before was quick or not, so that all policies
    have the same requests."""

    applications: int = 12
    """With instructions of their own; how often each is used falls as 1 / rank."""
    instructions: float = 1200.0
    """Tokens, median; log-normal."""
    instructions_sigma: float = 0.7
    instructions_most: int = 6000
    turns: float = 4.0
    """Of a conversation, mean; geometric."""
    said: float = 200.0
    """Tokens of what is new in a turn: a question, a document, what a tool gave. Median; log-normal."""
    said_sigma: float = 1.3
    said_most: int = 4000
    answer: float = 150.0
    answer_sigma: float = 0.8
    answer_most: int = 1024
    pause: float = 15.0
    """Seconds between an answer and the next turn, median; log-normal."""
    pause_sigma: float = 0.8
    writes: float = 60.0
    """Tokens a second that people reckon with."""
    longest: int = 16_000
    """Tokens of a prompt, beyond which a conversation ends."""
    straggler: float = 0.01
    more: float = 3.0


class Turn(Ask, frozen=True):
    """One request of a trace; `prompt` is all of it."""

    application: int
    talk: int
    instructions: int
    """Tokens that all requests of the application begin with."""
    new: int
    """Tokens that nobody has read or written before."""


def turns(traffic: Traffic, talks: Talks, rate: float, seconds: float, seed: int) -> list[Turn]:
    """The requests of a trace, about `rate` a second in the mean once it is under way; conversations have begun before it."""
    dice = random.Random(seed)  # noqa: S311 - no secrets

    def drawn(median: float, sigma: float, most: int) -> int:
        return int(min(most, max(1.0, dice.lognormvariate(math.log(median), sigma))))

    shapes = random.Random(4)  # noqa: S311 - the same applications in all traces
    instructions = [
        int(min(talks.instructions_most, shapes.lognormvariate(math.log(talks.instructions), talks.instructions_sigma)))
        for _ in range(talks.applications)
    ]
    popular = [1.0 / (rank + 1) for rank in range(talks.applications)]
    before = 60.0 + 4.0 * talks.turns * talks.pause
    made: list[Turn] = []
    for talk, began in enumerate(moments(traffic, rate / talks.turns, seconds + before, dice)):
        at = began - before
        application = dice.choices(range(talks.applications), popular)[0]
        prompt = known = instructions[application]
        while at < seconds:
            prompt += drawn(talks.said, talks.said_sigma, talks.said_most)
            if prompt > talks.longest:
                break
            answer = drawn(talks.answer, talks.answer_sigma, talks.answer_most)
            if at >= 0.0:
                more = talks.more if dice.random() < talks.straggler else 1.0
                made.append(Turn(at, prompt, answer, more, application, talk, instructions[application], prompt - known))
            if dice.random() < 1.0 / talks.turns:
                break
            at += answer / talks.writes + dice.lognormvariate(math.log(talks.pause), talks.pause_sigma)
            prompt += answer
            known = prompt
    made.sort(key=lambda one: one.at)
    return made


class _Server(Running):
    """A backend that reads one prompt after the other, and remembers."""

    __slots__ = ("kept", "left", "pace", "pinned", "reading", "reads_next", "size", "told")

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.reading: deque[int] = deque()
        self.left = 0.0
        """Tokens of the prompt that is being read, still to be read."""
        self.pace = 0.0
        """Tokens of it a second."""
        self.reads_next = False
        """What is due next is the end of a prompt, not of an answer."""
        self.kept: OrderedDict[tuple[int, int], int] = OrderedDict()
        """(0, application) or (1, conversation) -> tokens of which the state is kept."""
        self.size = 0
        self.pinned = 0
        """Tokens of requests under way."""

    def knows(self, turn: Turn) -> int:
        """Tokens of a prompt that need not be read again."""
        kept = self.kept
        if (0, turn.application) not in kept:
            return 0
        kept.move_to_end((0, turn.application))
        known = turn.instructions
        own = kept.get((1, turn.talk))
        if own is not None:
            kept.move_to_end((1, turn.talk))
            known += own
        return min(known, turn.prompt - 1)

    def keep(self, turn: Turn, tokens: int) -> None:
        """Its state is there up to so many tokens; what was not used for longest makes room."""
        kept = self.kept
        for key, size in (((0, turn.application), turn.instructions), ((1, turn.talk), tokens - turn.instructions)):
            old = kept.pop(key, 0)
            kept[key] = max(size, old)
            self.size += kept[key] - old
        while kept and self.size + self.pinned > self.backend.memory:
            _, gone = kept.popitem(last=False)
            self.size -= gone


class Talking(Simulation):
    """One run of conversations."""

    def __init__(
        self,
        backends: Sequence[Backend],
        policies: Sequence[Policy],
        weights: Sequence[float],
        troubles: Sequence[Trouble],
        seed: int,
        scrape: float = 0.0,
        reports: float = 0.0,
    ) -> None:
        super().__init__(backends, policies, weights, troubles, seed, scrape, reports)
        self._servers = [_Server(backend) for backend in backends]
        self._pool = [*self._servers]
        self._names = tuple(str(index) for index in range(len(backends)))
        self._readings: dict[int, tuple[Reading, float]] = {}
        self.read = self.new = 0
        """Tokens of prompts that were read, and that nobody had read before."""

    def _choose(self, number: int, gateway: int, states: Sequence[TargetState], now: float) -> int:
        turn = self._turn(number)
        policy = self._policies[gateway]
        reading = Reading(round(turn.prompt * BYTES), _digests(turn), self._memories[gateway])
        draw = place(b"%d" % turn.talk) if isinstance(policy, Sticky) else self._dice.random()
        if reads(policy):
            which = policy.pick(states, self._weights, draw, now, reading.size, reading.warm(self._names))
            self._readings[number] = (reading, reading.sent(self._names[which]))
        else:
            which = policy.pick(states, self._weights, draw, now)
        return which

    def _turn(self, number: int) -> Turn:
        found = self._trace[number]
        assert isinstance(found, Turn)
        return found

    def _pass(self, running: Running, now: float) -> None:
        server = running
        assert isinstance(server, _Server)
        server.left = max(0.0, server.left - server.pace * (now - server.since))
        super()._pass(running, now)

    def _begin(self, which: int, running: Running, number: int, now: float) -> None:
        server = self._servers[which]
        self._begun[number] = now
        self._busy[which] += 1
        server.pinned += self._trace[number].answer
        server.reading.append(number)
        if len(server.reading) == 1:
            self._open(server)

    def _open(self, server: _Server) -> None:
        """The next prompt is read."""
        if server.reading:
            turn = self._turn(server.reading[0])
            left = turn.prompt - server.knows(turn)
            self.read += left
            self.new += turn.new
            server.left = left * turn.more

    def _schedule(self, which: int, running: Running, now: float) -> None:
        server = self._servers[which]
        server.version += 1
        writing = len(server.heap)
        backend = server.backend
        step = 1.0 / backend.speed(writing) if writing else 0.0
        server.pace = 0.0
        if server.reading:
            step += CHUNK / backend.reads
            server.pace = CHUNK / step / server.slow
        server.speed = 1.0 / step / server.slow if writing else 0.0
        ends = (max(0.0, server.heap[0][0] - server.written) / server.speed) if writing else math.inf
        read = server.left / server.pace if server.reading else math.inf
        server.reads_next = read <= ends
        if writing or server.reading:
            heappush(self._events, (now + min(read, ends), WORK, which, server.version))

    def _work(self, which: int, running: Running, now: float) -> None:
        server = self._servers[which]
        self._pass(server, now)
        if server.reads_next:
            self._spoken(server, server.reading.popleft(), now)
            self._open(server)
        else:
            server.written = max(server.written, server.heap[0][0])
            _, number = heappop(server.heap)
            turn = self._turn(number)
            server.pinned -= turn.answer
            server.keep(turn, turn.prompt + turn.answer)
            self._busy[which] -= 1
            self._end(number, now, ok=True)
            while server.waiting and self._busy[which] < server.backend.slots:
                following = server.waiting.popleft()
                if self._took[following] < 0.0:
                    self._begin(which, server, following, now)
        self._schedule(which, server, now)

    def _spoken(self, server: _Server, number: int, now: float) -> None:
        """A prompt has been read: the answer begins."""
        turn = self._turn(number)
        server.keep(turn, turn.prompt)
        took = now - turn.at
        self._first[number] = took
        reading, warm = self._readings.pop(number, _UNREAD)
        self._state(number).spoke(now, took, self._among[number], reading.size - warm, warm)
        heappush(server.heap, (server.written + turn.answer * turn.more, number))


_UNREAD = (Reading(0), 0.0)


def _digests(turn: Turn) -> list[int]:
    """As of a body of so many bytes."""
    size, shared = turn.prompt * BYTES, turn.instructions * BYTES
    return [hash((0, turn.application, edge) if edge <= shared else (1, turn.talk, edge)) for edge in EDGES if edge <= size]


class Unread(LeastAdded):
    """`least-added` that does not look at prompts."""

    reads = False


class Sticky(Policy):
    """All turns of a conversation go to the same server, unless that has more than its part: `hash` by session."""

    def __init__(self) -> None:
        self._hash: BoundedHash | None = None

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        if self._hash is None:
            self._hash = BoundedHash({state: str(index) for index, state in enumerate(states)}, usual=statistics.fmean(weights))
        return self._hash.seen(states, weights, draw, now)


class CacheAware(Policy):
    """The policy of this name in the routers of SGLang and vLLM, at their defaults: as long as loads are alike, the one that has
    read most of the prompt, if that is more than 0.3 of it, else the one with the least to do; and always that one where the
    most and the least differ by more than 64 requests and by more than half."""

    reads = True

    def seen(
        self,
        states: Sequence[TargetState],
        weights: Sequence[float],
        draw: float,
        now: float,
        size: float = 0.0,
        warm: Sequence[float] = (),
    ) -> list[float]:
        under_way = [state.outstanding for state in states]
        most, least = max(under_way), min(under_way)
        if warm and max(warm) > 0.3 * size and not (most - least > 64 and most > 1.5 * least):
            return [-one for one in warm]
        return [float(one) for one in under_way]
