"""The exact cache of one process: answers by fingerprint.

Lookups are plain calls: a hit takes 0.8 us, a miss 0.6, keeping an answer 4; with the fingerprint of a 400 B body, the
partition and the wish a hit is 4 us. What goes when it is full is chosen by an `Eviction`; what has gone stale is never given
out, and its space is given back by `sweep`.
"""

from __future__ import annotations

import msgspec

from sits.state.cache.answer import MOST_TAGS, Answer
from sits.state.cache.eviction import Eviction
from sits.state.cache.expiry import Expiry
from sits.state.cache.rules import ANY, Wish
from sits.state.cache.tag_index import TagIndex

OVERHEAD = 1200
"""Bytes that an entry takes beside its body, measured: the answer, its tags, and the rows of the policy, the index and the
calendar."""
SWEPT = 256
"""Stale entries that one `sweep` gives back at the most: 0.8 ms."""


class Tally(msgspec.Struct):
    """What happened so far: plain counters that metrics read out."""

    hits: int = 0
    misses: int = 0
    """Nothing was there, or not what the client wished for."""
    expired: int = 0
    """Misses where something was there that had gone stale."""
    stored: int = 0
    evicted: int = 0
    """Gone for want of room, those that were not let in among them."""
    purged: int = 0
    softened: int = 0
    """Made stale by a soft purge."""
    late: int = 0
    """Answers not kept because they were asked for before a purge that meant them."""


class ExactCache:
    """Answers by fingerprint, within a limit. Times are unix seconds and passed in."""

    __slots__ = ("_answers", "_eviction", "_expiry", "_tags", "tally")

    def __init__(self, eviction: Eviction) -> None:
        self._eviction = eviction
        self._answers: dict[bytes, Answer] = {}
        self._expiry = Expiry()
        self._tags = TagIndex()
        self.tally = Tally()

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def weight(self) -> int:
        """Bytes held, `OVERHEAD` included."""
        return self._eviction.weight

    @property
    def moment(self) -> int:
        """To be noted when an answer is asked for, and given to `store` with it."""
        return self._tags.moment

    def lookup(self, fingerprint: bytes, now: float, wish: Wish = ANY) -> Answer | None:
        """The answer to a question, if there is one that has not expired and fits the wish."""
        answer = self._answers.get(fingerprint)
        if answer is not None and answer.expires <= now:
            self.tally.expired += 1
            self._drop(fingerprint, answer)
            answer = None
        self._eviction.touch(fingerprint, now)
        if answer is None or (wish is not ANY and not wish.accepts(answer, now)):
            self.tally.misses += 1
            return None
        self.tally.hits += 1
        return answer

    def store(self, fingerprint: bytes, answer: Answer, now: float, since: int) -> bool:
        """Keep an answer; whether it is kept. `since` is the `moment` of when it was asked for.

        Whether it is a good one is for `rules.fault` to say, before.
        """
        if answer.expires <= now or len(answer.tags) > MOST_TAGS:
            return False
        if self._tags.purged(answer.tags, since):
            self.tally.late += 1
            return False
        held = self._answers.pop(fingerprint, None)
        if held is not None:
            self._unlist(fingerprint, held)
        gone = self._eviction.add(fingerprint, len(answer.body) + OVERHEAD, now)
        kept = True
        for key in gone:
            self.tally.evicted += 1
            if key == fingerprint:
                kept = False
            else:
                self._unlist(key, self._answers.pop(key))
        if kept:
            self._answers[fingerprint] = answer
            self._expiry.add(fingerprint, answer.expires)
            self._tags.add(fingerprint, answer.tags)
            self.tally.stored += 1
        return kept

    def discard(self, fingerprint: bytes) -> None:
        """Forget one answer; one that is not held is no error."""
        answer = self._answers.get(fingerprint)
        if answer is not None:
            self._drop(fingerprint, answer)

    def purge(self, *tags: str) -> int:
        """Forget all answers with all these tags (without any: all answers); returns how many. Those being made are not kept
        either."""
        found = self._tags.purge(tags)
        if not tags:
            found = list(self._answers)
        for key in found:
            self._drop(key, self._answers[key])
        self.tally.purged += len(found)
        return len(found)

    def soften(self, at: float, *tags: str) -> int:
        """Make all answers with all these tags (without any: all answers) stale from `at` on; returns how many. Those that are
        kept to be given stale stay for that time, others go as by `purge`; those being made are not kept, since they may have
        been made of what is not so any more."""
        found = self._tags.purge(tags)
        if not tags:
            found = list(self._answers)
        for key in found:
            self._soften(key, self._answers[key], at)
        return len(found)

    def _soften(self, key: bytes, answer: Answer, at: float) -> None:
        softened = answer.softened(at)
        if not answer.stale:
            self.tally.purged += 1
            self._drop(key, answer)
        elif softened is not answer:
            self.tally.softened += 1
            self._answers[key] = softened
            self._expiry.discard(key, answer.expires)
            self._expiry.add(key, softened.expires)

    def sweep(self, now: float, limit: int = SWEPT) -> int:
        """Give back the space of at most `limit` stale answers; returns how many that were. To be called about once a second."""
        due = self._expiry.due(now, limit)
        for key in due:
            self._drop(key, self._answers[key])
        return len(due)

    def _drop(self, key: bytes, answer: Answer) -> None:
        del self._answers[key]
        self._eviction.remove(key)
        self._unlist(key, answer)

    def _unlist(self, key: bytes, answer: Answer) -> None:
        self._expiry.discard(key, answer.expires)
        self._tags.discard(key, answer.tags)
