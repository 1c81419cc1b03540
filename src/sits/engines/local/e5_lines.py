"""The order in which an embedding server works: in slices, in two lines, and only for those who still wait.

A call of the library cannot be interrupted, so no call takes more than a slice: one text, or several short ones. Between two
slices it is looked who has gone, and whose turn it is. What is short goes by a line of its own, for even one slice of a long text
would hold it up: 0.7 s of one core for 500 tokens, where a word takes 6 ms. So does what the gateway asks for itself, before
others. Both lines may be in the library at once, each with as many threads as the model was given.

Within a line whoever was given least goes first (foreground-background scheduling, Kleinrock 1976), so that a short one is not
behind a long one; every other slice is of the oldest, so that a long one ends however many short ones come.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

Embed = Callable[[Sequence[bytes], bool], list[bytes]]
"""The vectors of texts; whether they are queries. An OSError says why there are none."""

SLICE = 128
"""Tokens of a slice: a call with more of them at once is not quicker for each."""
WAITING = 1024
"""Requests of one line."""


class Crowded(Exception):
    """Too many wait already."""


class Job:
    """The texts of one request; `sizes` are their tokens. `wanted` says whether anybody still waits for it."""

    __slots__ = ("done", "error", "given", "own", "query", "rows", "sizes", "texts", "wanted")

    def __init__(self, texts: Sequence[bytes], sizes: Sequence[int], query: bool, own: bool, wanted: Callable[[], bool]) -> None:
        self.texts = texts
        self.sizes = sizes
        self.query = query
        self.own = own
        self.wanted = wanted
        self.rows: list[bytes] = []
        self.given = 0
        """Tokens that were worked on."""
        self.error: OSError | None = None
        self.done = threading.Event()
        """Set when there is a row for each text, or an error, or nobody waits any more."""

    @property
    def whole(self) -> bool:
        return len(self.rows) == len(self.texts)

    def work(self, embed: Embed) -> None:
        """One slice."""
        begin = end = len(self.rows)
        tokens = 0
        while end < len(self.texts) and (end == begin or tokens + self.sizes[end] <= SLICE):
            tokens += self.sizes[end]
            end += 1
        self.given += tokens
        try:
            self.rows += embed(self.texts[begin:end], self.query)
        except OSError as error:
            self.error = error
        except Exception as error:
            # A defect, or no memory. It ends this request, and not the thread that works for all others.
            self.error = OSError(f"the texts cannot be embedded: {error!r}")
        if self.error is None and len(self.rows) != end:
            self.error = OSError(f"{end - begin} texts have {len(self.rows) - begin} embeddings")


class Line:
    """One thread's work. `turn` does one slice of it; `run` does so for ever."""

    __slots__ = ("_embed", "_jobs", "_more", "_of_the_oldest")

    def __init__(self, embed: Embed) -> None:
        self._embed = embed
        self._jobs: list[Job] = []
        """The oldest first."""
        self._more = threading.Condition()
        self._of_the_oldest = False

    def put(self, job: Job) -> None:
        """
        Raises:
            Crowded: there are too many.
        """
        with self._more:
            if len(self._jobs) >= WAITING:
                raise Crowded(f"{WAITING} requests wait already")
            self._jobs.append(job)
            self._more.notify()

    def run(self) -> None:
        while True:
            with self._more:
                self._more.wait_for(lambda: self._jobs)
            self.turn()

    def turn(self) -> None:
        """Drop what nobody waits for, and do one slice of what is left."""
        job = self._next()
        if job is None:
            return
        job.work(self._embed)
        if job.whole or job.error is not None:
            self._end(job)

    def _next(self) -> Job | None:
        with self._more:
            jobs = list(self._jobs)
        for gone in [job for job in jobs if not job.wanted()]:
            jobs.remove(gone)
            self._end(gone)
        if not jobs:
            return None
        self._of_the_oldest = not self._of_the_oldest
        # Of equals `min` takes the first one, which is the oldest.
        return min(jobs, key=lambda job: (not job.own, job.given)) if self._of_the_oldest else jobs[0]

    def _end(self, job: Job) -> None:
        with self._more:
            self._jobs.remove(job)
        job.done.set()


class Lines:
    """Both lines, working."""

    __slots__ = ("_long", "_short")

    def __init__(self, embed: Embed) -> None:
        self._short, self._long = Line(embed), Line(embed)
        for line, name in ((self._short, "short"), (self._long, "long")):
            threading.Thread(target=line.run, name=name, daemon=True).start()

    def do(self, job: Job) -> bool:
        """Whether it was done; False when whoever waited has gone.

        Raises:
            Crowded: too many wait.
            OSError: the library failed.
        """
        line = self._short if job.own or sum(job.sizes) <= SLICE else self._long
        line.put(job)
        job.done.wait()
        if job.error is not None:
            raise job.error
        return job.whole
